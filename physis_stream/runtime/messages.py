"""What crosses between a service and its engine loop: asks go down, answers and publications come up. All of it
pickles.

Ids of sessions and snapshots are made by whoever asks. Every Ask is answered exactly once, by an Answer with its
number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from physis_stream.core.commands import Command
from physis_stream.core.errors import EngineError
from physis_stream.core.ids import EventId, SessionId
from physis_stream.core.spec import Action
from physis_stream.runtime.service import ChunkOut, EngineStats, Frames, Output, SessionStatus


@dataclass(frozen=True, slots=True)
class AskCommand:
    """Submit one core command, StepChunk excepted. Answer: see `call_desk`. `image` goes with OpenSession."""

    call: int
    command: Command
    image: Frames | None = None


@dataclass(frozen=True, slots=True)
class StepItem:
    """One chunk wanted in lockstep."""

    session: SessionId
    event: EventId
    action: Action


@dataclass(frozen=True, slots=True)
class AskSteps:
    """One chunk of each of these sessions; refused as a whole if one item is wrong. Answer: list[ChunkOut] in order."""

    call: int
    items: Sequence[StepItem]


@dataclass(frozen=True, slots=True)
class AskStatus:
    """Answer: SessionStatus."""

    call: int
    session: SessionId


@dataclass(frozen=True, slots=True)
class AskStats:
    """Answer: EngineStats."""

    call: int


@dataclass(frozen=True, slots=True)
class AskChunks:
    """Publish this session's chunks from now on, beginning with its newest (or, `wanted` False, stop). Answer: None."""

    call: int
    session: SessionId
    wanted: bool


Ask = AskCommand | AskSteps | AskStatus | AskStats | AskChunks

Value = None | SessionStatus | list[SessionStatus] | list[ChunkOut] | EngineStats


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an ask: a value, or the refusal."""

    call: int
    value: Value = None
    error: EngineError | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """Something that a session's subscribers hear."""

    output: Output


Reply = Answer | Published
