"""A deterministic engine without a model, for tests of whatever sits on top of one.

Implements runtime.service.EngineService on asyncio alone. Sessions are realtime (a chunk each F / fps seconds of
`pace`) or lockstep; they fork, reset, snapshot, queue and fail on demand. Pictures depend on seed, epoch and actions
only, so that two runs agree bit for bit. Knows no sockets and no torch.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

from physis_stream.core.commands import Pace
from physis_stream.core.errors import (
    Capacity,
    EngineDown,
    EngineError,
    InvalidAction,
    InvalidState,
    NotFound,
    SessionEnded,
)
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.runtime.service import (
    ChunkOut,
    EngineStats,
    Notice,
    OpenRequest,
    Output,
    SessionStatus,
    WorldInfo,
)
from physis_stream.testing.fake_world import ACTION, FakeSession, Place, Subscription, draw, square_world, start_of

__all__ = ["ACTION", "FakeEngineService", "Place", "draw", "start_of"]


class FakeEngineService:
    """The engine service without a model. `pace` < 1 runs faster than the world's clock.

    `refuse_next[call] = error` makes the next such call raise; `delay_s[call]` makes each such call wait first;
    `fail_session`, `crash` and `recover` are what tests of failure need.
    """

    def __init__(
        self,
        *,
        fps: float = 10.0,
        chunk_frames: int = 3,
        height: int = 96,
        width: int = 96,
        max_sessions: int = 4,
        pace: float = 1.0,
        name: str = "fake-square",
    ) -> None:
        self.world = square_world(name, fps, chunk_frames, height, width)
        self.max_sessions = max_sessions
        self.pace = pace
        self.refuse_next: dict[str, EngineError] = {}
        self.delay_s: dict[str, float] = {}
        self.calls: list[str] = []
        self.alive = True
        self.started = False
        self._sessions: dict[SessionId, FakeSession] = {}
        self._queue: deque[SessionId] = deque()
        self._snapshots: dict[SnapshotId, tuple[SessionId, Place, int]] = {}
        self._ids = itertools.count(1)
        self._ticks = 0

    # What the protocol asks

    def worlds(self) -> Sequence[WorldInfo]:
        return (self.world,)

    async def open_session(self, request: OpenRequest) -> SessionStatus:
        await self._enter("open_session")
        if request.world != self.world.name:
            raise NotFound(f"no world named {request.world}")
        session = FakeSession(
            id=SessionId(f"{next(self._ids):032x}"),
            world=self.world,
            pace=request.pace,
            seed=request.seed,
            place=start_of(request.seed),
        )
        if self._resident() >= self.max_sessions:
            if not request.wait:
                raise Capacity(f"all {self.max_sessions} sessions are taken", retry_after_s=2.0)
            session.state = "queued"
            self._queue.append(session.id)
            session.queue_position = len(self._queue)
        self._sessions[session.id] = session
        if session.state != "queued":
            self._admit(session)
        return session.status()

    async def close_session(self, session: SessionId, reason: str = "closed") -> None:
        self.calls.append("close_session")
        found = self._sessions.get(session)
        if found is None or found.state == "ended":
            return
        if found.task is not None:
            found.task.cancel()
            found.task = None
        found.last_chunk = None
        if session in self._queue:
            self._queue.remove(session)
        found.state, found.ended_reason = "ended", reason
        found.publish(Notice(session, "ended", {"reason": reason}))
        self._admit_waiting()
        await asyncio.sleep(self.delay_s.get("close_session", 0.0))

    async def status(self, session: SessionId) -> SessionStatus:
        await self._enter("status")
        found = self._sessions.get(session)
        if found is None:
            raise NotFound("no such session")
        return found.status()

    async def control(
        self, session: SessionId, event: int, action: Sequence[float] | None = None, prompt: str | None = None
    ) -> None:
        await self._enter("control")
        found = self._live(session)
        if found.state == "failed":
            raise InvalidState("control is not legal in state failed")
        checked = None if action is None else ACTION.check(list(action))
        if event <= found.last_event:
            return
        found.last_event = event
        found.pending.append(event)
        found.target = found.target if checked is None else checked
        found.prompt = found.prompt if prompt is None else prompt

    async def step(self, session: SessionId, event: int, action: Sequence[float]) -> ChunkOut:
        return (await self.step_many([session], [event], [action]))[0]

    async def step_many(
        self, sessions: Sequence[SessionId], events: Sequence[int], actions: Sequence[Sequence[float]]
    ) -> Sequence[ChunkOut]:
        await self._enter("step_many")
        if len(set(sessions)) != len(sessions):
            raise InvalidAction("a session may stand only once in a batch")
        found = [self._live(session) for session in sessions]
        for one in found:
            if one.pace is not Pace.LOCKSTEP:
                raise InvalidState("step is for lockstep sessions; this one is realtime")
            if one.state != "ready":
                raise InvalidState(f"step is not legal in state {one.state}")
        checked = [ACTION.check(list(action)) for action in actions]
        again = [self._repeated(one, event) for one, event in zip(found, events, strict=True)]
        return [
            known or self._step(one, event, action)
            for known, one, event, action in zip(again, found, events, checked, strict=True)
        ]

    async def reset(self, session: SessionId, seed: int) -> SessionStatus:
        await self._enter("reset")
        found = self._live(session)
        if found.state == "queued":
            raise InvalidState("reset is not legal in state queued")
        found.seed, found.place, found.target = seed, start_of(seed), ACTION.initial
        found.pending = []
        found.begin_epoch()
        found.move_to("ready" if found.pace is Pace.LOCKSTEP else "streaming")
        self._produce(found)
        self._run(found)
        return found.status()

    async def pause(self, session: SessionId) -> SessionStatus:
        await self._enter("pause")
        found = self._live(session)
        if found.pace is not Pace.REALTIME or found.state not in ("streaming", "paused"):
            raise InvalidState(f"pause is not legal in state {found.state} of a {found.pace.value} session")
        found.move_to("paused")
        return found.status()

    async def resume(self, session: SessionId) -> SessionStatus:
        await self._enter("resume")
        found = self._live(session)
        if found.state not in ("paused", "streaming"):
            raise InvalidState(f"resume is not legal in state {found.state}")
        found.move_to("streaming")
        return found.status()

    async def fork(self, session: SessionId, count: int) -> Sequence[SessionStatus]:
        await self._enter("fork")
        parent = self._live(session)
        if parent.state in ("queued", "failed"):
            raise InvalidState(f"fork is not legal in state {parent.state}")
        if self._resident() + count > self.max_sessions:
            raise Capacity(f"no room for {count} more sessions", retry_after_s=2.0)
        children = []
        for _ in range(count):
            child = FakeSession(
                id=SessionId(f"{next(self._ids):032x}"),
                world=parent.world,
                pace=parent.pace,
                seed=parent.seed,
                place=parent.place,
                state=parent.state,
                target=parent.target,
                chunk=parent.chunk,
                chunks_in_life=parent.chunks_in_life,
            )
            self._sessions[child.id] = child
            children.append(child)
            self._run(child)
        return [child.status() for child in children]

    async def snapshot(self, session: SessionId) -> SnapshotId:
        await self._enter("snapshot")
        found = self._live(session)
        name = SnapshotId(f"{next(self._ids):032x}")
        self._snapshots[name] = (session, found.place, found.chunk)
        return name

    async def restore(self, session: SessionId, snapshot: SnapshotId) -> SessionStatus:
        await self._enter("restore")
        found = self._live(session)
        kept = self._snapshots.get(snapshot)
        if kept is None or kept[0] != session:
            raise NotFound("no such snapshot of this session")
        found.begin_epoch()
        found.place, found.chunk = kept[1], kept[2]
        found.move_to(found.state)
        return found.status()

    async def subscribe(self, session: SessionId, *, max_chunks: int = 2) -> AsyncIterator[Output]:
        found = self._sessions.get(session)
        if found is None:
            raise NotFound("no such session")
        if found.state == "ended":
            yield Notice(session, "ended", {"reason": found.ended_reason or "closed"})
            return
        subscription = Subscription(max_chunks)
        if found.last_chunk is not None:
            subscription.put(found.last_chunk)
        found.subscriptions.append(subscription)
        try:
            while True:
                while subscription.items:
                    item = subscription.items.popleft()
                    yield item
                    if isinstance(item, Notice) and item.kind == "ended":
                        return
                subscription.ready.clear()
                await subscription.ready.wait()
        finally:
            found.subscriptions.remove(subscription)

    async def stats(self) -> EngineStats:
        states = [one.state for one in self._sessions.values()]
        resident = self._resident()
        return EngineStats(
            alive=self.alive,
            could_admit=self.alive and resident < self.max_sessions,
            sessions=resident,
            queued=len(self._queue),
            streaming=states.count("streaming"),
            max_sessions=self.max_sessions,
            pages_total=self.max_sessions,
            pages_used=resident,
            ticks=self._ticks,
            rows=self._ticks,
            tick_ms_p50=1.0,
            tick_ms_p95=1.0,
            batch_rows_mean=1.0,
            overhead_share=0.0,
            chunk_interval_ms_p50=self._chunk_s * 1e3,
            chunk_interval_ms_p95=self._chunk_s * 1e3,
            late_chunks=0,
            evictions=0,
            heartbeat_age_s=0.0 if self.alive else 60.0,
        )

    async def start(self) -> None:
        self.started = True

    async def stop(self) -> None:
        tasks = [one.task for one in self._sessions.values() if one.task is not None]
        for session in list(self._sessions):
            await self.close_session(session, "server stopped")
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
        self.started = False

    # What tests do to it

    def fail_session(self, session: SessionId, reason: str = "a tick failed") -> None:
        """The model failed under this session: only reset and close are legal now."""
        found = self._sessions[session]
        found.move_to("failed")
        found.publish(Notice(session, "error", {"reason": reason}))

    def crash(self) -> None:
        """The engine's loop dies: no chunk comes any more and each call is refused."""
        self.alive = False

    def recover(self) -> None:
        """The engine's loop is back; each session hears it."""
        self.alive = True
        for one in self._sessions.values():
            one.publish(Notice(one.id, "recovered", {}))

    def live_sessions(self) -> list[SessionId]:
        """Ids of the sessions that have not ended."""
        return [one.id for one in self._sessions.values() if one.state != "ended"]

    def place_of(self, session: SessionId) -> Place:
        """Where the square stands."""
        return self._sessions[session].place

    def tick(self, session: SessionId) -> ChunkOut:
        """Produce a chunk of a realtime session at once, whatever the clock says."""
        return self._produce(self._live(session))

    # Inside

    @property
    def _chunk_s(self) -> float:
        return self.world.chunk_frames / self.world.fps * self.pace

    async def _enter(self, call: str) -> None:
        self.calls.append(call)
        if call in self.delay_s:
            await asyncio.sleep(self.delay_s[call])
        if not self.alive:
            raise EngineDown("the engine's loop is dead")
        if call in self.refuse_next:
            raise self.refuse_next.pop(call)

    def _resident(self) -> int:
        return sum(one.state not in ("ended", "queued") for one in self._sessions.values())

    def _live(self, session: SessionId) -> FakeSession:
        found = self._sessions.get(session)
        if found is None:
            raise NotFound("no such session")
        if found.state == "ended":
            raise SessionEnded(f"the session is over: {found.ended_reason}")
        return found

    def _repeated(self, one: FakeSession, event: int) -> ChunkOut | None:
        """The chunk of a step that was asked for before; None for a new one."""
        if event > one.last_event:
            return None
        if one.last_chunk is not None and event in one.last_chunk.applied:
            return one.last_chunk
        raise InvalidState(f"event {event} was used before; event ids grow, the newest was {one.last_event}")

    def _step(self, one: FakeSession, event: int, action: tuple[float, ...]) -> ChunkOut:
        one.target = action
        one.pending.append(event)
        one.last_event = event
        return self._produce(one)

    def _admit(self, one: FakeSession) -> None:
        one.move_to("ready" if one.pace is Pace.LOCKSTEP else "streaming")
        self._produce(one)
        self._run(one)

    def _admit_waiting(self) -> None:
        while self._queue and self._resident() < self.max_sessions:
            one = self._sessions[self._queue.popleft()]
            one.queue_position = 0
            self._admit(one)
        for position, waiting in enumerate(self._queue, start=1):
            one = self._sessions[waiting]
            if one.queue_position != position:
                one.queue_position = position
                one.publish(Notice(one.id, "queue", {"position": position}))

    def _run(self, one: FakeSession) -> None:
        if one.pace is Pace.REALTIME and (one.task is None or one.task.done()):
            one.task = asyncio.create_task(self._stream(one))

    async def _stream(self, one: FakeSession) -> None:
        clock = asyncio.get_running_loop().time
        due = clock() + self._chunk_s
        while one.state != "ended":
            await asyncio.sleep(max(0.0, due - clock()))
            due += self._chunk_s
            if self.alive and one.state == "streaming":
                self._produce(one)

    def _produce(self, one: FakeSession) -> ChunkOut:
        self._ticks += 1
        return one.produce()
