"""Watches the facts that an engine core tells and raises AssertionError where they contradict what was promised.

- index_in_life strictly rises over resets and restores; nothing of an old epoch comes out after the new one began
- chunks of an epoch come in order, without gaps
- no event id is applied twice, or before it was accepted, or both applied and dropped
- SessionClosed is a session's last fact; a failed session is silent until it is reset
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from physis_stream.core.commands import Command, StepChunk, SubmitControl
from physis_stream.core.events import (
    ChunkReady,
    Event,
    RequestDropped,
    SessionClosed,
    SessionFailed,
    SessionForked,
    SessionQueued,
    SnapshotRestored,
    StateChanged,
)
from physis_stream.core.ids import SessionId


@dataclass(slots=True)
class _Life:
    """What is known of one session."""

    epoch: int = 0
    next_chunk: int | None = None
    newest_index: int = -1
    closed: bool = False
    failed: bool = False
    accepted: set[int] = field(default_factory=set)
    applied: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)


class FactChecker:
    """Feed it every command that was accepted and every fact that was told, in order."""

    def __init__(self) -> None:
        self._lives: dict[SessionId, _Life] = {}
        self.chunks: list[ChunkReady] = []

    def accepted(self, command: Command) -> None:
        """Note a command that `submit` took."""
        if isinstance(command, (SubmitControl, StepChunk)):
            self._life(command.session).accepted.add(command.event)

    def observe(self, facts: Iterable[Event]) -> None:
        """Check facts against all that came before."""
        for fact in facts:
            life = self._life(fact.session)
            assert not life.closed, f"{fact} came after the session was closed"
            self._check(life, fact)

    def open_sessions(self) -> set[SessionId]:
        """Sessions that were heard of and not closed."""
        return {session for session, life in self._lives.items() if not life.closed}

    def _life(self, session: SessionId) -> _Life:
        return self._lives.setdefault(session, _Life())

    def _check(self, life: _Life, fact: Event) -> None:
        match fact:
            case ChunkReady():
                self._check_chunk(life, fact)
            case StateChanged():
                assert fact.epoch >= life.epoch, f"{fact} is of an epoch that is over"
                self._begin_epoch(life, fact.epoch)
                if fact.state == "starting":
                    life.failed = False
            case SnapshotRestored():
                self._begin_epoch(life, fact.epoch)
                life.next_chunk = fact.chunk + 1
            case SessionForked():
                for child in fact.children:
                    self._life(child).newest_index = life.newest_index
                    self._life(child).epoch = life.epoch
                    self._life(child).next_chunk = fact.chunk + 1
            case RequestDropped(kind="step" | "control"):
                assert int(fact.key) in life.accepted, f"{fact} drops an event that nobody sent"
                assert int(fact.key) not in life.applied | life.dropped, f"{fact} was applied or dropped before"
                life.dropped.add(int(fact.key))
            case SessionQueued():
                assert fact.position >= 1, f"{fact} has no place in the queue"
            case SessionFailed():
                life.failed = True
            case SessionClosed():
                life.closed = True
            case _:
                pass

    @staticmethod
    def _begin_epoch(life: _Life, epoch: int) -> None:
        if epoch > life.epoch:
            life.epoch, life.next_chunk = epoch, None

    def _check_chunk(self, life: _Life, fact: ChunkReady) -> None:
        self.chunks.append(fact)
        assert not life.failed, f"{fact} came from a failed session"
        assert fact.epoch == life.epoch, f"{fact} is not of epoch {life.epoch}"
        assert fact.index_in_life == life.newest_index + 1, f"{fact} does not follow index {life.newest_index}"
        assert life.next_chunk is None or fact.chunk == life.next_chunk, f"{fact} is not chunk {life.next_chunk}"
        applied = set(fact.applied)
        assert applied <= life.accepted, f"{fact} applies events that nobody sent"
        assert not applied & life.applied, f"{fact} applies events a second time"
        assert not applied & life.dropped, f"{fact} applies events that were dropped"
        life.applied |= applied
        life.newest_index, life.next_chunk = fact.index_in_life, fact.chunk + 1
