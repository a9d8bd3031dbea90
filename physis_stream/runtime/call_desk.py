"""Turns asks into core commands, and core events into answers and publications. It reads no clock and blocks on
nothing.

What each ask is answered with, and when:

    OpenSession, ResetSession, PauseSession, ResumeSession, RestoreSnapshot   at once, the session's status
    CloseSession, SubmitControl, DropSnapshot, ReportPlayout, AskChunks       at once, None
    AskSteps          when the last of its chunks is ready, the chunks
    ForkSession       when the children exist, their statuses
    TakeSnapshot      when it is taken, the session's status

An ask that waits is refused when its session fails, ends, or leaves the epoch in which it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from physis_stream.core import commands, events
from physis_stream.core.commands import Command, Pace
from physis_stream.core.errors import EngineError, InvalidAction, InvalidState, SessionEnded
from physis_stream.core.ids import SessionId
from physis_stream.core.spec import WorldSpec
from physis_stream.runtime.messages import (
    Answer,
    AskChunks,
    AskCommand,
    AskStatus,
    AskSteps,
    Published,
    Reply,
    StepItem,
    Value,
)
from physis_stream.runtime.service import ChunkOut, Notice
from physis_stream.runtime.session_register import SessionRecord, SessionRegister


class Submit(Protocol):
    """The part of the engine core that takes commands."""

    def submit(self, command: Command, now_ns: int) -> Iterable[events.Event]: ...


ToChunk = Callable[[events.ChunkReady], ChunkOut]
"""Gives the finished chunk that an event announces: its frames are taken from the executor."""

_Key = int | str | tuple[SessionId, ...]
"""What is waited for: a chunk by its event id, a snapshot by its id, a fork by its children."""


@dataclass(slots=True, eq=False)
class _Wait:
    """An ask under way. `places` says which place of `chunks` a (session, event) fills; `done` once it was answered."""

    call: int
    places: dict[tuple[SessionId, int], int] = field(default_factory=dict)
    chunks: dict[int, ChunkOut] = field(default_factory=dict)
    done: bool = False


class CallDesk:
    """One engine's desk; see the module. `to_chunk` is called exactly once for each ChunkReady."""

    def __init__(self, core: Submit, spec: WorldSpec, to_chunk: ToChunk) -> None:
        self.register = SessionRegister()
        self._core, self._spec, self._to_chunk = core, spec, to_chunk
        self._waits: dict[SessionId, dict[_Key, list[_Wait]]] = {}
        self._replies: list[Reply] = []

    def take_replies(self) -> list[Reply]:
        """What has come up since the last call, in order."""
        replies, self._replies = self._replies, []
        return replies

    def ask(self, ask: AskCommand | AskSteps | AskStatus | AskChunks, now_ns: int) -> None:
        """Take one ask; its answer is among the replies now or later. A refusal is an answer: never raises
        EngineError.
        """
        try:
            if isinstance(ask, AskCommand):
                self._command(ask, now_ns)
            elif isinstance(ask, AskSteps):
                self._steps(ask, now_ns)
            elif isinstance(ask, AskChunks):
                self._chunks(ask)
            else:
                self._answer(ask.call, self.register.find(ask.session).status())
        except EngineError as refusal:
            self._replies.append(Answer(ask.call, error=refusal))

    def hear(self, facts: Iterable[events.Event]) -> None:
        """Take what the core says happened."""
        for fact in facts:
            self._hear(fact)

    def _command(self, ask: AskCommand, now_ns: int) -> None:
        command = ask.command
        match command:
            case commands.OpenSession():
                self._open(ask.call, command, now_ns)
            case commands.ResetSession() | commands.RestoreSnapshot():
                self._restart(ask.call, command, now_ns)
            case commands.ForkSession():
                self._begin(command.session, command.children, ask.call, command, now_ns)
            case commands.TakeSnapshot():
                self._begin(command.session, command.snapshot, ask.call, command, now_ns)
            case commands.CloseSession():
                if not self.register.find(command.session).ended:
                    self._submit(command, now_ns)
                self._answer(ask.call)
            case commands.DropSnapshot():
                self._submit(command, now_ns)
                self._answer(ask.call)
            case commands.SubmitControl():
                record = self.register.live(command.session)
                self._submit(command, now_ns)
                record.newest_event = max(command.event, record.newest_event or command.event)
                self._answer(ask.call)
            case commands.ReportPlayout():
                self.register.live(command.session)
                self._submit(command, now_ns)
                self._answer(ask.call)
            case commands.StepChunk():
                raise InvalidState("steps are asked for with AskSteps")
            case _:
                record = self.register.live(command.session)
                self._submit(command, now_ns)
                self._answer(ask.call, record.status())

    def _open(self, call: int, command: commands.OpenSession, now_ns: int) -> None:
        record = self.register.add(command.session, self._spec.world, command.pace)
        try:
            self._submit(command, now_ns)
        except EngineError:
            self.register.remove(command.session)
            raise
        self._answer(call, record.status())

    def _restart(self, call: int, command: commands.ResetSession | commands.RestoreSnapshot, now_ns: int) -> None:
        """A new epoch begins with the command, whether or not the state changes with it."""
        record = self.register.live(command.session)
        before = record.epoch
        self._submit(command, now_ns)
        self._begin_epoch(record, before + 1)
        self._answer(call, record.status())

    def _begin(self, session: SessionId, key: _Key, call: int, command: Command, now_ns: int) -> None:
        """Submit a command whose answer comes with an event; nothing waits if it is refused."""
        self.register.live(session)
        wait = _Wait(call)
        waits = self._waits.setdefault(session, {}).setdefault(key, [])
        waits.append(wait)
        try:
            self._submit(command, now_ns)
        except EngineError:
            waits.remove(wait)
            raise

    def _steps(self, ask: AskSteps, now_ns: int) -> None:
        """Check every item before the first is submitted, so that a wrong one moves nothing."""
        if len({item.session for item in ask.items}) != len(ask.items):
            raise InvalidAction("a session may stand only once in a batch of steps")
        fresh = [item for item in ask.items if self._check_step(item)]
        wait = _Wait(ask.call)
        for place, item in enumerate(ask.items):
            wait.places[item.session, item.event] = place
            if self._finished(item) is None:
                self._waits.setdefault(item.session, {}).setdefault(item.event, []).append(wait)
        try:
            for item in fresh:
                self._submit(commands.StepChunk(item.session, item.event, item.action), now_ns)
                self.register.live(item.session).newest_event = item.event
        except EngineError:
            wait.done = True
            raise
        for item in ask.items:
            chunk = self._finished(item)
            if chunk is not None:
                self._fill(wait, chunk, item.event)
        if not ask.items:
            self._answer(ask.call, [])

    def _finished(self, item: StepItem) -> ChunkOut | None:
        """The session's newest chunk, if this very step made it."""
        newest = self.register.live(item.session).newest_chunk
        return newest if newest is not None and item.event in newest.applied else None

    def _check_step(self, item: StepItem) -> bool:
        """If the item is new (True) or repeats a step that is under way or was the last (False); raises for a wrong
        one.
        """
        record = self.register.live(item.session)
        if record.pace is not Pace.LOCKSTEP:
            raise InvalidState("step is for lockstep sessions; this one is realtime")
        if record.state not in ("starting", "ready", "streaming"):
            raise InvalidState(f"step is not legal while the session is {record.state}")
        self._spec.action.check(item.action)
        if record.newest_event is None or item.event > record.newest_event:
            return True
        waits = self._waits.get(item.session, {}).get(item.event, ())
        if any(not wait.done for wait in waits) or self._finished(item) is not None:
            return False
        raise InvalidState(f"event {item.event} was used before; event ids grow, the newest was {record.newest_event}")

    def _chunks(self, ask: AskChunks) -> None:
        record = self.register.find(ask.session)
        self._answer(ask.call)
        if ask.wanted and record.ended_reason is not None:
            self._publish_ended(ask.session, record.ended_reason)
        elif ask.wanted and record.newest_chunk is not None:
            self._replies.append(Published(record.newest_chunk))
        record.listening = ask.wanted

    def _submit(self, command: Command, now_ns: int) -> None:
        self.hear(self._core.submit(command, now_ns))

    def _hear(self, fact: events.Event) -> None:
        match fact:
            case events.ChunkReady():
                self._on_chunk(fact)
            case events.SessionForked():
                self._on_forked(fact)
            case events.SnapshotTaken():
                self._settle(fact.session, fact.snapshot, self.register.find(fact.session).status())
            case events.RequestDropped():
                self._on_dropped(fact)
            case events.SessionClosed():
                self._refuse_all(fact.session, SessionEnded(f"the session is over: {fact.reason}"))
                self.register.end(fact.session, fact.reason)
                self._publish_ended(fact.session, fact.reason)
            case events.SessionFailed():
                self._refuse_all(fact.session, EngineError(f"the session failed: {fact.reason}"))
                self._publish(fact.session, "error", code="internal", message=fact.reason, reason=fact.reason)
            case _:
                self._on_standing(fact)

    def _on_standing(self, fact: events.Event) -> None:
        """Events that change where a session stands."""
        record = self.register.get(fact.session)
        if record is None:
            return
        match fact:
            case events.SessionQueued():
                record.queue_position = fact.position
                self._publish(fact.session, "queue", position=fact.position, reason=fact.reason)
            case events.SessionOpened():
                record.queue_position = 0
            case events.StateChanged():
                self._begin_epoch(record, fact.epoch)
                record.state = fact.state
                self._publish(fact.session, "status", state=fact.state, epoch=fact.epoch)
            case events.SnapshotRestored():
                self._begin_epoch(record, fact.epoch)

    def _begin_epoch(self, record: SessionRecord, epoch: int) -> None:
        """What was asked in an older epoch will not come, and its newest chunk is not to be shown again."""
        if epoch > record.epoch:
            record.epoch, record.newest_chunk = epoch, None
            self._refuse_all(record.session, InvalidState("dropped: the session was reset or restored"))

    def _on_chunk(self, fact: events.ChunkReady) -> None:
        chunk = self._to_chunk(fact)
        record = self.register.live(fact.session)
        record.chunks, record.newest_chunk = fact.index_in_life + 1, chunk
        waits = self._waits.get(fact.session, {})
        for event in fact.applied:
            for wait in waits.pop(event, ()):
                self._fill(wait, chunk, event)
        if record.listening:
            self._replies.append(Published(chunk))

    def _fill(self, wait: _Wait, chunk: ChunkOut, event: int) -> None:
        wait.chunks[wait.places[chunk.session, event]] = chunk
        if len(wait.chunks) == len(wait.places) and not wait.done:
            wait.done = True
            self._answer(wait.call, [wait.chunks[place] for place in range(len(wait.chunks))])

    def _on_forked(self, fact: events.SessionForked) -> None:
        parent = self.register.live(fact.session)
        for child in fact.children:
            self.register.add_child(parent, child)
        self._settle(fact.session, fact.children, [self.register.live(child).status() for child in fact.children])

    def _on_dropped(self, fact: events.RequestDropped) -> None:
        """One request will not happen; what goes with its session is refused by the event that says so."""
        for key, waits in self._waits.get(fact.session, {}).items():
            if fact.key in (str(key), key[0] if isinstance(key, tuple) else None):
                self._refuse(waits, InvalidState(f"{fact.kind} dropped: the session was {fact.reason}"))

    def _settle(self, session: SessionId, key: _Key, value: Value) -> None:
        for wait in self._waits.get(session, {}).pop(key, ()):
            self._answer(wait.call, value)

    def _refuse_all(self, session: SessionId, refusal: EngineError) -> None:
        for waits in self._waits.pop(session, {}).values():
            self._refuse(waits, refusal)

    def _refuse(self, waits: list[_Wait], refusal: EngineError) -> None:
        for wait in waits:
            if not wait.done:
                wait.done = True
                self._replies.append(Answer(wait.call, error=refusal))
        waits.clear()

    def _answer(self, call: int, value: Value = None) -> None:
        self._replies.append(Answer(call, value))

    def _publish(self, session: SessionId, kind: str, **detail: object) -> None:
        self._replies.append(Published(Notice(session, kind, detail)))

    def _publish_ended(self, session: SessionId, reason: str) -> None:
        self._publish(session, "ended", reason=reason)
