"""physis_stream: interactive, real-time video world models, served to many at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from physis_stream.version import __version__

if TYPE_CHECKING:
    from physis_stream.api import Engine, Session

__all__ = ["Engine", "Session", "__version__"]


def __getattr__(name: str) -> Any:
    """Import torch and the engine only when somebody asks for them."""
    if name in ("Engine", "Session"):
        from physis_stream.runtime.process_tuning import calm_waits

        calm_waits()
        from physis_stream import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
