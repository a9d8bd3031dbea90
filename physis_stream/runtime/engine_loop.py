"""One turn of the engine: asks -> core -> plan -> executor -> core -> replies. No threads, no waiting; whoever owns
it turns it.

    ask(...)  any number of times          turn()  at most one plan          take_replies()  what came of both
    next_wake_ns()  when a turn may next find work: now, later, or None while only an ask can bring some

A refusal answers its ask and changes nothing. A plan that the executor could not carry out fails the sessions in it and
no others. Only a broken invariant of the engine itself raises.
"""

from __future__ import annotations

import logging

import torch

from physis_stream.core.commands import CloseSession, OpenSession
from physis_stream.core.engine_core import EngineCore
from physis_stream.core.errors import InvalidAction
from physis_stream.core.events import ChunkReady
from physis_stream.core.limits import Limits
from physis_stream.core.plan import Plan, Result, StartState
from physis_stream.core.replay import RecordedCore
from physis_stream.runtime.call_desk import CallDesk
from physis_stream.runtime.clock import Clock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.executor import ChunkKey, DecodedChunk, Executed, Executor
from physis_stream.runtime.messages import Answer, Ask, AskCommand, AskStats, Reply
from physis_stream.runtime.metrics import EngineMetrics, TickTimes
from physis_stream.runtime.served_model import ServedModel, serve
from physis_stream.runtime.service import ChunkOut, EngineStats, WorldInfo
from physis_stream.runtime.trace import TraceWriter
from physis_stream.worlds import load_world

log = logging.getLogger(__name__)
WARM_ROWS = (*range(1, 13), 16, 24, 32, 48, 64)
"""Batch widths that are run and timed before the first user comes."""


