"""Who is here: sessions, those that wait to be admitted, snapshots, and what is still to be told or done.

It finds and moves sessions by the lifecycle table, keeps facts until they are reported and state ops until a plan
carries them, and holds back what the outstanding plan still uses (pages, promises, the last event) until its tick has
ended. It decides nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from physis_stream.core.admission import Admission
from physis_stream.core.capsule import Capsule
from physis_stream.core.errors import InvalidState, NotFound, SessionEnded
from physis_stream.core.events import Event, SessionClosed, StateChanged
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.core.kv_pages import PageTable
from physis_stream.core.plan import Plan, StateOp
from physis_stream.core.run_queue import WorkItem
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.session import Session, State, Trigger, next_state

MAX_REMEMBERED_ENDS = 256
"""Ended sessions whose id and reason are remembered for late commands; nothing else of them is kept."""


@dataclass(slots=True)
class Snapshot:
    """A kept state: its capsule, and the pages it shares with whoever else has them."""

    id: SnapshotId
    owner: SessionId
    family: SessionId
    world: ServedWorld
    capsule: Capsule
    table: PageTable
    promised_pages: int


@dataclass(slots=True)
class PendingOp:
    """A state op that no plan has carried yet.

    `party` is the session or snapshot that fails if it does, with its generation.
    """

    op: StateOp
    party: SessionId | SnapshotId | None = None
    generation: int = 0


@dataclass(slots=True)
class Outstanding:
    """The plan that is being carried out.

    `rows` go with plan.rows; `users` are the sessions whose pages it touches.
    """

    plan: Plan
    started_ns: int
    rows: list[tuple[Session, int, WorkItem]]
    ops: list[PendingOp]
    users: frozenset[SessionId]


class Roster:
    """Shared facts of one engine core."""

    def __init__(self, worlds: Mapping[str, ServedWorld], admission: Admission) -> None:
        self.worlds = worlds
        self.admission = admission
        self.sessions: dict[SessionId, Session] = {}
        self.queue: OrderedDict[SessionId, bool] = OrderedDict()
        self.snapshots: dict[SnapshotId, Snapshot] = {}
        self.claimed: set[SessionId] = set()
        self.claimed_marks: set[SnapshotId] = set()
        self.ops: list[PendingOp] = []
        self.outstanding: Outstanding | None = None
        self._facts: list[Event] = []
        self.held_tables: list[tuple[Session, PageTable]] = []
        self.held_ends: list[tuple[Session, str]] = []
        self._ends: OrderedDict[SessionId, str] = OrderedDict()
        self._families: dict[SessionId, int] = {}

    def find(self, session: SessionId) -> Session:
        """The session of this id; raises SessionEnded for a recent end, NotFound for an id that is unknown."""
        found = self.sessions.get(session)
        if found is not None:
            return found
        if session in self._ends:
            raise SessionEnded(f"session {session} has ended: {self._ends[session]}")
        raise NotFound(f"there is no session {session}")

    def find_snapshot(self, snapshot: SnapshotId) -> Snapshot:
        found = self.snapshots.get(snapshot)
        if found is None:
            raise NotFound(f"there is no snapshot {snapshot}")
        return found

    def find_world(self, name: str | None) -> ServedWorld:
        if name is None and len(self.worlds) == 1:
            return next(iter(self.worlds.values()))
        if name is None or name not in self.worlds:
            raise NotFound(f"there is no world {name}; served are {', '.join(sorted(self.worlds))}")
        return self.worlds[name]

    def check_new(self, session: SessionId) -> None:
        """Raise InvalidState if this id is in use, promised to a fork, or lately ended: ids are never used again."""
        if session in self.sessions or session in self.claimed or session in self._ends:
            raise InvalidState(f"session id {session} is already taken")

    def enrol(self, session: Session) -> None:
        """Enter a new session; its id has passed `check_new`."""
        self.sessions[session.id] = session
        self._families[session.family] = self._families.get(session.family, 0) + 1

    def tell(self, fact: Event) -> None:
        self._facts.append(fact)

    def told(self) -> tuple[Event, ...]:
        """Hand out the facts since the last call, in order."""
        facts = tuple(self._facts)
        self._facts.clear()
        return facts

    def move(self, session: Session, trigger: Trigger, *, new_epoch: bool = False) -> None:
        """Move by the table and tell it if state or epoch changed; raises InvalidState before anything changes."""
        target = next_state(session.state, trigger)
        if new_epoch or target is not session.state:
            session.state = target
            self.tell(StateChanged(session.id, target.value, session.epoch))

    def check(self, session: Session, trigger: Trigger) -> None:
        """Raise InvalidState if `trigger` is not legal now."""
        next_state(session.state, trigger)

    def retire(self, session: Session, table: PageTable) -> None:
        """Free a table that the session has given up, once no outstanding plan touches the session's pages."""
        self.held_tables.append((session, table))
        self._let_go()

    def part(self, session: Session, reason: str) -> None:
        """Take back an ended session's promises and tell its end, once no outstanding plan touches its pages."""
        self.held_ends.append((session, reason))
        self._let_go()

    def end_tick(self) -> None:
        """The outstanding plan has been carried out: let go of what it was still using."""
        self.outstanding = None
        self._let_go()

    def _let_go(self) -> None:
        users = self.outstanding.users if self.outstanding is not None else frozenset()
        for session, table in self.held_tables:
            if session.id not in users:
                table.release()
        self.held_tables = [held for held in self.held_tables if held[0].id in users]
        for session, reason in self.held_ends:
            if session.id not in users:
                self.admission.release(session.world, session.pace)
                self.tell(SessionClosed(session.id, reason))
        self.held_ends = [held for held in self.held_ends if held[0].id in users]

    def forget(self, session: Session, reason: str) -> None:
        """Strike out an ended session; only its id and reason are remembered, for a while."""
        assert session.state is State.ENDED, "a session that has not ended cannot be forgotten"
        del self.sessions[session.id]
        self._families[session.family] -= 1
        if not self._families[session.family]:
            del self._families[session.family]
        self._ends[session.id] = reason
        while len(self._ends) > MAX_REMEMBERED_ENDS:
            self._ends.popitem(last=False)

    def has_family(self, family: SessionId) -> bool:
        """If any live session belongs to this tree of forks."""
        return family in self._families

    def count(self, *states: State) -> int:
        return sum(session.state in states for session in self.sessions.values())
