"""A session of the asyncio client: the twin of sync_session, on the same wire code. One task reads its socket.

Callbacks may be coroutines; they are awaited one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from physis_client import http_calls, wire
from physis_client.async_link import Link
from physis_client.chunks import Chunk, Frame, SessionStatus, World, chunk_from_message, status_from_message
from physis_client.errors import InvalidState, PhysisError, SessionEnded, Timeout
from physis_client.protocol import ChunkArrived, ChunkBuffer, Happened
from physis_client.sync_session import EVENTS

Callback = Callable[[dict[str, Any]], object]
T = TypeVar("T")


if TYPE_CHECKING:
    from physis_client.async_client import AsyncClient


class AsyncSession:
    """One session. Connects when first used; a lost connection raises Transport and the next call connects again."""

    def __init__(self, client: AsyncClient, status: SessionStatus, token: str) -> None:
        self.id, self.model, self.mode, self.seed = status.id, status.model, status.mode, status.seed
        self.token = token
        self._client = client
        self._state = status.state
        self._admitted = status.queue_position == 0
        self._connecting = asyncio.Lock()
        self._news = asyncio.Event()
        self._buffer = ChunkBuffer()
        self._events = 0
        self._link: Link | None = None
        self._failure: PhysisError | None = None
        self._ended: str | None = None
        self._callbacks: dict[str, list[Callback]] = {}
        self._calls: asyncio.Queue[tuple[Callback, dict[str, Any]]] = asyncio.Queue()
        self._caller: asyncio.Task[None] | None = None

    # Lockstep

    async def step(self, action: Any, *, timeout: float | None = None) -> Chunk:
        """Produce one chunk under this action and return it."""
        numbers = wire.action_numbers(action)
        answer = await self._ask("step", {"event": self._next_event(), "action": numbers}, timeout)
        chunk = chunk_from_message(answer["chunk"])
        self.note(chunk)
        return chunk

    async def observe(self, *, timeout: float | None = None) -> Chunk:
        """Return the newest chunk of the present epoch, waiting for the first one if need be."""
        await self._connected(timeout)
        return await self._wait(lambda: self._buffer.newest, timeout, "waiting for a chunk")

    # Realtime

    async def act(self, action: Any) -> int:
        """Send a live action and return its event id; `Chunk.applied` and `Frame.applied` name it once it is used."""
        event = self._next_event()
        await self._ask("action", {"event": event, "action": wire.action_numbers(action)})
        return event

    async def set_prompt(self, text: str) -> int:
        """Set the world's prompt and return the event id."""
        event = self._next_event()
        await self._ask("prompt", {"event": event, "text": text})
        return event

    async def interrupt(self) -> int:
        """Stop what the last action asked for: the world's initial action takes its place."""
        return await self.act((await self.world()).action["initial"])

    async def pause(self) -> None:
        """Open no further chunk."""
        await self._ask("pause", {})

    async def resume(self) -> None:
        """Go on from where pause stopped."""
        await self._ask("resume", {})

    async def frames(self, *, timeout: float | None = None) -> AsyncIterator[Frame]:
        """Yield frames as they come until the session ends.

        A slow reader misses the oldest chunks. Timeout if nothing comes for `timeout` seconds, unless paused. Ends
        when this client closed the session; raises SessionEnded with the reason when it ended otherwise.
        """
        fps = (await self.world()).fps
        while True:
            try:
                chunk = await self._wait(self._take_chunk, timeout, "waiting for a frame", patient="paused")
            except SessionEnded as error:
                if error.reason == "closed":
                    return
                raise
            for frame in chunk.split(fps):
                yield frame

    # Both

    async def world(self) -> World:
        """What the server says of this session's world."""
        return (await self._connected(None)).world

    @property
    def chunk(self) -> Chunk | None:
        """The newest chunk that arrived; after opening and after a reset that is chunk 0, the start."""
        return self._buffer.newest

    @property
    def state(self) -> str:
        """The last state that the server told."""
        return self._state

    async def status(self) -> SessionStatus:
        """Ask the server for the session's present status."""
        call = http_calls.json_call("GET", http_calls.session_path(self.id), self.token)
        return http_calls.read_session(await self._client.send(call))

    async def reset(self, seed: int | None = None, *, timeout: float | None = None) -> Chunk:
        """Begin a new epoch, from this seed or the last one, and return its first chunk. Nothing older comes after."""
        self._new_epoch(await self._ask("reset", {} if seed is None else {"seed": seed}, timeout))
        return await self.observe(timeout=timeout)

    async def restore(self, snapshot: str, *, timeout: float | None = None) -> None:
        """Return to a snapshot; begins a new epoch. The next chunk continues from there."""
        self._new_epoch(await self._ask("restore", {"snapshot": snapshot}, timeout))

    async def snapshot(self) -> str:
        """Keep the present state and return its id."""
        return str((await self._ask("snapshot", {}))["snapshot"])

    @overload
    async def fork(self) -> AsyncSession: ...

    @overload
    async def fork(self, count: int) -> list[AsyncSession]: ...

    async def fork(self, count: int | None = None) -> AsyncSession | list[AsyncSession]:
        """Return a child that stands where this session stands, or a list of `count` of them."""
        answer = await self._ask("fork", {"count": 1 if count is None else count})
        children = [self._client.adopt(status_from_message(one)) for one in answer["sessions"]]
        return children[0] if count is None else children

    def on(self, event: str, callback: Callback) -> None:
        """Call `callback(body)` at each such event, in order; coroutines are awaited."""
        if event not in EVENTS:
            raise InvalidState(f"no event named {event!r}; there are: {', '.join(EVENTS)}")
        self._callbacks.setdefault(event, []).append(callback)
        if self._caller is None:
            self._caller = asyncio.create_task(self._call_back(), name="physis callbacks")

    async def abandon(self) -> None:
        """Let go of the connection without ending the session: for 12 s it can be taken up again by id and token."""
        self._client.forget(self)
        self._finish("abandoned")
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        if self._caller is not None:
            self._caller.cancel()

    async def close(self) -> None:
        """End the session; idempotent. A server that cannot be reached ends it by itself within 20 s."""
        self._client.forget(self)
        first = self._finish("closed")
        if first:
            call = http_calls.json_call("DELETE", http_calls.session_path(self.id), self.token)
            with contextlib.suppress(PhysisError):
                await self._client.send(call, timeout=min(3.0, self._client.timeout))
        link, self._link = self._link, None
        if link is not None:
            await link.close()
        if self._caller is not None and self._caller is not asyncio.current_task():
            with contextlib.suppress(TimeoutError, asyncio.TimeoutError):
                await asyncio.wait_for(self._calls.join(), 1.0)
            self._caller.cancel()

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For AsyncClient

    async def wait_admitted(self, timeout: float) -> None:
        """Connect and wait until the session has left the queue."""
        await self._connected(min(timeout, self._client.timeout))
        await self._wait(lambda: self._admitted or None, timeout, "waiting for room")

    def note(self, chunk: Chunk) -> None:
        """Remember the newest chunk that a step brought."""
        if chunk.epoch >= (self._buffer.newest.epoch if self._buffer.newest else 0):
            self._buffer.newest = chunk

    # Called by the link's task

    def receive_chunk(self, arrived: ChunkArrived) -> None:
        if not arrived.stale:
            self._buffer.put(arrived.chunk)
            self._news.set()

    def receive_state(self, state: str) -> None:
        self._state = state if self._ended is None else "ended"
        self._admitted = self._admitted or state not in ("queued", "unknown")
        self._news.set()

    def receive_event(self, happened: Happened, state: str) -> None:
        self.receive_state(state)
        if happened.kind == "ended":
            self._finish(str(happened.body.get("reason") or "closed"))
        self._news.set()
        for callback in self._callbacks.get(happened.kind, ()):
            self._calls.put_nowait((callback, happened.body))

    def receive_loss(self, error: PhysisError, link: Link) -> None:
        if self._link is link:
            self._link, self._failure = None, error
        self._news.set()

    # Inside

    def _next_event(self) -> int:
        self._events += 1
        return self._events

    async def _ask(self, kind: str, fields: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        limit = self._client.timeout if timeout is None else timeout
        link = await self._connected(limit)
        return await link.ask(kind, fields, limit)

    async def _connected(self, timeout: float | None) -> Link:
        limit = self._client.timeout if timeout is None else timeout
        async with self._connecting:
            if self._ended is not None:
                raise SessionEnded(f"the session is over: {self._ended}", reason=self._ended)
            if self._link is None:
                link = await Link.open(self, self._client.address, limit)
                self._state, self._failure, self._link = link.state, None, link
                self._admitted = self._admitted or link.state != "queued"
                link.start()
            return self._link

    def _new_epoch(self, answer: dict[str, Any]) -> None:
        status = status_from_message(answer.get("session"))
        self.seed = status.seed
        self._buffer.begin_epoch(status.epoch)

    def _take_chunk(self) -> Chunk | None:
        return self._buffer.waiting.popleft() if self._buffer.waiting else None

    async def _wait(self, look: Callable[[], T | None], timeout: float | None, what: str, *, patient: str = "") -> T:
        """Wait until `look()` finds something; raise what ended the wait.

        The time begins anew when the state `patient` is left.
        """
        limit = self._client.timeout if timeout is None else timeout
        clock = asyncio.get_running_loop().time
        deadline, is_patient = clock() + limit, False
        while (found := look()) is None:
            if self._ended is not None:
                raise SessionEnded(f"the session is over: {self._ended}", reason=self._ended)
            if self._failure is not None:
                raise self._failure
            was_patient, is_patient = is_patient, self._state == patient
            if was_patient or is_patient:
                deadline = clock() + limit
            if clock() >= deadline:
                raise Timeout(f"{what} took longer than {limit:g} s")
            self._news.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._news.wait(), min(0.5, deadline - clock()))
        return found

    def _finish(self, reason: str) -> bool:
        first = self._ended is None
        self._ended = self._ended or reason
        self._state = "ended"
        self._news.set()
        return first

    async def _call_back(self) -> None:
        while True:
            callback, body = await self._calls.get()
            try:
                result = callback(body)
                if inspect.isawaitable(result):
                    await _awaited(result)
            finally:
                self._calls.task_done()


async def _awaited(result: Awaitable[object]) -> None:
    await result
