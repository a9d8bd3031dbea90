"""physis_client: sessions of a physis_stream server, without torch."""

from __future__ import annotations
