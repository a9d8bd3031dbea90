"""Random lives of random sessions on random worlds: whatever happens, in whatever order, the promises hold.

The fake executor checks every row against the context rule, page by page; the fact checker every fact against those
before; the core its own books after every act. What is left here is to be as unkind as clients and a device can be.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.errors import EngineError
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.testing import strategies
from physis_stream.testing.simulation import Simulation

PICKS = st.integers(0, 11)
ACTIONS = st.floats(-2.0, 2.0).map(lambda value: (value,))


class EngineMachine(RuleBasedStateMachine):
    """Clients that open, step, act, fork, restore, fail and close; a device anywhere within a tick."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[SessionId] = []
        self.marks: list[SnapshotId] = []
        self.events = 0

    @initialize(spec=strategies.world_specs(), limits=strategies.limits(), costs=strategies.costs())
    def serve(self, spec, limits, costs):
        self.sim = Simulation(spec, limits, costs)

    def name(self, pick: int) -> SessionId:
        return self.names[pick % len(self.names)]

    def attempt(self, command) -> bool:
        """Submit; a refusal must leave everything as it was."""
        before = self.sim.core.stats()
        try:
            self.sim.submit(command)
        except EngineError:
            assert self.sim.core.stats() == before, f"{command} was refused and changed something"
            return False
        return True

    @rule(seed=st.integers(0, 3), pace=st.sampled_from(Pace), wait=st.booleans())
    def open(self, seed, pace, wait):
        name = SessionId(f"s{len(self.names)}")
        self.names.append(name)
        self.attempt(cmd.OpenSession(name, seed, pace, wait=wait))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS)
    def close(self, pick):
        assert self.attempt(cmd.CloseSession(self.name(pick), "done"))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, action=ACTIONS, count=st.integers(1, 4), repeat=st.booleans())
    def step(self, pick, action, count, repeat):
        for _ in range(count):
            self.events += not repeat
            self.attempt(cmd.StepChunk(self.name(pick), EventId(self.events), action))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, action=st.none() | ACTIONS, prompt=st.none() | st.sampled_from(["day", "night"]))
    def control(self, pick, action, prompt):
        self.events += 1
        self.attempt(cmd.SubmitControl(self.name(pick), EventId(self.events), action, prompt))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, seed=st.integers(0, 3))
    def reset(self, pick, seed):
        self.attempt(cmd.ResetSession(self.name(pick), seed))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, kind=st.sampled_from([cmd.PauseSession, cmd.ResumeSession, cmd.SuspendSession]))
    def hold(self, pick, kind):
        self.attempt(kind(self.name(pick)))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, count=st.integers(1, 3))
    def fork(self, pick, count):
        children = tuple(SessionId(f"s{len(self.names) + index}") for index in range(count))
        if self.attempt(cmd.ForkSession(self.name(pick), children)):
            self.names.extend(children)

    @precondition(lambda self: self.names)
    @rule(pick=PICKS)
    def snapshot(self, pick):
        mark = SnapshotId(f"m{len(self.marks)}")
        if self.attempt(cmd.TakeSnapshot(self.name(pick), mark)):
            self.marks.append(mark)

    @precondition(lambda self: self.marks)
    @rule(pick=PICKS, which=PICKS)
    def restore(self, pick, which):
        self.attempt(cmd.RestoreSnapshot(self.name(pick), self.marks[which % len(self.marks)]))

    @precondition(lambda self: self.marks)
    @rule(which=PICKS)
    def drop(self, which):
        self.attempt(cmd.DropSnapshot(self.marks[which % len(self.marks)]))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS, buffered_ns=st.sampled_from([-1, 0, 30_000_000, 10**15]))
    def playout(self, pick, buffered_ns):
        self.attempt(cmd.ReportPlayout(self.name(pick), buffered_ns))

    @precondition(lambda self: self.names)
    @rule(pick=PICKS)
    def break_down(self, pick):
        self.sim.executor.fail_next(self.name(pick))

    @precondition(lambda self: self.marks)
    @rule(which=PICKS)
    def break_copy(self, which):
        self.sim.executor.fail_next(self.marks[which % len(self.marks)])

    @rule()
    def half_a_tick(self):
        if self.sim.tick_going_on:
            self.sim.end_tick()
        else:
            self.sim.start_tick()

    @rule(ms=st.sampled_from([1, 20, 250]))
    def run(self, ms):
        self.sim.run_for(ms / 1000)

    @invariant()
    def books_agree(self):
        if hasattr(self, "sim"):
            self.sim.core.check_integrity()
            stats, limits = self.sim.core.stats(), self.sim.core.limits
            assert stats.sessions <= limits.max_sessions
            assert stats.queued <= limits.max_queued
            assert stats.snapshots <= limits.max_snapshots

    def teardown(self):
        """After everybody has closed, nothing is left: no page, no promise, no tensor, no work."""
        if not hasattr(self, "sim"):
            return
        for name in self.names:
            self.sim.submit(cmd.CloseSession(name, "over"))
        self.sim.check_empty()


EngineMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_engine_keeps_its_promises = EngineMachine.TestCase
