"""What the engine core itself costs: microseconds of deciding for each row of work, at any number of sessions.

Half the sessions are realtime and together ask for half of what the (imaginary) device can do; the other half are
lockstep and step again as soon as a chunk is ready. The clock of the sessions is imaginary too; what is measured is
the processor time spent in submit, schedule and complete, divided by the rows that were planned. It should be flat
in the number of sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import thread_time

from physis_stream.core.commands import OpenSession, Pace, StepChunk
from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.core.cost_model import CostPrior
from physis_stream.core.engine_core import EngineCore
from physis_stream.core.events import ChunkReady, Event
from physis_stream.core.ids import EventId, SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.plan import Plan, Result
from physis_stream.core.spec import ActionSpec, WorldSpec

_MAX_ROWS = 64
_ROW_NS = 150_000
_ACTION = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0), initial=(0.0, 0.0), names=("x", "y"))


@dataclass(slots=True)
class _Drive:
    """A core under load, its imaginary time, and the next event id of each lockstep session."""

    core: EngineCore
    steps: dict[SessionId, int]
    now_ns: int = 0

    def tick(self) -> int:
        """One tick; return its rows. Waiting costs nothing: imaginary time jumps to the next wake-up."""
        plan = self.core.schedule(self.now_ns)
        if plan is None:
            wake_ns = self.core.next_wake_ns(self.now_ns)
            assert wake_ns is not None, "a loaded core has nothing to do for ever"
            self.now_ns = wake_ns
            return 0
        self.now_ns += _tick_ns(plan)
        self._answer(self.core.complete(Result(plan.tick, (), _tick_ns(plan), 0), self.now_ns))
        return len(plan.rows)

    def _answer(self, facts: tuple[Event, ...]) -> None:
        for fact in facts:
            if isinstance(fact, ChunkReady) and fact.session in self.steps:
                self.steps[fact.session] += 1
                event = EventId(self.steps[fact.session])
                self.core.submit(StepChunk(fact.session, event, (0.5, -0.5)), self.now_ns)


def measure(num_sessions: int, *, num_items: int = 20_000) -> float:
    """Return microseconds of core time for each planned row, with this many sessions open."""
    drive = _open(num_sessions)
    for _ in range(2 * (num_sessions // _MAX_ROWS + 1)):
        drive.tick()
    rows, begin = 0, thread_time()
    while rows < num_items:
        rows += drive.tick()
    return (thread_time() - begin) * 1e6 / rows


def _open(num_sessions: int) -> _Drive:
    priors = {"bench": CostPrior(base_ns=0, row_ns=_ROW_NS, decode_ns=0)}
    limits = Limits(max_sessions=num_sessions, max_snapshots=0, max_rows=_MAX_ROWS)
    drive = _Drive(EngineCore(_world(num_sessions), limits, priors), {})
    for index in range(num_sessions):
        name = SessionId(f"{index:032x}")
        realtime = index % 2 == 0
        if not realtime:
            drive.steps[name] = 0
        drive.core.submit(OpenSession(name, index, Pace.REALTIME if realtime else Pace.LOCKSTEP), drive.now_ns)
    return drive


def _world(num_sessions: int) -> WorldSpec:
    """A world of four steps and a window of eight, slow enough that realtime sessions ask for half the device."""
    rule = ContextRule(Discipline.CASCADE, num_steps=4, window=8, commit=True)
    chunk_s = max(0.05, num_sessions / 2 * rule.rows_per_chunk * _ROW_NS * 1e-9 / 0.5)
    return WorldSpec(
        world="bench",
        rule=rule,
        action=_ACTION,
        fps=1.0 / chunk_s,
        chunk_frames=1,
        height=96,
        width=96,
        sink=1,
        pages_per_chunk=4,
        page_bytes=4096,
        fixed_bytes=65_536,
        shape_key="bench",
    )


def _tick_ns(plan: Plan) -> int:
    return _ROW_NS * max(1, len(plan.rows))
