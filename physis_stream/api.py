"""The engine in your own process: sessions as plain objects, driven by whoever calls them. No server, no threads.

    engine = Engine("pusht")
    with engine.open_session(seed=0) as session:
        chunk = session.step([250.0, 300.0])        # uint8 frames (F, H, W, 3)

A call turns the engine until its own answer is there; other sessions' work that is due rides in the same batches.
Methods, return types and errors are those of the network client (`physis_client`). Calls from several threads take
turns.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import torch

from physis_client import errors as client_errors
from physis_client.chunks import Chunk, Frame
from physis_stream.core import commands
from physis_stream.core.commands import Command, Pace
from physis_stream.core.errors import EngineError
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.runtime.clock import Clock, RealClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_loop import EngineLoop
from physis_stream.runtime.messages import Answer, Ask, AskChunks, AskCommand, AskStats, AskStatus, AskSteps, StepItem
from physis_stream.runtime.process_tuning import keep_memory
from physis_stream.runtime.served_model import serve
from physis_stream.runtime.service import ChunkOut, EngineStats, Frames, Notice, SessionStatus, WorldInfo
from physis_stream.worlds import LoadedWorld, load_world

Kind = TypeVar("Kind")
KEPT_CHUNKS = 2
"""Chunks of a realtime session that wait for `frames()`; older ones are dropped."""
PAUSED_NS = 20_000_000
"""How long `frames` lets other threads go on when nothing is foreseen, as in a paused session."""


class Engine:
    """One world, ready to dream. `world` is a name that ships, a folder with a profile.json, or a loaded world.

    `discipline` is one that the world's profile offers, by default its first. `threads` sets torch's, for the whole
    process; None leaves them. `deterministic` makes the bits of a session independent of its company, at the price
    of speed and in float32. `trace` is a file to record the run to, for `physis-stream trace`. Raises WorldError (a
    ValueError) for a world that cannot be loaded.
    """

    def __init__(
        self,
        world: str | Path | LoadedWorld = "pusht",
        *,
        discipline: str | None = None,
        threads: int | None = None,
        deterministic: bool = False,
        max_sessions: int = 64,
        dtype: str = "auto",
        trace: str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        name = world.profile.name if isinstance(world, LoadedWorld) else str(world)
        config = EngineConfig(
            world=name,
            discipline=discipline,
            threads=threads,
            deterministic=deterministic,
            max_sessions=max_sessions,
            dtype=dtype,
            trace=None if trace is None else str(trace),
        )
        keep_memory()
        if threads is not None:
            torch.set_num_threads(threads)
        loaded = world if isinstance(world, LoadedWorld) else load_world(world, config.torch_dtype)
        self._clock = RealClock() if clock is None else clock
        self._loop = EngineLoop(serve(loaded, discipline=discipline), config, self._clock)
        self._lock = threading.RLock()
        self._calls = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._sessions: dict[SessionId, Session] = {}

    @property
    def world(self) -> WorldInfo:
        """What is served: sizes, rate, action bounds, names of the readouts."""
        return self._loop.world

    def open_session(self, seed: int = 0, image: Frames | None = None, mode: str = "lockstep") -> Session:
        """Open a session and show its first chunk (`session.chunk`).

        `image` (H, W, 3) uint8 RGB replaces the start that the seed picks. `mode` is "lockstep" (a chunk for each
        `step`) or "realtime" (chunks by the clock, read with `frames`). Raises Capacity when there is no room.
        """
        try:
            pace = Pace(mode)
        except ValueError as wrong:
            raise client_errors.InvalidState(f"mode is 'lockstep' or 'realtime', got {mode!r}") from wrong
        name = SessionId(secrets.token_hex(16))
        with self._lock:
            self._sessions[name] = session = Session(self, name, seed)
            try:
                self._ask(SessionStatus, commands.OpenSession(name, seed, pace, wait=False), image)
                self._call(AskChunks(next(self._calls), name, True))
                session._await_chunk()
            except client_errors.PhysisError:
                self._sessions.pop(name, None)
                raise
        return session

    def step_many(self, sessions: Sequence[Session], actions: Sequence[Any]) -> list[Chunk]:
        """One chunk of each session, batched; a wrong action refuses the call before any session moves."""
        if len(sessions) != len(actions):
            raise client_errors.InvalidAction(f"{len(sessions)} sessions but {len(actions)} actions")
        numbers = [_numbers(action) for action in actions]
        with self._lock:
            items = [
                StepItem(session._id, EventId(next(session._events)), action)
                for session, action in zip(sessions, numbers, strict=True)
            ]
            chunks = self._expect(list, AskSteps(next(self._calls), items))
            return [_chunk(chunk) for chunk in chunks]

    def stats(self) -> EngineStats:
        """Present facts: sessions, pages, tick times, share of overhead."""
        with self._lock:
            return self._expect(EngineStats, AskStats(next(self._calls)))

    def close(self) -> None:
        """Close every session, and the trace if one is recorded. Idempotent."""
        for session in list(self._sessions.values()):
            session.close()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, kind: type[Kind], command: Command, image: Frames | None = None) -> Kind:
        return self._expect(kind, AskCommand(next(self._calls), command, image))

    def _expect(self, kind: type[Kind], ask: Ask) -> Kind:
        value = self._call(ask)
        assert isinstance(value, kind), f"{type(ask).__name__} was answered with {type(value).__name__}"
        return value

    def _call(self, ask: Ask) -> object:
        """Turn the engine until this ask is answered; raises its refusal in the client's family of errors."""
        with self._lock:
            self._loop.ask(ask)
            self._turn_until(lambda: ask.call in self._answers)
            answer = self._answers.pop(ask.call)
        if answer.error is not None:
            raise to_client_error(answer.error) from answer.error
        return answer.value

    def _turn_until(self, done: Callable[[], bool]) -> None:
        """Turn the engine, sleeping where nothing is due, until `done`."""
        self._sort()
        while not done():
            if not self._loop.turn():
                wake_ns = self._loop.next_wake_ns()
                if wake_ns is None:
                    raise client_errors.PhysisError("the engine has nothing to do and the answer is not there")
                self._clock.sleep_until_ns(wake_ns)
            self._sort()

    def _sort(self) -> None:
        """Bring replies to where they are waited for."""
        for reply in self._loop.take_replies():
            if isinstance(reply, Answer):
                self._answers[reply.call] = reply
                continue
            session = self._sessions.get(reply.output.session)
            if session is not None:
                session._receive(reply.output)


