"""The flow of work: which rows could run, when the next chunk opens, and what a chosen item becomes in a plan.

    consider_opening -> wake-up time (realtime) or run queue -> select -> open the chunk: control is fixed here -> row
    row complete -> the chunk advances -> rows that waited for it enter the run queue

Nothing scans all sessions: a session is looked at when something of its own has changed, or when its wake-up time has
come.
"""

from __future__ import annotations

import heapq
from functools import partial

from physis_stream.core.commands import Pace
from physis_stream.core.cost_model import CostModel
from physis_stream.core.ids import ChunkIndex, SessionId
from physis_stream.core.pacing import Forecast
from physis_stream.core.plan import Decode, Role, Row
from physis_stream.core.roster import Roster
from physis_stream.core.run_queue import WorkItem
from physis_stream.core.scheduler import Scheduler
from physis_stream.core.seeds import noise_key
from physis_stream.core.session import RUNNING, OpenChunk, QueuedStep, Session, Trigger


class Flow:
    """Run queue and wake-up times of all sessions."""

    def __init__(self, roster: Roster, scheduler: Scheduler, cost: CostModel) -> None:
        self._roster = roster
        self._scheduler = scheduler
        self._cost = cost
        self._wakes: list[tuple[int, SessionId, int]] = []

    def next_wake_ns(self) -> int | None:
        """When the next realtime chunk wants to open; None if none is foreseen."""
        while self._wakes and not self._awaits(self._wakes[0]):
            heapq.heappop(self._wakes)
        return self._wakes[0][0] if self._wakes else None

    def wake(self, now_ns: int, early_ns: int = 0) -> bool:
        """Let the sessions whose time has come, or comes within `early_ns`, want their next chunk; returns if there
        were any. Sessions that open together share batches from then on, and a row in company costs a fraction of one
        alone. Let only those whose time has come take others along: if every tick did, all would come earlier and none
        together."""
        names = []
        while (open_ns := self.next_wake_ns()) is not None and open_ns <= now_ns + early_ns:
            names.append(heapq.heappop(self._wakes)[1])
        for name in names:
            self.consider_opening(self._roster.sessions[name], now_ns, early_ns)
        return bool(names)

    def consider(self, session: Session, now_ns: int) -> None:
        """Bring the session's items up to date after something of it has changed."""
        for index, flight in enumerate(session.in_flight):
            if (
                not flight.running
                and flight.chunk not in session.waiting
                and session.world.may_run(session.in_flight, index)
            ):
                self._push(session, self._item(session, flight, now_ns))
        self.consider_opening(session, now_ns)

    def consider_opening(self, session: Session, now_ns: int, early_ns: int = 0) -> None:
        """Want the next chunk now, later, or not at all, as the facts are; `early_ns` before its time is now."""
        session.wake_ticket += 1
        chunk = session.next_chunk
        if not self._may_open(session):
            self._cancel(session, chunk)
            return
        if chunk in session.waiting:
            return
        if session.pace is Pace.LOCKSTEP:
            step = session.agenda[0]
            assert isinstance(step, QueuedStep), "a boundary act forbids opening"
            self._push(
                session,
                WorkItem(session.id, chunk, 0, opens=True, decodes=self._decodes(session, 0), asked_ns=step.asked_ns),
            )
            return
        previous_ready = session.last_ready == chunk - 1
        opens = partial(session.pacer.open_ns, chunk, previous_ready=previous_ready, forecast=self._forecast(session))
        if opens(early_ns=early_ns) <= now_ns:
            self._push(session, self._opening(session, now_ns))
        else:
            self._sleep(session, opens())

    def restart_clock(self, session: Session, now_ns: int) -> None:
        """Begin again after a pause: the next chunk may open now and is due as soon as it can be ready."""
        lead_ns = session.pacer.lead_ns(self._forecast(session))
        session.pacer.anchor(session.next_chunk, now_ns + lead_ns)
        session.last_ready = -1
        self.consider_opening(session, now_ns)

    def _sleep(self, session: Session, open_ns: int) -> None:
        """Foresee a wake-up; those that were overtaken are dropped when met, or in bulk when they are the most."""
        heapq.heappush(self._wakes, (open_ns, session.id, session.wake_ticket))
        if len(self._wakes) > 2 * len(self._roster.sessions) + 64:
            self._wakes = [wake for wake in self._wakes if self._awaits(wake)]
            heapq.heapify(self._wakes)

    def _awaits(self, wake: tuple[int, SessionId, int]) -> bool:
        session = self._roster.sessions.get(wake[1])
        return session is not None and session.wake_ticket == wake[2]

    def reorder(self, session: Session, now_ns: int) -> None:
        """Re-key the session's waiting items after its slack has changed; their age is kept."""
        for chunk, old in list(session.waiting.items()):
            self._cancel(session, chunk)
            if old.opens:
                item = self._opening(session, old.asked_ns)
            else:
                flight = next(f for f in session.in_flight if f.chunk == chunk)
                item = self._item(session, flight, now_ns)
                item.asked_ns = old.asked_ns
            self._push(session, item)

    def withdraw(self, session: Session) -> None:
        """Take all of the session's items and wake-ups out."""
        session.wake_ticket += 1
        for chunk in list(session.waiting):
            self._cancel(session, chunk)

    def start_row(self, session: Session, item: WorkItem, now_ns: int) -> tuple[Row, Decode | None]:
        """Turn a chosen item into a row, opening its chunk if need be, and the decode that its last step brings."""
        del session.waiting[item.chunk]
        if item.opens:
            self._open(session, item, now_ns)
        flight = next(f for f in session.in_flight if f.chunk == item.chunk)
        flight.running = True
        world, chunk = session.world, flight.chunk
        role = Role.PRIME if flight.primed else Role.DENOISE if flight.done < world.num_steps else Role.COMMIT
        step = world.committed if flight.primed else flight.done
        context = () if flight.primed else world.context(session.table, chunk, step)
        row = Row(
            session=session.id,
            epoch=session.epoch,
            chunk=chunk,
            step=step,
            role=role,
            position=len(context),
            context=context,
            write=session.table.write(chunk, step),
            control=flight.control,
            noise_key=noise_key(session.seed, chunk, step) if role is Role.DENOISE else None,
        )
        decode = Decode(session.id, session.epoch, chunk, first=flight.primed) if item.decodes else None
        return row, decode

    def _forecast(self, session: Session) -> Forecast:
        shape = session.world.spec.shape_key
        tick_ns = self._cost.tick_ns(shape)
        return Forecast(session.world.num_steps * tick_ns + self._decode_ns(shape), tick_ns)

    def _open(self, session: Session, item: WorkItem, now_ns: int) -> None:
        chunk = session.next_chunk
        assert chunk == item.chunk, "chunks open in order"
        if session.pace is Pace.LOCKSTEP:
            step = session.agenda.popleft()
            assert isinstance(step, QueuedStep), "a boundary act forbids opening"
            flight = OpenChunk(
                chunk, session.inbox.open_step(step.event, step.action), now_ns, item.asked_ns, step.event
            )
        else:
            flight = OpenChunk(chunk, session.inbox.open_live(), now_ns, item.asked_ns)
        session.in_flight.append(flight)
        session.next_chunk = ChunkIndex(chunk + 1)
        self._roster.move(session, Trigger.CHUNK_OPENED)

    def _may_open(self, session: Session) -> bool:
        if session.state not in RUNNING or len(session.in_flight) >= session.world.depth:
            return False
        if session.agenda and not isinstance(session.agenda[0], QueuedStep):
            return False
        if session.pace is Pace.LOCKSTEP and not session.agenda:
            return False
        return session.world.may_run(session.in_flight, len(session.in_flight))

    def _opening(self, session: Session, asked_ns: int) -> WorkItem:
        """The item that opens the next chunk when it is taken."""
        chunk, decodes = session.next_chunk, self._decodes(session, 0)
        item = WorkItem(session.id, chunk, 0, opens=True, decodes=decodes, asked_ns=asked_ns)
        if session.pace is Pace.REALTIME:
            self._set_deadline(session, item, session.pacer.due_ns(chunk), session.world.num_steps - 1)
        return item

    def _item(self, session: Session, flight: OpenChunk, now_ns: int) -> WorkItem:
        """The next row of a chunk in flight, with the urgency it has now."""
        step, steps = flight.done, session.world.num_steps
        commits = not flight.primed and step >= steps
        item = WorkItem(
            session=session.id,
            chunk=flight.chunk,
            step=step,
            opens=False,
            decodes=1 if flight.primed else self._decodes(session, step),
            asked_ns=now_ns if commits else flight.asked_ns,
        )
        if session.pace is Pace.LOCKSTEP:
            return item
        if flight.primed:
            self._set_deadline(session, item, flight.opened_ns + session.world.chunk_ns, 0)
        elif commits:
            distance, rows_after = session.world.commit_reader
            self._set_deadline(session, item, session.pacer.due_ns(flight.chunk + distance), rows_after)
        else:
            self._set_deadline(session, item, session.pacer.due_ns(flight.chunk), steps - 1 - step)
        return item

    def _decodes(self, session: Session, step: int) -> int:
        return int(step == session.world.num_steps - 1)

    def _set_deadline(self, session: Session, item: WorkItem, due_ns: int, rows_after: int) -> None:
        """Media time that the client has buffered is slack on top of the due time."""
        shape = session.world.spec.shape_key
        item.due_ns = due_ns + session.buffered_ns
        item.after_ns = rows_after * self._cost.tick_ns(shape) + (0 if item.decodes else self._decode_ns(shape))

    def _decode_ns(self, shape_key: str) -> int:
        return self._cost.predict_ns(shape_key, 1, 1) - self._cost.predict_ns(shape_key, 1, 0)

    def _push(self, session: Session, item: WorkItem) -> None:
        session.waiting[item.chunk] = item
        self._scheduler.push(session.world.spec.shape_key, item)

    def _cancel(self, session: Session, chunk: int) -> None:
        item = session.waiting.pop(chunk, None)
        if item is not None:
            self._scheduler.cancel(item)
