"""The engine core: commands in, plans out, results in, facts out. It decides everything and does nothing.

    submit(command, now)  -> facts          raises an EngineError before any state changes
    schedule(now)         -> plan | None    one plan outstanding at a time
    complete(result, now) -> facts          others advance where one failed; nothing half-advances
    next_wake_ns(now)     -> when schedule may next have something, None while only a command or result can bring it

Deterministic: the same calls with the same times give the same plans. No clock, no threads, no tensors. Not safe for
threads; whoever owns it calls from one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from physis_stream.core import commands as cmd
from physis_stream.core.actions import Receipt
from physis_stream.core.admission import Admission
from physis_stream.core.branches import Branches
from physis_stream.core.capsule import Capsule
from physis_stream.core.cost_model import CostModel, CostPrior
from physis_stream.core.errors import Capacity, InvalidState
from physis_stream.core.events import ChunkReady, ControlIgnored, Event, RequestDropped
from physis_stream.core.flow import Flow
from physis_stream.core.ids import EventId, SessionId, SnapshotId, TickIndex
from physis_stream.core.integrity import check_integrity
from physis_stream.core.kv_pages import PageLedger, Retention
from physis_stream.core.limits import Limits
from physis_stream.core.lives import Lives
from physis_stream.core.plan import Plan, Result
from physis_stream.core.roster import Outstanding, Roster
from physis_stream.core.run_queue import WorkItem
from physis_stream.core.scheduler import Scheduler
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.session import OpenChunk, QueuedStep, Session, State, Trigger
from physis_stream.core.spec import WorldSpec


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Present facts of one engine core. `obstacle` says why one more session of the first world could not come in."""

    sessions: int
    queued: int
    streaming: int
    snapshots: int
    pages_total: int
    pages_used: int
    pages_promised: int
    bytes_promised: int
    runnable: int
    ticks: int
    rows: int
    chunks: int
    late_chunks: int
    evictions: int
    utilisation: float
    obstacle: str | None