class Session:
    """One user's world. Made by `Engine.open_session` and `fork`; a context manager that closes it."""

    def __init__(self, engine: Engine, name: SessionId, seed: int) -> None:
        self._engine, self._id, self._seed = engine, name, seed
        self._events = itertools.count(1)
        self._chunks: deque[ChunkOut] = deque(maxlen=KEPT_CHUNKS)
        self._newest: ChunkOut | None = None
        self._ended: str | None = None
        self._failed: str | None = None
        self._callbacks: dict[str, list[Callable[[dict[str, Any]], None]]] = {}

    @property
    def id(self) -> str:
        return self._id

    @property
    def chunk(self) -> Chunk | None:
        """The newest chunk; after opening and after a reset that is chunk 0, the start."""
        return None if self._newest is None else _chunk(self._newest)

    def step(self, action: Any) -> Chunk:
        """Lockstep: produce one chunk under this action (A,). Raises InvalidAction before anything changes."""
        return self._engine.step_many([self], [action])[0]

    def act(self, action: Any) -> int:
        """Realtime: from the next chunk on, this action (A,); returns its event id, which that chunk's `applied`
        will name.
        """
        event = EventId(next(self._events))
        self._engine._call(
            AskCommand(next(self._engine._calls), commands.SubmitControl(self._id, event, action=_numbers(action)))
        )
        return event

    def frames(self) -> Iterator[Frame]:
        """Realtime: frames as they come, for as long as the session lives; ends when it ends. Turns the engine
        meanwhile.
        """
        engine = self._engine
        while True:
            with engine._lock:
                chunk, wake_ns = self._next_chunk(), engine._loop.next_wake_ns()
            if chunk is not None:
                yield from _chunk(chunk).split(engine.world.fps)
            elif self._over:
                return
            else:
                engine._clock.sleep_until_ns(engine._clock.now_ns() + PAUSED_NS if wake_ns is None else wake_ns)

    def _next_chunk(self) -> ChunkOut | None:
        """The oldest chunk that waits for `frames`; turns the engine as far as there is work now."""
        engine = self._engine
        engine._sort()
        while not self._chunks and not self._over and engine._loop.turn():
            engine._sort()
        return self._chunks.popleft() if self._chunks else None

    def fork(self, n: int | None = None) -> Any:
        """A twin that stands where this session stands (or, for a number, a list of that many), sharing its past."""
        engine = self._engine
        names = tuple(SessionId(secrets.token_hex(16)) for _ in range(1 if n is None else n))
        with engine._lock:
            twins = [Session(engine, name, self._seed) for name in names]
            engine._ask(list, commands.ForkSession(self._id, names))
            for twin in twins:
                engine._sessions[twin._id] = twin
                engine._call(AskChunks(next(engine._calls), twin._id, True))
        return twins[0] if n is None else twins

    def snapshot(self) -> str:
        """Keep the present state under a new id; `restore` returns to it, in this session and in its forks."""
        name = SnapshotId(secrets.token_hex(16))
        self._engine._ask(SessionStatus, commands.TakeSnapshot(self._id, name))
        return name

    def restore(self, snapshot: str) -> None:
        """Return to a snapshot; begins a new epoch. The next step continues from there."""
        self._engine._ask(SessionStatus, commands.RestoreSnapshot(self._id, SnapshotId(snapshot)))

    def drop_snapshot(self, snapshot: str) -> None:
        """Forget a snapshot and free what only it held."""
        self._engine._call(AskCommand(next(self._engine._calls), commands.DropSnapshot(SnapshotId(snapshot))))

    def reset(self, *, seed: int | None = None) -> Chunk:
        """Begin a new epoch, from this seed or the last one; returns its first chunk."""
        self._seed = self._seed if seed is None else seed
        with self._engine._lock:
            self._newest = self._failed = None
            self._engine._ask(SessionStatus, commands.ResetSession(self._id, self._seed))
            return self._await_chunk()

    def pause(self) -> None:
        """Open no further chunk; those in flight finish."""
        self._engine._ask(SessionStatus, commands.PauseSession(self._id))

    def resume(self) -> None:
        """Go on from where pause stopped."""
        self._engine._ask(SessionStatus, commands.ResumeSession(self._id))

    def status(self) -> SessionStatus:
        """Where the session stands; also answers for a while after its end."""
        return self._engine._expect(SessionStatus, AskStatus(next(self._engine._calls), self._id))

    def on(self, kind: str, callback: Callable[[dict[str, Any]], None]) -> None:
        """Call back with the details of each "status", "error", "ended", "queue" or "recovered" notice."""
        self._callbacks.setdefault(kind, []).append(callback)

    def close(self) -> None:
        """End the session and free what it holds. Idempotent."""
        engine = self._engine
        with engine._lock:
            if engine._sessions.get(self._id) is self:
                engine._call(AskCommand(next(engine._calls), commands.CloseSession(self._id)))
                engine._turn_until(lambda: self._ended is not None)
                engine._sessions.pop(self._id, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _over(self) -> bool:
        return self._ended is not None or self._failed is not None

    def _await_chunk(self) -> Chunk:
        """Turn the engine until a chunk of the present epoch has come."""
        self._engine._turn_until(lambda: self._newest is not None or self._over)
        if self._newest is None:
            raise client_errors.InvalidState(f"the session could not start: {self._failed or self._ended}")
        return _chunk(self._newest)

    def _receive(self, output: ChunkOut | Notice) -> None:
        if isinstance(output, ChunkOut):
            self._newest = output
            self._chunks.append(output)
            return
        if output.kind == "ended":
            self._ended = str(output.detail.get("reason", "closed"))
        elif output.kind == "error":
            self._failed = str(output.detail.get("message", "failed"))
        for callback in self._callbacks.get(output.kind, ()):
            callback(dict(output.detail))


def to_client_error(error: EngineError) -> client_errors.PhysisError:
    """The same refusal in the family that local and remote users catch."""
    family = client_errors.FAMILIES.get(error.code, client_errors.PhysisError)
    return family(error.message, code=error.code, recoverable=error.recoverable, retry_after_s=error.retry_after_s)


def _numbers(action: Any) -> tuple[float, ...]:
    """An action as a flat tuple of numbers; raises InvalidAction for what is none."""
    try:
        array = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise client_errors.InvalidAction(f"an action is a list of numbers, got {type(action).__name__}") from wrong
    if array.ndim != 1:
        raise client_errors.InvalidAction(f"an action has one dimension, got shape {array.shape}")
    return tuple(array.tolist())


def _chunk(out: ChunkOut) -> Chunk:
    return Chunk(
        frames=out.frames,
        epoch=out.epoch,
        index=out.chunk,
        first_frame_id=out.first_frame_id,
        applied=out.applied,
        action=out.action,
        state=out.state,
        reward=out.reward,
        timing=out.timing_ms,
    )
