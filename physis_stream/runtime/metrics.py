"""Recent numbers of the engine: rings with O(1) update; percentiles are worked out when somebody asks. It reads no
clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from physis_stream.core.ids import SessionId


class Ring:
    """The last `capacity` numbers."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self._values = np.zeros(capacity, dtype=np.float64)
        self._count = 0

    def __len__(self) -> int:
        return min(self._count, len(self._values))

    def add(self, value: float) -> None:
        self._values[self._count % len(self._values)] = value
        self._count += 1

    def mean(self) -> float:
        """Mean of what the ring holds; 0 when empty."""
        return float(self._values[: len(self)].mean()) if self._count else 0.0

    def total(self) -> float:
        return float(self._values[: len(self)].sum())

    def percentile(self, share: float) -> float:
        """The `share` quantile (0..1) of what the ring holds; 0 when empty."""
        return float(np.quantile(self._values[: len(self)], share)) if self._count else 0.0


@dataclass(frozen=True, slots=True)
class TickTimes:
    """One tick in nanoseconds: `wall` from plan to outputs; `rows` and `decode` are the model's part, the rest is
    ours.
    """

    wall_ns: int
    rows_ns: int
    decode_ns: int
    num_rows: int


class EngineMetrics:
    """What `EngineStats` reports beside the core's own counts.

    A chunk interval is the time between two chunks of one session and epoch. Ticks without rows (state ops alone)
    are not counted.
    """

    def __init__(self, recent: int = 512) -> None:
        self._recent = recent
        self.begin()

    def begin(self) -> None:
        """Forget everything: what is counted begins now."""
        self.ticks = 0
        self.rows = 0
        self.late_chunks = 0
        self._wall, self._model, self._width = (Ring(self._recent) for _ in range(3))
        self._intervals = Ring(self._recent)
        self._last: dict[SessionId, tuple[int, int]] = {}

    def tick(self, times: TickTimes) -> None:
        """Take note of a tick."""
        if times.num_rows == 0:
            return
        self.ticks += 1
        self.rows += times.num_rows
        self._wall.add(times.wall_ns / 1e6)
        self._model.add((times.rows_ns + times.decode_ns) / 1e6)
        self._width.add(times.num_rows)

    def chunk(self, session: SessionId, epoch: int, now_ns: int, due_ns: int | None) -> None:
        """Take note of a chunk that was handed out."""
        before = self._last.get(session)
        if before is not None and before[0] == epoch:
            self._intervals.add((now_ns - before[1]) / 1e6)
        self._last[session] = (epoch, now_ns)
        if due_ns is not None and now_ns > due_ns:
            self.late_chunks += 1

    def forget(self, session: SessionId) -> None:
        """Drop what is kept of a session; a no-op for an unknown one."""
        self._last.pop(session, None)

    @property
    def overhead_share(self) -> float:
        """Share of recent ticks' time that was neither model nor decoding."""
        wall = self._wall.total()
        return max(0.0, 1.0 - self._model.total() / wall) if wall else 0.0

    @property
    def batch_rows_mean(self) -> float:
        return self._width.mean()

    def tick_ms(self, *shares: float) -> Sequence[float]:
        """Quantiles of recent ticks' wall time."""
        return [self._wall.percentile(share) for share in shares]

    def chunk_interval_ms(self, *shares: float) -> Sequence[float]:
        """Quantiles of recent chunk intervals over all sessions."""
        return [self._intervals.percentile(share) for share in shares]
