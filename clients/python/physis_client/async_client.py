"""The asyncio client: the twin of sync_client, on the same wire code. One task reads each session's socket.

Callbacks may be coroutines; they are awaited one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar, overload

import httpx

from physis_client import http_calls, wire
from physis_client.async_link import Link
from physis_client.chunks import Chunk, Frame, SessionStatus, World, chunk_from_message, status_from_message
from physis_client.errors import InvalidState, PhysisError, SessionEnded, Timeout, Transport
from physis_client.protocol import ChunkArrived, ChunkBuffer, Happened
from physis_client.sync_client import EVENTS

Callback = Callable[[dict[str, Any]], object]
T = TypeVar("T")


class AsyncClient:
    """A server's worlds and sessions. `url` and `token` default to PHYSIS_URL and PHYSIS_TOKEN.

    Every call raises a PhysisError: Timeout after `timeout` seconds, Transport if the server cannot be reached.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 10.0) -> None:
        self.address = http_calls.address(url, token)
        self.timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=self.address.url, timeout=timeout, trust_env=not self.address.is_loopback
        )
        self._sessions: dict[str, AsyncSession] = {}
        self._closed = False

    async def models(self) -> list[World]:
        """Return the worlds that the server can open."""
        return http_calls.read_models(await self.send(http_calls.json_call("GET", "/v1/models", self.address.token)))

    async def open_session(
        self,
        model: str,
        *,
        seed: int | None = None,
        mode: Literal["lockstep", "realtime"] = "lockstep",
        image: wire.Array | None = None,
        wait: bool = True,
        queue_timeout: float = 60.0,
    ) -> AsyncSession:
        """Open a session and wait for its first chunk (`session.chunk`); Timeout after `queue_timeout` in the queue.

        `image` is uint8 (H, W, 3) of the world's size to start from. With `wait=False` a full server raises Capacity.
        """
        call = http_calls.open_call(model, seed, mode, wait, image, self.address.token)
        session = self._adopt(http_calls.read_session(await self.send(call)), None)
        try:
            await session.wait_admitted(queue_timeout)
            await session.observe()
        except BaseException:
            await session.close()
            raise
        return session

    async def session(self, id: str, token: str | None = None) -> AsyncSession:
        """Return a session by its id: one of this client's own, or another's with its `token`."""
        if id in self._sessions and token is None:
            return self._sessions[id]
        token = token or self.address.token
        call = http_calls.json_call("GET", http_calls.session_path(id), token)
        status = http_calls.read_session(await self.send(call))
        if status.state == "ended":
            reason = status.ended_reason or "closed"
            raise SessionEnded(f"the session is over: {reason}", reason=reason)
        return self._adopt(status, token)

    async def stats(self) -> dict[str, Any]:
        """Return the engine's present facts, by the names of docs/protocol.md."""
        return http_calls.read_json(await self.send(http_calls.json_call("GET", "/v1/stats", self.address.token)))

    async def step_many(self, sessions: Sequence[AsyncSession], actions: Sequence[Any]) -> list[Chunk]:
        """Step lockstep sessions in one batched call; a bad action refuses the call before any session moves."""
        if len(sessions) != len(actions):
            raise InvalidState(f"{len(sessions)} sessions need as many actions, got {len(actions)}")
        items = [(s.id, s.token, wire.action_numbers(a)) for s, a in zip(sessions, actions, strict=True)]
        chunks = http_calls.read_chunks(await self.send(http_calls.step_many_call(items)))
        for session, chunk in zip(sessions, chunks, strict=True):
            session.note(chunk)
        return chunks

    async def close(self) -> None:
        """Close all sessions that this client opened; idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(s.close() for s in list(self._sessions.values())), return_exceptions=True)
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For AsyncSession

    async def send(self, call: http_calls.Call, timeout: float | None = None) -> httpx.Response:
        """Send one HTTP call; a failed exchange raises Timeout or Transport, a refusal is left to the reader."""
        limit = self.timeout if timeout is None else timeout
        if self._http.is_closed:
            raise Transport("the client is closed", recoverable=False)
        try:
            return await self._http.request(
                call.method, call.path, headers=call.headers, content=call.content, timeout=limit
            )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise http_calls.transport_error(error, f"{call.method} {call.path}", limit) from error

    def adopt(self, status: SessionStatus) -> AsyncSession:
        return self._adopt(status, None)

    def forget(self, session: AsyncSession) -> None:
        self._sessions.pop(session.id, None)

    def _adopt(self, status: SessionStatus, token: str | None) -> AsyncSession:
        held = token or status.token
        if held is None:
            raise Transport("the server sent a session without its token")
        session = AsyncSession(self, status, held)
        self._sessions[session.id] = session
        return session


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
