"""How many live sessions one process serves: the engine against serving one session after the other.

Both run in this thread with the same model and dtype, in turn, under open-loop load (`open_loop`). Time is the thread's
processor time, waiting skipped (`ProcessorClock`): the figures are of one core, and other programs on the machine do
not count. Capacity is the largest number of sessions at which the service level holds. Beside it: what the
stream batch does to one session's chunk interval, the engine's own share of a tick, and the core's cost for each
work item.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from physis_stream.bench import scheduler
from physis_stream.bench.machine import commit, machine
from physis_stream.bench.open_loop import Load, Verdict, Viewer, judge
from physis_stream.bench.sequential import SequentialSession
from physis_stream.core.commands import CloseSession, OpenSession, Pace
from physis_stream.core.context_rule import ContextRule
from physis_stream.core.ids import EventId, SessionId
from physis_stream.core.pipeline import wavefront_lag
from physis_stream.models.paged_attention import ChunkRope
from physis_stream.runtime.clock import ProcessorClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_loop import EngineLoop
from physis_stream.runtime.frame_decoder import FrameDecoder
from physis_stream.runtime.messages import Answer, AskChunks, AskCommand, AskSteps, Published, StepItem
from physis_stream.runtime.process_tuning import keep_memory
from physis_stream.runtime.served_model import ServedModel, serve
from physis_stream.runtime.service import ChunkOut
from physis_stream.worlds import LoadedWorld, load_world

Serve = Callable[[Load], list[Viewer]]
OVERHEAD_SESSIONS = 8


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds of A B, seconds of each load, chunks of each interval measurement."""

    rounds: int
    ramp_s: float
    hold_s: float
    chunks: int


QUICK = Effort(rounds=1, ramp_s=3.0, hold_s=2.0, chunks=40)
FULL = Effort(rounds=5, ramp_s=3.0, hold_s=3.0, chunks=60)


