"""What one engine core may take on, as numbers checked once. It knows no worlds and no present load."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one engine core.

    `num_pages` is the page pool of each shape bucket; None derives it, so that `max_sessions` sessions and
    `max_snapshots` snapshots fit. `memory_bytes` bounds reserved pages plus fixed bytes over all worlds; None leaves
    the pages as the bound. `lockstep_share` and `late_share` are the parts of a batch that waiting lockstep rows and
    rows already late are owed while rows with a deadline compete. `max_utilisation` is the part of real time that
    realtime sessions may be predicted to need. `margin_ns` is the least time by which a chunk aims to be ready before
    it is due.
    """

    max_sessions: int = 64
    max_queued: int = 64
    max_snapshots: int = 16
    max_rows: int = 64
    max_queued_steps: int = 64
    num_pages: int | None = None
    memory_bytes: int | None = None
    lockstep_share: float = 0.25
    late_share: float = 0.25
    max_utilisation: float = 0.9
    margin_ns: int = 2_000_000
    retry_after_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_rows", "max_queued_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("max_queued", "max_snapshots", "margin_ns", "retry_after_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        for name in ("lockstep_share", "late_share"):
            if not 0.0 < getattr(self, name) <= 0.5:
                raise ValueError(f"{name} must lie in (0, 0.5], got {getattr(self, name)}")
        if not 0.0 < self.max_utilisation <= 1.0:
            raise ValueError(f"max_utilisation must lie in (0, 1], got {self.max_utilisation}")
