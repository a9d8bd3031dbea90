"""The engine as the server sees it: an async service with typed calls down and a bounded stream of outputs up.

Two implementations: the engine in a thread of this process, and in a process of its own (frames cross by shared
memory). The server depends on this protocol alone, so that tests serve a fake. It knows no sockets.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from physis_stream.core.commands import Pace
from physis_stream.core.ids import SessionId, SnapshotId

Frames = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class WorldInfo:
    """A world as `GET /v1/models` lists it; all fields plain values. `action` = {dim, low, high, names, initial,
    combine}.

    `state_names` are the readouts in order, `state_units` their units.
    """

    name: str
    family: str
    title: str
    description: str
    height: int
    width: int
    fps: float
    chunk_frames: int
    action: Mapping[str, Any]
    discipline: str
    num_steps: int
    state_names: tuple[str, ...]
    state_units: tuple[str, ...]
    accepts_prompt: bool = False
    accepts_image: bool = True


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """`image` is uint8 RGB (H, W, 3) of the world's size, or None to start from the seed. `wait` allows queueing."""

    world: str
    seed: int
    pace: Pace
    image: Frames | None = None
    wait: bool = True


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """`state` is a name of core.session.State; `queue_position` is 0 once admitted."""

    session: SessionId
    world: str
    state: str
    pace: Pace
    epoch: int
    chunks: int
    queue_position: int = 0
    ended_reason: str | None = None


@dataclass(frozen=True, slots=True)
class ChunkOut:
    """One finished chunk. `frames` is uint8 RGB (F, H, W, 3), contiguous, owned by the receiver.

    `first_frame_id` grows by F a chunk over the whole life of the session (resets included), so pts = frame_id / fps
    strictly rises. `state` are the readouts after the chunk's last frame, by name. `applied` are the control event
    ids that this chunk was the first to use. `timing_ms`: queue, denoise, decode, total, batch_rows.
    """

    session: SessionId
    epoch: int
    chunk: int
    first_frame_id: int
    frames: Frames
    applied: tuple[int, ...]
    action: tuple[float, ...]
    state: Mapping[str, float]
    reward: float | None
    timing_ms: Mapping[str, float] = field(default_factory=dict)

    def telling_for(self, lost: ChunkOut) -> ChunkOut:
        """This chunk, which also tells the events of one of its epoch that will not be delivered."""
        if not lost.applied or lost.epoch != self.epoch:
            return self
        return replace(self, applied=(*lost.applied, *self.applied))


@dataclass(frozen=True, slots=True)
class Notice:
    """Anything else that a session's client hears: kind is status | queue | error | ended | recovered."""

    session: SessionId
    kind: str
    detail: Mapping[str, Any]


Output = ChunkOut | Notice


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Present facts, for /metrics, /readyz and the page. `alive` is derived from the loop's last heartbeat."""

    alive: bool
    could_admit: bool
    sessions: int
    queued: int
    streaming: int
    max_sessions: int
    pages_total: int
    pages_used: int
    ticks: int
    rows: int
    tick_ms_p50: float
    tick_ms_p95: float
    batch_rows_mean: float
    overhead_share: float
    chunk_interval_ms_p50: float
    chunk_interval_ms_p95: float
    late_chunks: int
    evictions: int
    heartbeat_age_s: float


class EngineService(Protocol):
    """Every call raises core.errors.EngineError (or a subclass) on refusal and never blocks the event loop."""

    def worlds(self) -> Sequence[WorldInfo]: ...

    async def open_session(self, request: OpenRequest) -> SessionStatus: ...

    async def close_session(self, session: SessionId, reason: str = "closed") -> None: ...

    async def status(self, session: SessionId) -> SessionStatus: ...

    async def control(
        self, session: SessionId, event: int, action: Sequence[float] | None = None, prompt: str | None = None
    ) -> None:
        """Accept a live control event. Applied is announced by the ChunkOut that first used it."""

    async def step(self, session: SessionId, event: int, action: Sequence[float]) -> ChunkOut: ...

    async def step_many(
        self, sessions: Sequence[SessionId], events: Sequence[int], actions: Sequence[Sequence[float]]
    ) -> Sequence[ChunkOut]:
        """All or nothing in validation: a bad item refuses the call before any session moves."""

    async def reset(self, session: SessionId, seed: int) -> SessionStatus: ...

    async def pause(self, session: SessionId) -> SessionStatus: ...

    async def resume(self, session: SessionId) -> SessionStatus: ...

    async def fork(self, session: SessionId, count: int) -> Sequence[SessionStatus]: ...

    async def snapshot(self, session: SessionId) -> SnapshotId: ...

    async def restore(self, session: SessionId, snapshot: SnapshotId) -> SessionStatus: ...

    def subscribe(self, session: SessionId, *, max_chunks: int = 2) -> AsyncIterator[Output]:
        """Outputs of a session from now on. Bounded: the oldest chunk is dropped when the reader is slow, notices
        never.

        Ends after the `ended` notice. Closing the iterator unsubscribes; it does not close the session.
        """

    async def stats(self) -> EngineStats: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...
