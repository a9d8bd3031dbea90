"""The command line `physis-stream`: parse, call one function a command, turn a refusal into one line and an exit code.

Exit codes: 0 done, 1 ran and found a failure, 2 wrong usage, 130 interrupted. A command's module is imported
only when it runs, so that `--help` and `--version` answer at once.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from physis_stream.version import __version__

COMMANDS = {
    "serve": "start the server and the engine",
    "bench": "measure capacity, latency or a world",
    "models": "list the worlds that ship, show a profile",
    "train": "train a world from a Gymnasium environment",
    "trace": "record a run, replay it, export a timeline",
    "doctor": "say what works on this machine",
}
"""Each name is a module of this package with `configure(parser)` and `run(args) -> int`."""


class UsageError(Exception):
    """The arguments are well-formed and yet wrong; the message says what was expected."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        prog="physis-stream", description="Interactive, real-time video world models, served to people and robots."
    )
    parser.add_argument("--version", action="version", version=f"physis-stream {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    for name, summary in COMMANDS.items():
        sub = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        if name == chosen:
            importlib.import_module(f"physis_stream.cli.{name}").configure(sub)
    args = parser.parse_args(arguments)
    try:
        return int(importlib.import_module(f"physis_stream.cli.{args.command}").run(args))
    except UsageError as wrong:
        print(f"physis-stream {args.command}: {wrong}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