def run(
    *,
    quick: bool = False,
    name: str | LoadedWorld = "pusht",
    discipline: str | None = None,
    with_commit: bool | None = None,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Measure and return the keys of docs/benchmarks.md. `name` may be a loaded world; `say` gets a line of progress
    at a time.
    """
    config = EngineConfig(threads=1)
    keep_memory()
    torch.set_num_threads(1)
    world = load_world(name, config.torch_dtype) if isinstance(name, str) else name
    effort, model = QUICK if quick else FULL, serve(world, discipline=discipline, commit=with_commit)
    engine, baseline = EngineServer(model, config), SequentialServer(model)
    engine.warm()
    baseline.warm()
    found = _in_turn({"baseline": baseline, "engine": engine}, model.spec.chunk_ns / 1e9, effort, say)
    sessions = statistics.median(n for n, _ in found["engine"])
    baseline_sessions = statistics.median(n for n, _ in found["baseline"])
    return {
        "baseline_sessions": baseline_sessions,
        "sessions": sessions,
        "ratio": sessions / max(1, baseline_sessions),
        "attainment": min(attained for n, attained in found["engine"] if n > 0),
        "overhead_share": engine.overhead_share(effort),
        **_wavefront(world, engine, config).interval_cut(effort),
        "scheduler_us_per_item": scheduler.measure(64, num_items=4000 if quick else 20_000),
        "clock": "processor time of one thread",
        "rule": _named(model.spec.rule),
        "machine": machine(dtype=str(model.dtype).removeprefix("torch."), threads=1),
        "commit": commit(),
    }


def _in_turn(
    servers: Mapping[str, SequentialServer | EngineServer], chunk_s: float, effort: Effort, say: Callable[[str], None]
) -> dict[str, list[tuple[int, float]]]:
    """The capacity of each server, A B A B; each search begins where the one before ended."""
    found: dict[str, list[tuple[int, float]]] = {label: [] for label in servers}
    guess = {label: server.guess() for label, server in servers.items()}
    for number in range(effort.rounds):
        for label, server in servers.items():
            report = f"round {number + 1}/{effort.rounds} {label}"
            best = _largest(server.serve, guess[label], chunk_s, effort, number, report, say)
            found[label].append(best)
            guess[label] = best[0]
    return found


def _named(rule: ContextRule) -> str:
    return f"{rule.discipline.value}{' with' if rule.commit else ' without'} commit, {rule.num_steps} steps"


def _wavefront(world: LoadedWorld, engine: EngineServer, config: EngineConfig) -> EngineServer:
    """The server on which a stream batch can form: this one, or one under the first rule of the world that lets it."""
    for choice in (None, *world.profile.rules):
        server = (
            engine
            if choice is None
            else EngineServer(serve(world, discipline=choice.discipline, commit=choice.commit), config)
        )
        if wavefront_lag(server.rule) < server.rule.rows_per_chunk:
            return server
    return engine


def _largest(
    server: Serve, guess: int, chunk_s: float, effort: Effort, seed: int, label: str, say: Callable[[str], None]
) -> tuple[int, float]:
    """The largest number of sessions at which the service level holds, and what share was on time then.

    A load that fails is tried once more with other arrivals, for both servers alike. Walks from the guess in steps of
    an eighth, down while it fails, up while it holds, then halves the last step.
    """

    def tried(sessions: int) -> Verdict:
        for arrivals in (seed, seed + 1000):
            load = Load(sessions, chunk_s, effort.ramp_s, effort.hold_s, arrivals)
            verdict = judge(load, server(load))
            first_s = verdict.worst_first_chunk_s
            say(f"{label}: {sessions} sessions, {verdict.attainment:.1%} on time, first chunk {first_s:.2f} s")
            if verdict.holds:
                break
        return verdict

    stride, low, high, best = max(1, guess // 8), 0, None, 0.0
    sessions = max(1, guess)
    while high is None or high - low > 1:
        verdict = tried(sessions)
        if verdict.holds:
            low, best = sessions, verdict.attainment
        else:
            high = sessions
        if high is None:
            sessions = low + stride
        elif low == 0:
            sessions = max(1, high - stride)
            if high == 1:
                break
        else:
            sessions = (low + high) // 2
    return low, best


class SequentialServer:
    """Serves whoever's next chunk is due first, one chunk at a time, at most one chunk ahead of its time."""

    def __init__(self, model: ServedModel) -> None:
        self._model, self._clock = model, ProcessorClock()
        with torch.inference_mode():
            self._decoder = FrameDecoder(model.codec, model.readout)
        self._rope = ChunkRope(1, *model.token_grid, model.kv.head_dim, model.dtype, placeless=model.placeless_tokens)
        self._action = model.spec.action.initial

    def _session(self, seed: int) -> SequentialSession:
        with torch.inference_mode():
            return SequentialSession(self._model, self._decoder, self._rope, seed)

    def warm(self) -> None:
        session = self._session(0)
        for _ in range(self._model.spec.rule.window + 4):
            session.next_chunk(self._action)

    def guess(self) -> int:
        """Chunk time over the time that one chunk takes."""
        session, spans = self._session(0), []
        for _ in range(20):
            began_ns = self._clock.now_ns()
            session.next_chunk(self._action)
            spans.append(self._clock.now_ns() - began_ns)
        return max(1, int(self._model.spec.chunk_ns / statistics.median(spans)))

    def serve(self, load: Load) -> list[Viewer]:
        """Let the load's viewers watch."""
        clock, begin_ns = self._clock, self._clock.now_ns()
        arrivals = load.arrivals()
        viewers = [Viewer(arrival) for arrival in arrivals]
        sessions: list[SequentialSession] = []
        while (now_s := (clock.now_ns() - begin_ns) / 1e9) < load.end_s:
            while len(sessions) < load.sessions and arrivals[len(sessions)] <= now_s:
                sessions.append(self._session(len(sessions)))
            due = [
                (viewer.due_s(len(viewer.came_s), load.chunk_s) if viewer.came_s else viewer.arrival_s, number)
                for number, viewer in enumerate(viewers[: len(sessions)])
            ]
            first = min(due, default=None)
            if first is None or first[0] - 2 * load.chunk_s > now_s:
                coming = arrivals[len(sessions)] if len(sessions) < load.sessions else load.end_s
                wake_s = min(coming, load.end_s if first is None else first[0] - 2 * load.chunk_s)
                clock.sleep_until_ns(begin_ns + round(wake_s * 1e9))
                continue
            sessions[first[1]].next_chunk(self._action)
            viewers[first[1]].came_s.append((clock.now_ns() - begin_ns) / 1e9)
        return viewers


class EngineServer:
    """The engine on the same thread, one loop kept warm for all loads, as a server keeps it."""

    def __init__(self, model: ServedModel, config: EngineConfig) -> None:
        self._model, self._config, self._clock = model, config, ProcessorClock()
        self._loop = EngineLoop(model, config, self._clock, warm=True)
        self._calls = self._names = 0
        self._action = model.spec.action.initial

    @property
    def rule(self) -> ContextRule:
        return self._model.spec.rule

    def warm(self) -> None:
        """Run every batch width once: matrix kernels are made at first use of a shape."""
        names = [self._open(seed, Pace.LOCKSTEP) for seed in range(self._config.max_rows)]
        self._finish()
        for width in range(1, len(names) + 1):
            self._step(names[:width], [1])
            self._finish()
        self._close(names)

    def guess(self) -> int:
        """Chunk time over the time that one chunk takes in a batch of 16 sessions."""
        names = [self._open(seed, Pace.LOCKSTEP) for seed in range(16)]
        self._finish()
        events = list(range(1, 13))
        self._step(names, events)
        began_ns = self._clock.now_ns()
        self._finish()
        took_ns = (self._clock.now_ns() - began_ns) / (len(names) * len(events))
        self._close(names)
        return max(1, int(0.95 * self._model.spec.chunk_ns / took_ns))

    def serve(self, load: Load) -> list[Viewer]:
        """Let the load's viewers watch."""
        clock, begin_ns = self._clock, self._clock.now_ns()
        arrivals = load.arrivals()
        viewers: dict[SessionId, Viewer] = {}
        while (now_ns := clock.now_ns()) < begin_ns + load.end_s * 1e9:
            while len(viewers) < load.sessions and begin_ns + arrivals[len(viewers)] * 1e9 <= now_ns:
                viewer = Viewer(arrivals[len(viewers)])
                viewers[self._open(len(viewers), Pace.REALTIME)] = viewer
            worked = self._loop.turn()
            for reply in self._loop.take_replies():
                if isinstance(reply, Published) and isinstance(reply.output, ChunkOut):
                    viewers[reply.output.session].came_s.append((clock.now_ns() - begin_ns) / 1e9)
            if not worked:
                coming = arrivals[len(viewers)] if len(viewers) < load.sessions else load.end_s
                wake_ns = self._loop.next_wake_ns()
                latest_ns = begin_ns + round(coming * 1e9)
                clock.sleep_until_ns(latest_ns if wake_ns is None else min(latest_ns, wake_ns))
        self._close(list(viewers))
        return list(viewers.values())

    def overhead_share(self, effort: Effort) -> float:
        """Share of ticks that is neither model nor decoding, with eight live sessions."""
        self._loop.metrics.begin()
        self.serve(Load(OVERHEAD_SESSIONS, self._model.spec.chunk_ns / 1e9, 0.2, effort.hold_s))
        return self._loop.metrics.overhead_share

    def interval_cut(self, effort: Effort) -> dict[str, Any]:
        """How much shorter one session's chunk interval is when its steps share a batch than when they run one by
        one.
        """
        together, apart = [], []
        for _ in range(max(3, effort.rounds)):
            together.append(self._interval_ms(effort.chunks, ahead=True))
            apart.append(self._interval_ms(effort.chunks, ahead=False))
        intervals = {"stream_batch": statistics.median(together), "step_by_step": statistics.median(apart)}
        return {
            "interval_cut": 1.0 - intervals["stream_batch"] / intervals["step_by_step"],
            "interval_rule": _named(self.rule),
            "chunk_interval_ms": intervals,
        }

    def _interval_ms(self, chunks: int, *, ahead: bool) -> float:
        """Median time between two chunks of one lockstep session: steps asked for ahead, or each after the one
        before.
        """
        name = self._open(0, Pace.LOCKSTEP)
        self._finish()
        came_ns: list[int] = []
        if ahead:
            self._step([name], list(range(1, min(chunks, 60) + 1)))
        for event in range(1, min(chunks, 60) + 1):
            if not ahead:
                self._step([name], [event])
            while not any(isinstance(reply, Answer) and reply.value for reply in self._turn()):
                pass
            came_ns.append(self._clock.now_ns())
        self._close([name])
        settled = came_ns[self._model.spec.rule.window + self._model.spec.rule.rows_per_chunk :]
        return statistics.median(b - a for a, b in pairwise(settled)) / 1e6

    def _turn(self) -> list[Any]:
        self._loop.turn()
        return self._loop.take_replies()

    def _open(self, seed: int, pace: Pace) -> SessionId:
        self._names += 1
        name = SessionId(f"{self._names:032x}")
        self._ask_command(OpenSession(name, seed, pace))
        self._calls += 1
        self._loop.ask(AskChunks(self._calls, name, pace is Pace.REALTIME))
        return name

    def _ask_command(self, command: OpenSession | CloseSession) -> None:
        self._calls += 1
        self._loop.ask(AskCommand(self._calls, command))

    def _step(self, names: list[SessionId], events: list[int]) -> None:
        for event in events:
            for name in names:
                self._calls += 1
                self._loop.ask(AskSteps(self._calls, [StepItem(name, EventId(event), self._action)]))

    def _finish(self) -> None:
        """Turn until nothing is left to do."""
        while self._loop.turn():
            pass
        self._loop.take_replies()

    def _close(self, names: list[SessionId]) -> None:
        for name in names:
            self._ask_command(CloseSession(name))
        self._finish()