class EngineCore:
    """Facade over the parts of core; see the module's docstring for the protocol."""

    def __init__(
        self,
        specs: WorldSpec | Sequence[WorldSpec],
        limits: Limits | None = None,
        priors: Mapping[str, CostPrior] | None = None,
    ) -> None:
        """Serve these worlds. `priors` are costs by shape key. Raises ValueError if a pool cannot hold one session."""
        self.specs = (specs,) if isinstance(specs, WorldSpec) else tuple(specs)
        self.limits = limits or Limits()
        self.priors = dict(priors or {})
        self.cost = CostModel(self.priors)
        worlds = _serve(self.specs, self.limits)
        self._admission = Admission(worlds, self.cost, self.limits)
        self._roster = Roster(worlds, self._admission)
        self._scheduler = Scheduler(self.cost, self.limits)
        self._flow = Flow(self._roster, self._scheduler, self.cost)
        self._lives = Lives(self._roster, self._flow, self.limits)
        self._branches = Branches(self._roster, self._flow, self._lives, self.limits)
        self._ticks = self._rows = self._chunks = self._late = self._evictions = 0

    def num_pages(self, world: str | None = None) -> int:
        """Size of the page pool of this world's shape bucket: page ids in plans are below it."""
        return self._roster.find_world(world).ledger.num_pages

    def calibrate(self, priors: Mapping[str, CostPrior]) -> None:
        """Take measured costs by shape key, before the first command."""
        for shape_key, prior in priors.items():
            self.priors[shape_key] = prior
            self.cost.set_prior(shape_key, prior)

    def submit(self, command: cmd.Command, now_ns: int) -> tuple[Event, ...]:
        """Take a command; return the facts it brought about. Raises EngineError on wrong use, with nothing changed."""
        match command:
            case cmd.OpenSession():
                self._lives.open(command, now_ns)
            case cmd.CloseSession():
                self._close(command, now_ns)
            case cmd.SubmitControl():
                self._control(command)
            case cmd.StepChunk():
                self._step(command, now_ns)
            case cmd.ResetSession():
                session = self._checked(command.session, Trigger.RESET)
                self._lives.begin_epoch(session, command.seed, Trigger.RESET, now_ns)
            case cmd.PauseSession():
                self._move(command.session, Trigger.PAUSE, now_ns)
            case cmd.SuspendSession():
                self._move(command.session, Trigger.SUSPEND, now_ns)
            case cmd.ResumeSession():
                self._resume(command.session, now_ns)
            case cmd.ForkSession():
                self._branches.fork(command, now_ns)
            case cmd.TakeSnapshot():
                self._branches.snapshot(command, now_ns)
            case cmd.RestoreSnapshot():
                self._branches.restore(command, now_ns)
            case cmd.DropSnapshot():
                self._branches.drop(command)
            case cmd.ReportPlayout():
                self._report_playout(command, now_ns)
        return self._roster.told()

    def schedule(self, now_ns: int) -> Plan | None:
        """Make the next plan; None while one is outstanding, or if there is nothing to do now."""
        roster = self._roster
        if roster.outstanding is not None:
            return None
        if self._flow.wake(now_ns) and (gather_ns := self._admission.gather_ns):
            self._flow.wake(now_ns, gather_ns)
        shape_key, items = self._scheduler.select(now_ns, self._admission.pulse_ns)
        if not items and not roster.ops:
            return None
        rows, decodes, going = [], [], []
        for item in items:
            session = roster.sessions[item.session]
            row, decode = self._flow.start_row(session, item, now_ns)
            rows.append(row)
            going.append((session, session.generation, item))
            if decode is not None:
                decodes.append(decode)
            self._flow.consider_opening(session, now_ns)
        ops, roster.ops = roster.ops, []
        plan = Plan(TickIndex(self._ticks), shape_key, tuple(op.op for op in ops), tuple(rows), tuple(decodes))
        users = frozenset(session.id for session, _, _ in going)
        roster.outstanding = Outstanding(plan, now_ns, going, ops, users)
        self._ticks += 1
        return plan

    def complete(self, result: Result, now_ns: int) -> tuple[Event, ...]:
        """Take the outcome of the outstanding plan; return the facts.

        Raises InvalidState for any other plan's result.
        """
        roster, out = self._roster, self._roster.outstanding
        if out is None or out.plan.tick != result.tick:
            raise InvalidState(f"tick {result.tick} is not outstanding")
        roster.end_tick()
        self.cost.observe(
            out.plan.shape_key,
            len(out.plan.rows),
            len(out.plan.decodes),
            rows_ns=result.rows_ns,
            decode_ns=result.decode_ns,
            wall_ns=max(0, now_ns - out.started_ns),
        )
        failed = dict(result.failed)
        self._settle_ops(out, failed)
        touched: dict[SessionId, Session] = {}
        for session, generation, item in out.rows:
            if session.generation != generation:
                continue
            if session.id in failed:
                self._lives.fail(session, failed[session.id])
                continue
            self._advance(session, item, now_ns)
            touched[session.id] = session
        for session in touched.values():
            self._flow.consider(session, now_ns)
            self._branches.act_at_boundary(session, now_ns)
        self._rows += len(out.rows)
        self._lives.admit_waiting(now_ns)
        return roster.told()

    def next_wake_ns(self, now_ns: int) -> int | None:
        """When schedule may next return a plan; None while only a command or a result can change that."""
        if self._roster.outstanding is not None:
            return None
        if self._roster.ops or len(self._scheduler):
            return now_ns
        wake_ns = self._flow.next_wake_ns()
        return None if wake_ns is None else max(now_ns, wake_ns)

    def capsule(self, name: SessionId) -> Capsule | None:
        """Core's part of a session's state as data; None while it is not at a committed boundary. Changes nothing."""
        session = self._roster.find(name)
        return Capsule.of(session) if session.at_boundary else None

    def check_integrity(self) -> None:
        """Raise AssertionError unless pages, promises and queues agree with the sessions and snapshots here."""
        check_integrity(self._roster, len(self._scheduler))

    def _checked(self, name: SessionId, trigger: Trigger) -> Session:
        session = self._roster.find(name)
        self._roster.check(session, trigger)
        return session

    def _close(self, command: cmd.CloseSession, now_ns: int) -> None:
        """Unknown and ended sessions are closed already."""
        session = self._roster.sessions.get(command.session)
        if session is not None:
            self._lives.end(session, command.reason, now_ns)

    def _control(self, command: cmd.SubmitControl) -> None:
        session = self._checked(command.session, Trigger.CONTROL)
        action = command.action
        if action is not None:
            if session.pace is cmd.Pace.LOCKSTEP:
                raise InvalidState("a lockstep session takes its actions by step")
            action = session.world.spec.action.check(action)
        if session.inbox.accept(command.event, action, command.prompt) is Receipt.IGNORED:
            self._tell_ignored(session, command.event)

    def _step(self, command: cmd.StepChunk, now_ns: int) -> None:
        session = self._checked(command.session, Trigger.STEP)
        if session.pace is not cmd.Pace.LOCKSTEP:
            raise InvalidState("a realtime session opens its chunks by the clock: send the action as live control")
        action = session.world.spec.action.check(command.action)
        newest = session.inbox.newest
        if newest is not None and command.event <= newest:
            self._tell_ignored(session, command.event)
            return
        if session.num_queued_steps >= self.limits.max_queued_steps:
            raise Capacity(f"{self.limits.max_queued_steps} steps of this session wait already")
        session.inbox.see(command.event)
        session.agenda.append(QueuedStep(command.event, action, now_ns))
        self._flow.consider_opening(session, now_ns)

    def _tell_ignored(self, session: Session, event: EventId) -> None:
        newest = session.inbox.newest
        assert newest is not None, "an event is ignored only after a newer one"
        self._roster.tell(ControlIgnored(session.id, event, newest))

    def _move(self, name: SessionId, trigger: Trigger, now_ns: int) -> None:
        session = self._roster.find(name)
        self._roster.move(session, trigger)
        self._flow.consider_opening(session, now_ns)

    def _resume(self, name: SessionId, now_ns: int) -> None:
        session = self._roster.find(name)
        stood = session.state in (State.PAUSED, State.RECONNECTING)
        self._roster.move(session, Trigger.RESUME)
        if stood:
            self._flow.restart_clock(session, now_ns)

    def _report_playout(self, command: cmd.ReportPlayout, now_ns: int) -> None:
        """Buffered media is believed up to one chunk: more would let a client put itself last, or anyone else."""
        session = self._roster.find(command.session)
        buffered_ns = min(max(0, command.buffered_ns), session.world.chunk_ns)
        if buffered_ns != session.buffered_ns:
            session.buffered_ns = buffered_ns
            self._flow.reorder(session, now_ns)

    def _settle_ops(self, out: Outstanding, failed: Mapping[SessionId | SnapshotId, str]) -> None:
        """Fail whom a state op failed: a session, or a snapshot whose tensors could not be kept."""
        for op in out.ops:
            reason = failed.get(op.party) if op.party is not None else None
            if reason is None or op.party is None:
                continue
            snapshot = self._roster.snapshots.get(SnapshotId(op.party))
            session = self._roster.sessions.get(SessionId(op.party))
            if snapshot is not None:
                self._lives.drop_snapshot(snapshot)
                if snapshot.owner in self._roster.sessions:
                    self._roster.tell(RequestDropped(snapshot.owner, "snapshot", snapshot.id, reason))
            elif session is not None and session.generation == op.generation:
                self._lives.fail(session, reason)

    def _advance(self, session: Session, item: WorkItem, now_ns: int) -> None:
        """One row of a session is complete."""
        world = session.world
        flight = next(f for f in session.in_flight if f.chunk == item.chunk)
        flight.running = False
        flight.done += 1
        if flight.primed or flight.done == world.num_steps:
            self._release(session, flight, now_ns)
        if flight.primed or flight.done == world.rows:
            assert session.in_flight[0] is flight, "chunks finish in order"
            session.in_flight.pop(0)
            self._evictions += session.table.evict(flight.chunk)

    def _release(self, session: Session, flight: OpenChunk, now_ns: int) -> None:
        """A chunk's frames are decoded: hand it out, and keep time by it."""
        due_ns = None
        if session.pace is cmd.Pace.REALTIME and not flight.primed:
            due_ns = session.pacer.due_ns(flight.chunk)
            self._late += session.pacer.ready(flight.chunk, flight.asked_ns, now_ns)
        session.last_ready = flight.chunk
        self._roster.tell(
            ChunkReady(
                session.id,
                session.epoch,
                flight.chunk,
                session.num_released,
                flight.control.applied,
                flight.opened_ns,
                due_ns,
            )
        )
        session.num_released += 1
        self._chunks += 1
        if flight.primed:
            session.pacer.anchor(1, now_ns + session.world.chunk_ns)
            self._roster.move(session, Trigger.PRIMED)

    def stats(self) -> CoreStats:
        """Present facts; costs a scan over the sessions."""
        roster, ledgers = self._roster, {id(w.ledger): w.ledger for w in self._roster.worlds.values()}.values()
        first = next(iter(roster.worlds.values()))
        full = len(roster.queue) > 0
        return CoreStats(
            sessions=len(roster.sessions) - len(roster.queue),
            queued=len(roster.queue),
            streaming=roster.count(State.STREAMING),
            snapshots=len(roster.snapshots),
            pages_total=sum(ledger.num_pages for ledger in ledgers),
            pages_used=sum(ledger.num_owned for ledger in ledgers),
            pages_promised=sum(ledger.num_reserved for ledger in ledgers),
            bytes_promised=self._admission.promised_bytes,
            runnable=len(self._scheduler),
            ticks=self._ticks,
            rows=self._rows,
            chunks=self._chunks,
            late_chunks=self._late,
            evictions=self._evictions,
            utilisation=self._admission.utilisation(),
            obstacle="others wait first" if full else self._admission.obstacle(first, cmd.Pace.REALTIME),
        )


