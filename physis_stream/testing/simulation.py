"""An engine core, a fake executor and a fake clock, wired as the runtime would wire them; every fact is checked.

    sim = Simulation(toy_spec())
    sim.submit(OpenSession(...)); sim.run_for(seconds=2); sim.chunks(session)

The same seed of events gives the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from physis_stream.core.commands import Command
from physis_stream.core.engine_core import EngineCore
from physis_stream.core.events import ChunkReady, Event
from physis_stream.core.ids import SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.plan import Plan, Result
from physis_stream.core.replay import Record, RecordedCore
from physis_stream.core.spec import WorldSpec
from physis_stream.testing.fact_checker import FactChecker
from physis_stream.testing.fake_clock import FakeClock
from physis_stream.testing.fake_executor import FakeCosts, FakeExecutor


class Simulation:
    """Drives a core by hand or for a span of time. `plans` and `facts` keep all that happened, in order."""

    def __init__(
        self,
        specs: WorldSpec | Sequence[WorldSpec],
        limits: Limits | None = None,
        costs: FakeCosts | None = None,
    ) -> None:
        self.core = EngineCore(specs, limits)
        self._seat: EngineCore | RecordedCore = self.core
        self.clock = FakeClock()
        self.executor = FakeExecutor(self.core.specs, max_rows=self.core.limits.max_rows, costs=costs)
        self.checker = FactChecker()
        self.plans: list[Plan] = []
        self.facts: list[Event] = []
        self._going: tuple[int, Result] | None = None

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns

    def submit(self, command: Command) -> tuple[Event, ...]:
        """Pass a command to the core; its refusals are raised here."""
        facts = self._seat.submit(command, self.now_ns)
        self.checker.accepted(command)
        return self._note(facts)

    def start_tick(self) -> Plan | None:
        """Schedule and carry out a plan whose end is still to come; None if there is nothing to do now."""
        assert self._going is None, "a tick is going on"
        plan = self._seat.schedule(self.now_ns)
        if plan is not None:
            self.plans.append(plan)
            self._going = self.now_ns + self.executor.duration_ns(plan), self.executor.execute(plan)
        return plan

    def end_tick(self) -> tuple[Event, ...]:
        """Let the tick that is going on end, at the time its costs say."""
        assert self._going is not None, "no tick is going on"
        end_ns, result = self._going
        self._going = None
        self.clock.advance_to(end_ns)
        return self._note(self._seat.complete(result, self.now_ns))

    @property
    def tick_going_on(self) -> bool:
        return self._going is not None

    def tick(self) -> bool:
        """One whole tick; False if there is nothing to do now."""
        if self.start_tick() is None:
            return False
        self.end_tick()
        return True

    def run_until(self, at_ns: int) -> None:
        """Work and wait, as a runtime would, until this time; a tick that has begun is finished."""
        if self._going is not None:
            self.end_tick()
        while self.now_ns < at_ns:
            if self.tick():
                continue
            wake_ns = self.core.next_wake_ns(self.now_ns)
            if wake_ns is None or wake_ns > at_ns:
                self.clock.advance_to(at_ns)
                return
            assert wake_ns > self.now_ns, "the core asks to be woken now and has nothing to do"
            self.clock.advance_to(wake_ns)

    def run_for(self, seconds: float) -> None:
        self.run_until(self.now_ns + round(seconds * 1e9))

    def run_idle(self, max_ticks: int = 10_000) -> int:
        """Work until nothing can be done now; return the number of ticks. Realtime sessions may want more later."""
        if self._going is not None:
            self.end_tick()
        for ticks in range(max_ticks):
            if not self.tick():
                return ticks
        raise AssertionError(f"still busy after {max_ticks} ticks")

    def record(self, write: Callable[[Record], None]) -> None:
        """Record all that goes in and out of the core from now on; call it before anything has happened."""
        self._seat = RecordedCore(self.core, write)

    def check_empty(self) -> None:
        """Raise AssertionError unless nothing is left once all work is done: no page, promise, tensor, wake-up."""
        self.run_idle()
        stats = self.core.stats()
        self.core.check_integrity()
        left = (stats.sessions, stats.queued, stats.snapshots, stats.runnable)
        assert left == (0, 0, 0, 0), f"sessions, queued, snapshots, runnable left: {left}"
        memory = (stats.pages_used, stats.pages_promised, stats.bytes_promised)
        assert memory == (0, 0, 0), f"pages used, pages promised, bytes promised left: {memory}"
        assert self.executor.num_states == 0, "tensors of a session or snapshot are left"
        assert self.core.next_wake_ns(self.now_ns) is None, "an empty core wants to be woken"
        assert not self.checker.open_sessions(), "a session was never told to be closed"

    def chunks(self, session: SessionId) -> list[ChunkReady]:
        """The chunks that a session has handed out, in order."""
        return [fact for fact in self.facts if isinstance(fact, ChunkReady) and fact.session == session]

    def frames(self, session: SessionId) -> list[str]:
        """Labels of a session's frames, in order of hand-out; equal labels mean equal pictures."""
        return [self.executor.frames[chunk.session, chunk.epoch, chunk.chunk] for chunk in self.chunks(session)]

    def _note(self, facts: tuple[Event, ...]) -> tuple[Event, ...]:
        self.facts.extend(facts)
        self.checker.observe(facts)
        return facts
