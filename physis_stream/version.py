"""The installed version, read once from the package's metadata."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("physis-stream")
except PackageNotFoundError:  # a source tree on the path, not installed
    __version__ = "0+source"
