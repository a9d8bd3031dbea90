"""`python -m physis_stream.cli` is `physis-stream`."""

from physis_stream.cli import main

raise SystemExit(main())
