"""Commands go down: what the shell asks of the engine core. Each is data; none says how."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.core.spec import Action


class Pace(StrEnum):
    """REALTIME opens chunks by the clock, LOCKSTEP one for each StepChunk."""

    REALTIME = "realtime"
    LOCKSTEP = "lockstep"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Open a session; chunk 0 is primed from the world's starts (by seed) or an image that the runtime holds for it.

    `world` may be None where the core serves one world. `wait` allows queueing; without it no room means Capacity.
    """

    session: SessionId
    seed: int
    pace: Pace
    world: str | None = None
    wait: bool = True


@dataclass(frozen=True, slots=True)
class CloseSession:
    """End a session at once, whatever its work is doing. Closing twice is no error."""

    session: SessionId
    reason: str = "closed"


@dataclass(frozen=True, slots=True)
class SubmitControl:
    """A live control event: accepted now, snapshotted into the next chunk that opens, acknowledged with that chunk."""

    session: SessionId
    event: EventId
    action: Action | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class StepChunk:
    """Lockstep: produce exactly one chunk under this action. Several may be queued; the rule says how they overlap."""

    session: SessionId
    event: EventId
    action: Action


@dataclass(frozen=True, slots=True)
class ResetSession:
    """Begin a new epoch with this seed; nothing of the old epoch comes out afterwards."""

    session: SessionId
    seed: int


@dataclass(frozen=True, slots=True)
class PauseSession:
    """Open no further chunk; those in flight finish."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class SuspendSession:
    """The client is away and may come back: open no further chunk until resume (state reconnecting)."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class ResumeSession:
    """Go on from where pause or suspend stopped."""

    session: SessionId


@dataclass(frozen=True, slots=True)
class ForkSession:
    """Make children that share the parent's past by reference; happens at the parent's next committed boundary."""

    session: SessionId
    children: tuple[SessionId, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Keep the session's state at its next committed boundary under this id."""

    session: SessionId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class RestoreSnapshot:
    """Put the session back to a snapshot of its own family (the tree of forks it belongs to), at once.

    Work in flight is dropped and a new epoch begins for output; chunks, noise and control go on as they would have
    then.
    """

    session: SessionId
    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """Forget a snapshot and free what only it held."""

    snapshot: SnapshotId


@dataclass(frozen=True, slots=True)
class ReportPlayout:
    """Media time that the client has buffered, for playout slack."""

    session: SessionId
    buffered_ns: int


Command = (
    OpenSession
    | CloseSession
    | SubmitControl
    | StepChunk
    | ResetSession
    | PauseSession
    | SuspendSession
    | ResumeSession
    | ForkSession
    | TakeSnapshot
    | RestoreSnapshot
    | DropSnapshot
    | ReportPlayout
)
