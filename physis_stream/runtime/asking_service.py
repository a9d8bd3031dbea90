"""The async face of an engine: typed calls become asks, answers become results, publications go to subscribers.

Common to the engine in a thread and the engine in a process, which say how an ask is sent and call `deliver` with
what comes back, both on the event loop that called `start`. It knows neither threads nor pipes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import secrets
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from physis_stream.core import commands
from physis_stream.core.commands import Command
from physis_stream.core.errors import EngineDown, EngineError, InvalidAction, NotFound, SessionEnded
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.runtime.messages import (
    Answer,
    Ask,
    AskChunks,
    AskCommand,
    AskStats,
    AskStatus,
    AskSteps,
    Reply,
    StepItem,
)
from physis_stream.runtime.outbox import Outbox, is_last
from physis_stream.runtime.service import (
    ChunkOut,
    EngineStats,
    Frames,
    Notice,
    OpenRequest,
    Output,
    SessionStatus,
    WorldInfo,
)

Kind = TypeVar("Kind")
STATS_WAIT_S = 0.5
"""How long `stats` waits for an engine that is in the middle of a tick."""
HANG_S = 60.0
"""A loop that has not beaten for this long is dead: no tick takes as long."""
MAX_LOST = 1024
"""Sessions that went down with an engine and are remembered, so that their clients hear why."""


class AskingService(ABC):
    """Implements `runtime.service.EngineService` but for `start` and `stop`."""

    def __init__(self) -> None:
        self._world: WorldInfo | None = None
        self._calls = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._outboxes: dict[SessionId, list[Outbox]] = {}
        self._newest: dict[SessionId, ChunkOut] = {}
        self._alive_sessions: set[SessionId] = set()
        self._lost: OrderedDict[SessionId, str] = OrderedDict()
        self._last_stats = NO_STATS

    @abstractmethod
    def _send(self, ask: Ask) -> None:
        """Send an ask on its way; raises EngineDown if there is no engine to take it. Must not block."""

    @abstractmethod
    def _heartbeat_age_s(self) -> float:
        """Seconds since the engine's loop last showed that it lives."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine; returns when it takes calls."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop the engine and free everything. Idempotent."""

    def worlds(self) -> Sequence[WorldInfo]:
        """The world that is served; empty before the engine has started."""
        return () if self._world is None else (self._world,)

    async def open_session(self, request: OpenRequest) -> SessionStatus:
        if self._world is not None and request.world != self._world.name:
            raise NotFound(f"there is no world {request.world!r} here; served is {self._world.name!r}")
        name = SessionId(secrets.token_hex(16))
        command = commands.OpenSession(name, request.seed, request.pace, wait=request.wait)
        self._alive_sessions.add(name)
        try:
            return await self._command(SessionStatus, command, request.image)
        except EngineError:
            self._alive_sessions.discard(name)
            raise

    async def close_session(self, session: SessionId, reason: str = "closed") -> None:
        if session in self._lost:
            return
        with suppress(NotFound):
            await self._command(type(None), commands.CloseSession(session, reason))

    async def status(self, session: SessionId) -> SessionStatus:
        self._check_lost(session)
        return await self._call(SessionStatus, AskStatus(next(self._calls), session))

    async def control(
        self, session: SessionId, event: int, action: Sequence[float] | None = None, prompt: str | None = None
    ) -> None:
        numbers = None if action is None else _action(action)
        command = commands.SubmitControl(session, EventId(event), action=numbers, prompt=prompt)
        await self._command(type(None), command)

    async def step(self, session: SessionId, event: int, action: Sequence[float]) -> ChunkOut:
        return (await self.step_many([session], [event], [action]))[0]

    async def step_many(
        self, sessions: Sequence[SessionId], events: Sequence[int], actions: Sequence[Sequence[float]]
    ) -> Sequence[ChunkOut]:
        if not len(sessions) == len(events) == len(actions):
            raise InvalidAction(
                f"{len(sessions)} sessions, {len(events)} events and {len(actions)} actions do not match"
            )
        for session in sessions:
            self._check_lost(session)
        items = [
            StepItem(session, EventId(event), _action(action))
            for session, event, action in zip(sessions, events, actions, strict=True)
        ]
        chunks: list[ChunkOut] = await self._call(list, AskSteps(next(self._calls), items))
        return chunks

    async def reset(self, session: SessionId, seed: int) -> SessionStatus:
        return self._restarted(await self._command(SessionStatus, commands.ResetSession(session, seed)))

    async def pause(self, session: SessionId) -> SessionStatus:
        return await self._command(SessionStatus, commands.PauseSession(session))

    async def resume(self, session: SessionId) -> SessionStatus:
        return await self._command(SessionStatus, commands.ResumeSession(session))

    async def fork(self, session: SessionId, count: int) -> Sequence[SessionStatus]:
        children = tuple(SessionId(secrets.token_hex(16)) for _ in range(count))
        statuses: list[SessionStatus] = await self._command(list, commands.ForkSession(session, children))
        self._alive_sessions.update(children)
        return statuses

    async def snapshot(self, session: SessionId) -> SnapshotId:
        name = SnapshotId(secrets.token_hex(16))
        await self._command(SessionStatus, commands.TakeSnapshot(session, name))
        return name

    async def restore(self, session: SessionId, snapshot: SnapshotId) -> SessionStatus:
        return self._restarted(await self._command(SessionStatus, commands.RestoreSnapshot(session, snapshot)))

    async def stats(self) -> EngineStats:
        """Present facts. Of an engine that is down, or that does not answer for a while, the last known ones and its
        age.
        """
        age_s = self._heartbeat_age_s()
        try:
            stats = await asyncio.wait_for(self._call(EngineStats, AskStats(next(self._calls))), STATS_WAIT_S)
        except EngineDown:
            return dataclasses.replace(NO_STATS, heartbeat_age_s=age_s)
        except TimeoutError:
            return dataclasses.replace(self._last_stats, alive=age_s < HANG_S, heartbeat_age_s=age_s)
        self._last_stats = dataclasses.replace(stats, heartbeat_age_s=age_s)
        return self._last_stats

    async def subscribe(self, session: SessionId, *, max_chunks: int = 2) -> AsyncIterator[Output]:
        """See `EngineService.subscribe`; begins with the session's newest chunk, if it has one."""
        self._check_lost(session)
        outbox = Outbox(max_chunks)
        boxes = self._outboxes.setdefault(session, [])
        first = not boxes
        boxes.append(outbox)
        try:
            if first:
                await self._call(type(None), AskChunks(next(self._calls), session, True))
            elif session in self._newest:
                outbox.put(_own(self._newest[session]))
            while True:
                item = await outbox.get()
                yield item
                if is_last(item):
                    return
        finally:
            self._unsubscribe(session, outbox)

    def deliver(self, replies: Sequence[Reply]) -> None:
        """Take what the engine sent, in order; called on the event loop."""
        for reply in replies:
            if isinstance(reply, Answer):
                self._settle(reply)
            else:
                self._publish(reply.output)

    def abandon(self, reason: str) -> None:
        """The engine is gone: refuse every call under way and end every session. Called on the event loop."""
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineDown(reason))
        self._pending.clear()
        for session in sorted(self._alive_sessions):
            self._lost[session] = reason
            self._publish(Notice(session, "error", {"code": "engine_down", "message": reason, "reason": reason}))
            self._publish(Notice(session, "ended", {"reason": reason}))
        while len(self._lost) > MAX_LOST:
            self._lost.popitem(last=False)

    async def _command(self, kind: type[Kind], command: Command, image: Frames | None = None) -> Kind:
        session = getattr(command, "session", None)
        if session is not None:
            self._check_lost(session)
        return await self._call(kind, AskCommand(next(self._calls), command, image))

    async def _call(self, kind: type[Kind], ask: Ask) -> Kind:
        """Send an ask and wait for its answer; raises its refusal."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[ask.call] = future
        try:
            self._send(ask)
            value = await future
        finally:
            self._pending.pop(ask.call, None)
        assert isinstance(value, kind), f"{type(ask).__name__} was answered with {type(value).__name__}"
        return value

    def _settle(self, answer: Answer) -> None:
        future = self._pending.get(answer.call)
        if future is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(answer.error)
        else:
            future.set_result(answer.value)

    def _publish(self, output: Output) -> None:
        session = output.session
        boxes = self._outboxes.get(session, ())
        if isinstance(output, ChunkOut):
            if boxes:
                self._newest[session] = output
        elif output.kind == "ended":
            self._alive_sessions.discard(session)
            self._newest.pop(session, None)
        for number, box in enumerate(boxes):
            box.put(output if number == 0 else _own(output))

    def _restarted(self, status: SessionStatus) -> SessionStatus:
        """After a reset or restore has been answered, nothing of an older epoch is handed out."""
        self._newest.pop(status.session, None)
        for box in self._outboxes.get(status.session, ()):
            box.begin_epoch(status.epoch)
        return status

    def _unsubscribe(self, session: SessionId, outbox: Outbox) -> None:
        boxes = self._outboxes.get(session, [])
        if outbox in boxes:
            boxes.remove(outbox)
        if not boxes:
            self._outboxes.pop(session, None)
            self._newest.pop(session, None)
            if session in self._alive_sessions:
                with suppress(EngineDown):
                    self._send(AskChunks(next(self._calls), session, False))

    def _check_lost(self, session: SessionId) -> None:
        if session in self._lost:
            raise SessionEnded(f"the session is over: {self._lost[session]}")


def _own(output: Output) -> Output:
    """The output with frames of its own, for one more receiver."""
    return dataclasses.replace(output, frames=output.frames.copy()) if isinstance(output, ChunkOut) else output


def _action(action: Sequence[float]) -> tuple[float, ...]:
    """An action as plain numbers; raises InvalidAction for what is none. Lengths and bounds are the core's business."""
    try:
        array = np.asarray(action, dtype=np.float64)
    except (TypeError, ValueError) as wrong:
        raise InvalidAction(f"an action is a list of numbers, got {type(action).__name__}") from wrong
    if array.ndim != 1:
        raise InvalidAction(f"an action is a list of numbers, got shape {array.shape}")
    return tuple(array.tolist())


NO_STATS = EngineStats(
    alive=False,
    could_admit=False,
    sessions=0,
    queued=0,
    streaming=0,
    max_sessions=0,
    pages_total=0,
    pages_used=0,
    ticks=0,
    rows=0,
    tick_ms_p50=0.0,
    tick_ms_p95=0.0,
    batch_rows_mean=0.0,
    overhead_share=0.0,
    chunk_interval_ms_p50=0.0,
    chunk_interval_ms_p95=0.0,
    late_chunks=0,
    evictions=0,
    heartbeat_age_s=0.0,
)
