"""Sessions as their clients see them: the status of each, its newest chunk, and why it ended. Fed by events; decides
nothing.

An ended session is remembered for a while, without its chunk, so that a late caller hears the reason instead of "not
found".
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from physis_stream.core.commands import Pace
from physis_stream.core.errors import NotFound, SessionEnded
from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import ChunkOut, SessionStatus

MAX_REMEMBERED = 1024
"""Ended sessions that are kept for their reason; the oldest go first."""


@dataclass(slots=True)
class SessionRecord:
    """One session. `newest_event` is the highest event id that it was given; `listening` if chunks are published."""

    session: SessionId
    world: str
    pace: Pace
    state: str = "queued"
    epoch: int = 0
    chunks: int = 0
    queue_position: int = 0
    ended_reason: str | None = None
    newest_event: int | None = None
    newest_chunk: ChunkOut | None = None
    listening: bool = False

    @property
    def ended(self) -> bool:
        return self.ended_reason is not None

    def status(self) -> SessionStatus:
        return SessionStatus(
            session=self.session,
            world=self.world,
            state=self.state,
            pace=self.pace,
            epoch=self.epoch,
            chunks=self.chunks,
            queue_position=self.queue_position,
            ended_reason=self.ended_reason,
        )


class SessionRegister:
    """Records by id. Live ones stay until `end`; ended ones until `MAX_REMEMBERED` others have ended."""

    def __init__(self) -> None:
        self._live: dict[SessionId, SessionRecord] = {}
        self._ended: OrderedDict[SessionId, SessionRecord] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[SessionRecord]:
        return iter(tuple(self._live.values()))

    def add(self, session: SessionId, world: str, pace: Pace) -> SessionRecord:
        """Begin a record; the id must be new."""
        record = SessionRecord(session, world, pace)
        self._live[session] = record
        return record

    def add_child(self, parent: SessionRecord, child: SessionId) -> None:
        """Begin the record of a fork, which stands where its parent stands and has seen the same newest chunk."""
        newest = parent.newest_chunk
        self._live[child] = dataclasses.replace(
            parent,
            session=child,
            state="ready" if parent.state in ("ready", "streaming") else "paused",
            listening=False,
            newest_event=None,
            newest_chunk=None if newest is None else dataclasses.replace(newest, session=child, applied=()),
        )

    def get(self, session: SessionId) -> SessionRecord | None:
        """The record of a live or recently ended session."""
        return self._live.get(session) or self._ended.get(session)

    def find(self, session: SessionId) -> SessionRecord:
        """As `get`; raises NotFound."""
        record = self.get(session)
        if record is None:
            raise NotFound("no such session")
        return record

    def live(self, session: SessionId) -> SessionRecord:
        """The record of a live session; raises NotFound, or SessionEnded with the reason."""
        record = self.find(session)
        if record.ended:
            raise SessionEnded(f"the session is over: {record.ended_reason}")
        return record

    def end(self, session: SessionId, reason: str) -> None:
        """Move a record to the ended ones and let go of its chunk."""
        record = self._live.pop(session, None)
        if record is None:
            return
        record.state, record.ended_reason, record.newest_chunk, record.queue_position = "ended", reason, None, 0
        self._ended[session] = record
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def remove(self, session: SessionId) -> None:
        """Forget a record that never became a session."""
        self._live.pop(session, None)