def _serve(specs: Sequence[WorldSpec], limits: Limits) -> dict[str, ServedWorld]:
    """The worlds by name; those of one shape share a page pool. Raises ValueError for specs that cannot be served."""
    if not specs:
        raise ValueError("an engine core serves at least one world")
    ledgers: dict[str, tuple[PageLedger, WorldSpec]] = {}
    worlds: dict[str, ServedWorld] = {}
    for spec in specs:
        if spec.world in worlds:
            raise ValueError(f"world {spec.world} is given twice")
        ledger, owner = ledgers.setdefault(spec.shape_key, (PageLedger(_pool_pages(spec, limits)), spec))
        if (owner.pages_per_chunk, owner.page_bytes) != (spec.pages_per_chunk, spec.page_bytes):
            raise ValueError(f"worlds {owner.world} and {spec.world} share shape {spec.shape_key} but not its pages")
        worlds[spec.world] = world = ServedWorld(spec, ledger)
        if world.retention.pages_per_session > ledger.num_pages:
            need = world.retention.pages_per_session
            raise ValueError(f"a session of {spec.world} needs {need} pages, the pool has {ledger.num_pages}")
        if limits.memory_bytes is not None and world.session_bytes > limits.memory_bytes:
            raise ValueError(f"a session of {spec.world} needs {world.session_bytes} bytes of {limits.memory_bytes}")
    return worlds


def _pool_pages(spec: WorldSpec, limits: Limits) -> int:
    if limits.num_pages is not None:
        return limits.num_pages
    retention = Retention.of(spec)
    full = limits.max_sessions * retention.pages_per_session + limits.max_snapshots * retention.pages_at_boundary
    if limits.memory_bytes is None or spec.page_bytes == 0:
        return full
    return min(full, limits.memory_bytes // spec.page_bytes)
