"""Births and deaths: admission in order, the first chunk of an epoch, failure, an end that leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator

from physis_stream.core.actions import ControlInbox
from physis_stream.core.commands import OpenSession
from physis_stream.core.errors import Capacity
from physis_stream.core.events import (
    RequestDropped,
    SessionClosed,
    SessionFailed,
    SessionOpened,
    SessionQueued,
    StateChanged,
)
from physis_stream.core.flow import Flow
from physis_stream.core.ids import ChunkIndex, Epoch, EventId
from physis_stream.core.kv_pages import PageTable
from physis_stream.core.limits import Limits
from physis_stream.core.pacing import Pacer
from physis_stream.core.plan import DropState, StartState
from physis_stream.core.roster import PendingOp, Roster, Snapshot
from physis_stream.core.session import OpenChunk, QueuedStep, Session, State, Trigger


class Lives:
    """Begins and ends sessions and their epochs."""

    def __init__(self, roster: Roster, flow: Flow, limits: Limits) -> None:
        self._roster = roster
        self._flow = flow
        self._limits = limits

    def open(self, command: OpenSession, now_ns: int) -> None:
        """Admit, else queue, else refuse with Capacity before anything changes."""
        roster = self._roster
        roster.check_new(command.session)
        world = roster.find_world(command.world)
        obstacle = "others wait first" if roster.queue else roster.admission.obstacle(world, command.pace)
        if obstacle is not None and (not command.wait or len(roster.queue) >= self._limits.max_queued):
            wait_s = self._limits.retry_after_s * (1 + len(roster.queue))
            raise Capacity(f"no room for another session: {obstacle}", retry_after_s=wait_s)
        session = Session(
            id=command.session,
            world=world,
            pace=command.pace,
            seed=command.seed,
            family=command.session,
            inbox=ControlInbox(world.spec.action),
            pacer=Pacer(world.chunk_ns, self._limits.margin_ns),
            table=PageTable(world.ledger, world.retention),
            opened_ns=now_ns,
        )
        roster.enrol(session)
        if obstacle is None:
            self._admit(session, now_ns)
            return
        roster.queue[session.id] = True
        roster.tell(StateChanged(session.id, session.state.value, session.epoch))
        roster.tell(SessionQueued(session.id, len(roster.queue), obstacle))

    def admit_waiting(self, now_ns: int) -> None:
        """Let in from the head of the queue while there is room, and tell the others their new places."""
        queue, moved = self._roster.queue, False
        while queue:
            session = self._roster.sessions[next(iter(queue))]
            if self._roster.admission.obstacle(session.world, session.pace) is not None:
                break
            del queue[session.id]
            self._admit(session, now_ns)
            moved = True
        if moved:
            self._tell_places()

    def begin_epoch(self, session: Session, seed: int, trigger: Trigger, now_ns: int) -> None:
        """Start over from a seed: nothing in flight survives, and the first chunk is primed."""
        session.epoch = Epoch(session.epoch + 1)
        self.tell_dropped(session, self.void_work(session), "reset")
        session.seed = seed
        self._roster.move(session, trigger, new_epoch=True)
        self._prime(session, now_ns)

    def fail(self, session: Session, reason: str) -> None:
        """Void the work; only reset and close are legal from here. Room stays promised, for the reset."""
        self.void_work(session)
        self._roster.move(session, Trigger.FAIL)
        self._roster.tell(SessionFailed(session.id, reason))

    def end(self, session: Session, reason: str, now_ns: int) -> None:
        """End a session at whatever stage it is.

        What the outstanding plan still uses is freed when its tick has ended.
        """
        roster, waited = self._roster, session.state is State.QUEUED
        self.void_work(session)
        roster.move(session, Trigger.CLOSE)
        roster.forget(session, reason)
        if waited:
            del roster.queue[session.id]
            roster.tell(SessionClosed(session.id, reason))
            self._tell_places()
            return
        roster.ops.append(PendingOp(DropState(session.id)))

        roster.part(session, reason)
        if not roster.has_family(session.family):
            for snapshot in [kept for kept in roster.snapshots.values() if kept.family == session.family]:
                self.drop_snapshot(snapshot)
        self.admit_waiting(now_ns)

    def void_work(self, session: Session) -> tuple[tuple[str, str], ...]:
        """Forget work in flight and what was asked for; pages are freed once no outstanding plan touches them.

        Return what will not happen now, as (kind, key) of RequestDropped.
        """
        session.generation += 1
        self._flow.withdraw(session)
        dropped = [("step" if flight.step == event else "control", str(event)) for flight, event in _unused(session)]
        dropped += [("control", str(event)) for event in session.inbox.flush()]
        for entry in session.agenda:
            dropped.append(("step", str(entry.event)) if isinstance(entry, QueuedStep) else entry.cancel())
        session.in_flight.clear()
        session.agenda.clear()
        session.buffered_ns = 0
        old, session.table = session.table, PageTable(session.world.ledger, session.world.retention)
        self._roster.retire(session, old)
        return tuple(dropped)

    def tell_dropped(self, session: Session, dropped: tuple[tuple[str, str], ...], why: str) -> None:
        """Say what will not happen to a session that lives on. For one that fails or ends, that fact says it all."""
        for kind, key in dropped:
            self._roster.tell(RequestDropped(session.id, kind, key, why))

    def drop_snapshot(self, snapshot: Snapshot) -> None:
        """Forget a snapshot; its pages live on where others share them."""
        roster = self._roster
        del roster.snapshots[snapshot.id]
        snapshot.table.release()
        roster.admission.forget(snapshot.world, snapshot.promised_pages)
        roster.ops.append(PendingOp(DropState(snapshot.id)))

    def _admit(self, session: Session, now_ns: int) -> None:
        self._roster.admission.admit(session.world, session.pace)
        self._roster.tell(SessionOpened(session.id))
        self._roster.move(session, Trigger.ADMIT)
        self._prime(session, now_ns)

    def _prime(self, session: Session, now_ns: int) -> None:
        start = StartState(session.id, session.epoch, session.seed)
        self._roster.ops.append(PendingOp(start, session.id, session.generation))
        first = OpenChunk(ChunkIndex(0), session.inbox.prime_control(), opened_ns=now_ns, asked_ns=now_ns, primed=True)
        session.in_flight.append(first)
        session.next_chunk = ChunkIndex(1)
        session.last_ready = -1
        self._flow.consider(session, now_ns)

    def _tell_places(self) -> None:
        for position, waiting in enumerate(self._roster.queue, start=1):
            reason = "no room yet" if position == 1 else "others wait first"
            self._roster.tell(SessionQueued(waiting, position, reason))


def _unused(session: Session) -> Iterator[tuple[OpenChunk, EventId]]:
    """Events that chunks in flight were the first to use and that were not told to be applied yet."""
    for flight in session.in_flight:
        if not flight.primed and flight.done < session.world.num_steps:
            for event in flight.control.applied:
                yield flight, event
