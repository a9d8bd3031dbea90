"""Forks, snapshots and restores: other lives of the same past, shared by reference.

Forks and snapshots happen at a committed boundary: no chunk in flight, so what is shared is immutable. They stand in
the session's agenda behind the steps that were asked for before them; nothing opens past them until they are done.
Room is promised when they are asked for (a child may come to own a full window, a snapshot what it keeps), so they
cannot fail for want of it later. A restore drops the work in flight and acts at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_stream.core.actions import ControlInbox
from physis_stream.core.capsule import Capsule
from physis_stream.core.commands import DropSnapshot, ForkSession, RestoreSnapshot, TakeSnapshot
from physis_stream.core.errors import Capacity, InvalidState, NotFound
from physis_stream.core.events import SessionForked, SnapshotRestored, SnapshotTaken, StateChanged
from physis_stream.core.flow import Flow
from physis_stream.core.ids import ChunkIndex, Epoch, SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.lives import Lives
from physis_stream.core.plan import CloneState
from physis_stream.core.roster import PendingOp, Roster, Snapshot
from physis_stream.core.session import RUNNING, QueuedStep, Session, State, Trigger


class Branches:
    """Makes and returns to other lives of a session."""

    def __init__(self, roster: Roster, flow: Flow, lives: Lives, limits: Limits) -> None:
        self._roster = roster
        self._flow = flow
        self._lives = lives
        self._limits = limits

    def fork(self, command: ForkSession, now_ns: int) -> None:
        """Promise the children their room; they come to be at the parent's next boundary.

        Capacity if there is no room.
        """
        roster, parent = self._roster, self._roster.find(command.session)
        roster.check(parent, Trigger.FORK)
        if not command.children or len(set(command.children)) != len(command.children):
            raise InvalidState("a fork names at least one child, and each once")
        for child in command.children:
            roster.check_new(child)
        obstacle = roster.admission.obstacle(parent.world, parent.pace, len(command.children))
        if obstacle is not None:
            message = f"no room for {len(command.children)} children: {obstacle}"
            raise Capacity(message, retry_after_s=self._limits.retry_after_s)
        for child in command.children:
            roster.claimed.add(child)
            roster.admission.admit(parent.world, parent.pace)
        parent.agenda.append(_Fork(roster, self._flow, parent, command.children))
        self.act_at_boundary(parent, now_ns)

    def snapshot(self, command: TakeSnapshot, now_ns: int) -> None:
        """Promise the snapshot its room; it is taken at the next boundary. Capacity if there is no room."""
        roster, session = self._roster, self._roster.find(command.session)
        roster.check(session, Trigger.SNAPSHOT)
        if command.snapshot in roster.snapshots or command.snapshot in roster.claimed_marks:
            raise InvalidState(f"snapshot id {command.snapshot} is already taken")
        if len(roster.snapshots) + len(roster.claimed_marks) >= self._limits.max_snapshots:
            raise Capacity(f"all {self._limits.max_snapshots} snapshots are taken: drop one")
        pages = session.world.retention.pages_at_boundary
        if not roster.admission.keep(session.world, pages):
            raise Capacity(f"no room for a snapshot of up to {pages} pages", retry_after_s=self._limits.retry_after_s)
        roster.claimed_marks.add(command.snapshot)
        session.agenda.append(_Keep(roster, session, command, pages))
        self.act_at_boundary(session, now_ns)

    def restore(self, command: RestoreSnapshot, now_ns: int) -> None:
        """Stand where the snapshot stands, in a new epoch of output."""
        roster, session = self._roster, self._roster.find(command.session)
        roster.check(session, Trigger.RESTORE)
        snapshot = roster.find_snapshot(command.snapshot)
        if snapshot.family != session.family:
            raise NotFound(f"there is no snapshot {command.snapshot} of session {command.session}")
        capsule = snapshot.capsule
        session.epoch = Epoch(session.epoch + 1)
        dropped = self._lives.void_work(session)
        session.table = snapshot.table.share()
        session.seed, session.next_chunk = capsule.seed, capsule.next_chunk
        prompts = session.inbox.restore(capsule.held, capsule.prompt)
        dropped += tuple(("control", str(event)) for event in prompts)
        self._lives.tell_dropped(session, dropped, "restored")
        roster.ops.append(PendingOp(CloneState(snapshot.id, session.id), session.id, session.generation))
        roster.tell(SnapshotRestored(session.id, snapshot.id, session.epoch, ChunkIndex(capsule.next_chunk - 1)))
        roster.move(session, Trigger.RESTORE)
        self._flow.restart_clock(session, now_ns)

    def drop(self, command: DropSnapshot) -> None:
        self._lives.drop_snapshot(self._roster.find_snapshot(command.snapshot))

    def act_at_boundary(self, session: Session, now_ns: int) -> None:
        """Carry out what stands first in the agenda and waits for a boundary, if the session is at one."""
        while session.at_boundary and session.agenda and not isinstance(session.agenda[0], QueuedStep):
            act = session.agenda.popleft()
            assert not isinstance(act, QueuedStep), "a step is not a boundary act"
            act.act(now_ns)
        self._flow.consider_opening(session, now_ns)


@dataclass(slots=True)
class _Fork:
    """A fork that waits for its parent's boundary."""

    roster: Roster
    flow: Flow
    parent: Session
    children: tuple[SessionId, ...]

    @property
    def promised_pages(self) -> int:
        return len(self.children) * self.parent.world.retention.pages_per_session

    def act(self, now_ns: int) -> None:
        parent = self.parent
        self.roster.tell(SessionForked(parent.id, self.children, ChunkIndex(parent.next_chunk - 1)))
        for name in self.children:
            child = self._child(name, now_ns)
            self.roster.claimed.discard(name)
            self.roster.enrol(child)
            self.roster.ops.append(PendingOp(CloneState(parent.id, name), name, child.generation))
            self.roster.tell(StateChanged(name, child.state.value, child.epoch))
            self.flow.restart_clock(child, now_ns)

    def cancel(self) -> tuple[str, str]:
        for name in self.children:
            self.roster.claimed.discard(name)
            self.roster.admission.release(self.parent.world, self.parent.pace)
        return "fork", self.children[0]

    def _child(self, name: SessionId, now_ns: int) -> Session:
        """The parent's present, with a control inbox of its own: its client counts events from anew."""
        parent = self.parent
        return Session(
            id=name,
            world=parent.world,
            pace=parent.pace,
            seed=parent.seed,
            family=parent.family,
            inbox=ControlInbox(parent.world.spec.action, parent.inbox.held, parent.inbox.prompt),
            pacer=parent.pacer.twin(),
            table=parent.table.share(),
            opened_ns=now_ns,
            state=State.READY if parent.state in RUNNING else State.PAUSED,
            epoch=parent.epoch,
            next_chunk=parent.next_chunk,
            num_released=parent.num_released,
            last_ready=parent.last_ready,
        )


@dataclass(slots=True)
class _Keep:
    """A snapshot that waits for its session's boundary, with the pages promised to it."""

    roster: Roster
    session: Session
    command: TakeSnapshot
    promised_pages: int

    def act(self, now_ns: int) -> None:
        session, name = self.session, self.command.snapshot
        table = session.table.share()
        self.roster.claimed_marks.discard(name)
        self.roster.admission.trim(session.world, self.promised_pages, table.num_pages)
        self.roster.snapshots[name] = Snapshot(
            name, session.id, session.family, session.world, Capsule.of(session), table, table.num_pages
        )
        self.roster.ops.append(PendingOp(CloneState(session.id, name), name))
        self.roster.tell(SnapshotTaken(session.id, name, ChunkIndex(session.next_chunk - 1)))

    def cancel(self) -> tuple[str, str]:
        self.roster.claimed_marks.discard(self.command.snapshot)
        self.roster.admission.forget(self.session.world, self.promised_pages)
        return "snapshot", self.command.snapshot
