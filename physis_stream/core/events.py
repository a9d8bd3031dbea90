"""Facts come up: what happened in the engine core, in order, after it happened."""

from __future__ import annotations

from dataclasses import dataclass

from physis_stream.core.ids import ChunkIndex, Epoch, EventId, SessionId, SnapshotId


@dataclass(frozen=True, slots=True)
class SessionQueued:
    """No room now; position 1 is next. Sent again whenever the position changes."""

    session: SessionId
    position: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """Admitted: pages are reserved and the primed chunk is on its way."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class StateChanged:
    """The lifecycle table moved the session; `state` is a name of core.session.State."""

    session: SessionId
    state: str
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class ChunkReady:
    """A chunk's last step is done and its frames are decoded.

    `applied` are the control events that it was the first to use. `index_in_life` grows over epochs and never repeats:
    pts and frame ids derive from it.
    """

    session: SessionId
    epoch: Epoch
    chunk: ChunkIndex
    index_in_life: int
    applied: tuple[EventId, ...]
    opened_ns: int
    due_ns: int | None


@dataclass(frozen=True, slots=True)
class SessionForked:
    """Children exist and stand where the parent stands; their tensors are cloned before anything of them runs."""

    session: SessionId
    children: tuple[SessionId, ...]
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    session: SessionId
    snapshot: SnapshotId
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class SnapshotRestored:
    session: SessionId
    snapshot: SnapshotId
    epoch: Epoch
    chunk: ChunkIndex


@dataclass(frozen=True, slots=True)
class ControlIgnored:
    """A control or step whose id is not above the newest one seen, repeated or late. Nothing was changed."""

    session: SessionId
    event: EventId
    newest: EventId


@dataclass(frozen=True, slots=True)
class RequestDropped:
    """What was accepted and will not happen, because the session was reset or restored first; it lives on.

    `kind` is step | control | fork | snapshot; `key` the event id, the first child or the snapshot, as text. Where a
    session failed or closed, that fact voids all that was asked of it. A snapshot that was taken and could not be
    kept is named here as well.
    """

    session: SessionId
    kind: str
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionFailed:
    """A tick failed for this session; only reset and close are legal now."""

    session: SessionId
    reason: str


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The last event of a session; everything it held is free."""

    session: SessionId
    reason: str


Event = (
    SessionQueued
    | SessionOpened
    | StateChanged
    | ChunkReady
    | SessionForked
    | SnapshotTaken
    | SnapshotRestored
    | ControlIgnored
    | RequestDropped
    | SessionFailed
    | SessionClosed
)
