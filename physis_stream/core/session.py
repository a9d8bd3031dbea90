"""The life of one session: a table of legal moves, and the record that the engine core keeps.

    queued -> starting -> ready -> streaming <-> paused | reconnecting
    failed leaves by reset or close only; ended is final and leaves nothing behind

The record holds facts (cursor, chunks in flight, control, pages); who may run next is derived from them elsewhere.

    chunk      0 ....... finished | finished+1 .... next_chunk-1 | next_chunk ...
               done, KV committed |  in flight, oldest first     |  not open: control not fixed yet
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from physis_stream.core.actions import ControlInbox
from physis_stream.core.commands import Pace
from physis_stream.core.errors import InvalidState, SessionEnded
from physis_stream.core.ids import ChunkIndex, Epoch, EventId, SessionId
from physis_stream.core.kv_pages import PageTable
from physis_stream.core.pacing import Pacer
from physis_stream.core.plan import Control
from physis_stream.core.run_queue import WorkItem
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.spec import Action


class State(StrEnum):
    """Where a session is in its life. RECONNECTING: its client is away and may come back; no chunk opens."""

    QUEUED = "queued"
    STARTING = "starting"
    READY = "ready"
    STREAMING = "streaming"
    PAUSED = "paused"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    ENDED = "ended"


class Trigger(StrEnum):
    """What moves a session: commands of the client, and what the engine finds out."""

    ADMIT = "admit"
    PRIMED = "primed"
    CHUNK_OPENED = "chunk opened"
    CONTROL = "control"
    STEP = "step"
    PAUSE = "pause"
    RESUME = "resume"
    SUSPEND = "suspend"
    RESET = "reset"
    FORK = "fork"
    SNAPSHOT = "snapshot"
    RESTORE = "restore"
    FAIL = "fail"
    CLOSE = "close"


TRANSITIONS: dict[State, dict[Trigger, State]] = {
    State.QUEUED: {
        Trigger.ADMIT: State.STARTING,
        Trigger.CONTROL: State.QUEUED,
        Trigger.CLOSE: State.ENDED,
    },
    State.STARTING: {
        Trigger.PRIMED: State.READY,
        Trigger.CONTROL: State.STARTING,
        Trigger.STEP: State.STARTING,
        Trigger.RESET: State.STARTING,
        Trigger.FORK: State.STARTING,
        Trigger.SNAPSHOT: State.STARTING,
        Trigger.RESTORE: State.READY,
        Trigger.FAIL: State.FAILED,
        Trigger.CLOSE: State.ENDED,
    },
    State.READY: {
        Trigger.CHUNK_OPENED: State.STREAMING,
        Trigger.CONTROL: State.READY,
        Trigger.STEP: State.READY,
        Trigger.PAUSE: State.PAUSED,
        Trigger.RESUME: State.READY,
        Trigger.SUSPEND: State.RECONNECTING,
        Trigger.RESET: State.STARTING,
        Trigger.FORK: State.READY,
        Trigger.SNAPSHOT: State.READY,
        Trigger.RESTORE: State.READY,
        Trigger.FAIL: State.FAILED,
        Trigger.CLOSE: State.ENDED,
    },
    State.STREAMING: {
        Trigger.CHUNK_OPENED: State.STREAMING,
        Trigger.CONTROL: State.STREAMING,
        Trigger.STEP: State.STREAMING,
        Trigger.PAUSE: State.PAUSED,
        Trigger.RESUME: State.STREAMING,
        Trigger.SUSPEND: State.RECONNECTING,
        Trigger.RESET: State.STARTING,
        Trigger.FORK: State.STREAMING,
        Trigger.SNAPSHOT: State.STREAMING,
        Trigger.RESTORE: State.READY,
        Trigger.FAIL: State.FAILED,
        Trigger.CLOSE: State.ENDED,
    },
    State.PAUSED: {
        Trigger.CONTROL: State.PAUSED,
        Trigger.PAUSE: State.PAUSED,
        Trigger.RESUME: State.STREAMING,
        Trigger.SUSPEND: State.RECONNECTING,
        Trigger.RESET: State.STARTING,
        Trigger.FORK: State.PAUSED,
        Trigger.SNAPSHOT: State.PAUSED,
        Trigger.RESTORE: State.PAUSED,
        Trigger.FAIL: State.FAILED,
        Trigger.CLOSE: State.ENDED,
    },
    State.RECONNECTING: {
        Trigger.CONTROL: State.RECONNECTING,
        Trigger.RESUME: State.STREAMING,
        Trigger.SUSPEND: State.RECONNECTING,
        Trigger.RESET: State.STARTING,
        Trigger.SNAPSHOT: State.RECONNECTING,
        Trigger.FAIL: State.FAILED,
        Trigger.CLOSE: State.ENDED,
    },
    State.FAILED: {
        Trigger.RESET: State.STARTING,
        Trigger.CLOSE: State.ENDED,
    },
    State.ENDED: {},
}
"""The whole lifecycle. What is not here is refused, naming state and trigger."""

FIRST_EPOCH = Epoch(0)
FIRST_CHUNK = ChunkIndex(0)
RUNNING = frozenset({State.READY, State.STREAMING})
"""States in which chunks may open."""


def next_state(state: State, trigger: Trigger) -> State:
    """Where `trigger` leads from `state`; raises InvalidState, or SessionEnded, if the table has no entry."""
    target = TRANSITIONS[state].get(trigger)
    if target is not None:
        return target
    if state is State.ENDED:
        raise SessionEnded(f"{trigger} is not possible: the session has ended")
    raise InvalidState(f"{trigger} is not legal while the session is {state}")


@dataclass(slots=True)
class OpenChunk:
    """A chunk in flight. `done` rows of it are complete, `running` says if its next one is in the outstanding plan.

    A primed chunk has one row, which writes the committed version. `asked_ns` is when it could first have opened,
    `step` the StepChunk that it answers.
    """

    chunk: ChunkIndex
    control: Control
    opened_ns: int
    asked_ns: int
    step: EventId | None = None
    primed: bool = False
    done: int = 0
    running: bool = False


@dataclass(frozen=True, slots=True)
class QueuedStep:
    """A StepChunk that no chunk has been opened for yet."""

    event: EventId
    action: Action
    asked_ns: int


class BoundaryAct(Protocol):
    """What is to happen at the next committed boundary; exactly one of `act` and `cancel` is called, once.

    `promised_pages` are held for it meanwhile.
    """

    @property
    def promised_pages(self) -> int: ...

    def act(self, now_ns: int) -> None:
        """Do it: no chunk is in flight now."""

    def cancel(self) -> tuple[str, str]:
        """It will not happen: give back what was promised; return kind and key as RequestDropped names them."""


@dataclass(slots=True)
class Session:
    """Everything core knows of one session.

    `generation` changes whenever work in flight becomes void (reset, restore, failure, end). `agenda` holds queued
    steps and boundary acts in order of arrival. `family` is the first ancestor's id. `num_released` counts chunks
    handed out over all epochs. `waiting` are its items in the run queue by chunk; `rows_out` counts its rows in the
    outstanding plan.
    """

    id: SessionId
    world: ServedWorld
    pace: Pace
    seed: int
    family: SessionId
    inbox: ControlInbox
    pacer: Pacer
    table: PageTable
    opened_ns: int
    state: State = State.QUEUED
    epoch: Epoch = field(default=FIRST_EPOCH)
    generation: int = 0
    next_chunk: ChunkIndex = field(default=FIRST_CHUNK)
    in_flight: list[OpenChunk] = field(default_factory=list)
    agenda: deque[QueuedStep | BoundaryAct] = field(default_factory=deque)
    num_released: int = 0
    buffered_ns: int = 0
    waiting: dict[int, WorkItem] = field(default_factory=dict)
    rows_out: int = 0
    wake_ticket: int = 0
    last_ready: int = -1

    @property
    def finished(self) -> int:
        """The newest chunk of which every row is complete; -1 before the first."""
        return self.in_flight[0].chunk - 1 if self.in_flight else self.next_chunk - 1

    @property
    def at_boundary(self) -> bool:
        """If no chunk is in flight: what the session is made of is committed KV and a cursor."""
        return not self.in_flight and self.next_chunk > 0

    @property
    def num_queued_steps(self) -> int:
        return sum(isinstance(entry, QueuedStep) for entry in self.agenda)