class EngineLoop:
    """Core, executor and desk of one world. Not thread-safe: one thread owns it. `warm` runs and times batches first,
    so that admission knows the machine; it takes a second or two."""

    def __init__(self, model: ServedModel, config: EngineConfig, clock: Clock, *, warm: bool = False) -> None:
        limits = Limits(
            max_sessions=config.max_sessions,
            max_queued=config.max_queued,
            max_snapshots=config.max_snapshots,
            max_rows=config.max_rows,
            max_utilisation=config.max_utilisation,
        )
        self.core = EngineCore(model.spec, limits)
        fixed_rows = config.fixed_rows if config.deterministic else 0
        self.executor = Executor(model, self.core.num_pages(), clock, fixed_rows=fixed_rows, max_rows=config.max_rows)
        if warm:
            widths = [fixed_rows] if fixed_rows else [rows for rows in WARM_ROWS if rows <= config.max_rows]
            self.core.calibrate({model.spec.shape_key: self.executor.warm(widths)})
        self._trace = None if config.trace is None else TraceWriter(config.trace, config)
        self._calls = self.core if self._trace is None else RecordedCore(self.core, self._trace.write)
        self.desk = CallDesk(self._calls, model.spec, self._to_chunk)
        self.metrics = EngineMetrics()
        self._model, self._clock = model, clock
        self._decoded: dict[ChunkKey, DecodedChunk] = {}
        self._max_sessions = config.max_sessions
        self._stats_replies: list[Reply] = []
        self._beat_ns = clock.now_ns()

    @property
    def world(self) -> WorldInfo:
        return self._model.world

    def ask(self, ask: Ask) -> None:
        """Take an ask; the answer is among the replies, now or after some turns."""
        if isinstance(ask, AskStats):
            self._stats_replies.append(Answer(ask.call, self.stats()))
        elif isinstance(ask, AskCommand) and isinstance(ask.command, OpenSession) and ask.image is not None:
            self._open_with_image(ask, ask.command)
        else:
            self.desk.ask(ask, self._clock.now_ns())
            if isinstance(ask, AskCommand) and isinstance(ask.command, CloseSession):
                self.executor.store.release_image(ask.command.session)

    def turn(self) -> bool:
        """Carry out the next plan, if there is one now; returns if there was."""
        began_ns = self._clock.now_ns()
        self._beat_ns = began_ns
        plan = self._calls.schedule(began_ns)
        if plan is None:
            return False
        executed = self._execute(plan)
        self._decoded.update(executed.chunks)
        now_ns = self._clock.now_ns()
        self.desk.hear(self._calls.complete(executed.result, now_ns))
        self._decoded.clear()
        result = executed.result
        wall_ns = self._clock.now_ns() - began_ns
        times = TickTimes(wall_ns, result.rows_ns, result.decode_ns, len(plan.rows))
        self.metrics.tick(times)
        if self._trace is not None:
            self._trace.tick(plan.tick, began_ns, times)
        if not len(self.desk.register):
            self.check_integrity()
        return True

    def take_replies(self) -> list[Reply]:
        """Answers and publications since the last call, in order."""
        stats, self._stats_replies = self._stats_replies, []
        return [*self.desk.take_replies(), *stats]

    def next_wake_ns(self) -> int | None:
        """When `turn` may next have something to do; None while only an ask can change that."""
        return self.core.next_wake_ns(self._clock.now_ns())

    def check_integrity(self) -> None:
        """Raise AssertionError unless core, store and pool agree on who owns what."""
        self.core.check_integrity()
        self.executor.store.check_integrity()

    def close(self) -> None:
        """Finish what is written; the loop is not turned afterwards. Idempotent."""
        if self._trace is not None:
            self._trace.close()

    def stats(self) -> EngineStats:
        """Present facts of this engine."""
        core, metrics = self.core.stats(), self.metrics
        tick_p50, tick_p95 = metrics.tick_ms(0.5, 0.95)
        interval_p50, interval_p95 = metrics.chunk_interval_ms(0.5, 0.95)
        return EngineStats(
            alive=True,
            could_admit=core.obstacle is None,
            sessions=core.sessions,
            queued=core.queued,
            streaming=core.streaming,
            max_sessions=self._max_sessions,
            pages_total=core.pages_total,
            pages_used=core.pages_used,
            ticks=metrics.ticks,
            rows=metrics.rows,
            tick_ms_p50=tick_p50,
            tick_ms_p95=tick_p95,
            batch_rows_mean=metrics.batch_rows_mean,
            overhead_share=metrics.overhead_share,
            chunk_interval_ms_p50=interval_p50,
            chunk_interval_ms_p95=interval_p95,
            late_chunks=core.late_chunks,
            evictions=core.evictions,
            heartbeat_age_s=(self._clock.now_ns() - self._beat_ns) / 1e9,
        )

    def _open_with_image(self, ask: AskCommand, command: OpenSession) -> None:
        """The image is encoded before the session exists, and let go if it is refused."""
        world, image = self._model.world, ask.image
        if image is None or image.shape != (world.height, world.width, 3) or image.dtype.name != "uint8":
            wanted = f"uint8 RGB ({world.height}, {world.width}, 3)"
            found = "none" if image is None else f"{image.dtype.name} {tuple(image.shape)}"
            self._stats_replies.append(
                Answer(ask.call, error=InvalidAction(f"the image must be {wanted}, got {found}"))
            )
            return
        self.executor.hold_image(command.session, image)
        if self._trace is not None:
            self._trace.image(command.session, image)
        self.desk.ask(ask, self._clock.now_ns())
        if self.desk.register.get(command.session) is None:
            self.executor.store.release_image(command.session)

    def _execute(self, plan: Plan) -> Executed:
        """Run the executor; a failure that it could not attribute fails every session of the plan."""
        try:
            return self.executor.execute(plan)
        except Exception as error:
            log.exception("tick %d failed", plan.tick)
            reason = f"the tick failed: {type(error).__name__}"
            started = [op.session if isinstance(op, StartState) else op.target for op in plan.ops]
            parties = dict.fromkeys([*started, *(row.session for row in plan.rows)], reason)
            return Executed(Result(plan.tick, tuple(parties.items())), {})

    def _to_chunk(self, fact: ChunkReady) -> ChunkOut:
        """Join an announced chunk with its frames; called once for each ChunkReady, within `turn`."""
        decoded = self._decoded[fact.session, int(fact.epoch), int(fact.chunk)]
        now_ns = self._clock.now_ns()
        self.metrics.chunk(fact.session, fact.epoch, now_ns, fact.due_ns)
        state = dict(zip(self._model.state_names, decoded.readouts, strict=True))
        reward = state.get(self._model.reward_name) if self._model.reward_name is not None else None
        chunk = ChunkOut(
            session=fact.session,
            epoch=fact.epoch,
            chunk=fact.chunk,
            first_frame_id=fact.index_in_life * self._model.spec.chunk_frames,
            frames=decoded.frames,
            applied=tuple(fact.applied),
            action=decoded.action,
            state=state,
            reward=reward,
            timing_ms={
                "queue": (decoded.started_ns - fact.opened_ns) / 1e6,
                "denoise": decoded.denoise_ns / 1e6,
                "decode": decoded.decode_ns / 1e6,
                "total": (now_ns - fact.opened_ns) / 1e6,
                "batch_rows": float(decoded.batch_rows),
            },
        )
        if self._trace is not None:
            self._trace.chunk(chunk, fact.opened_ns, now_ns)
        return chunk


def build_engine(config: EngineConfig, clock: Clock) -> EngineLoop:
    """Load the world of a configuration and make its engine; sets torch's threads. Raises WorldError or
    ProfileError.
    """
    torch.set_num_threads(config.num_threads)
    loaded = load_world(config.world, config.torch_dtype)
    return EngineLoop(serve(loaded, discipline=config.discipline, commit=config.commit), config, clock, warm=True)
