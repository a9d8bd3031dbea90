"""`WS /v1/sessions/{id}/ws`: the requests of `control` plus `step`, and a realtime session's chunks, in msgpack.

The socket may swallow megabytes while the link is choked, so what counts is what the client acknowledged: at most
`unacked_chunks` are on their way, meanwhile the listener keeps the newest two and drops the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from physis_client import wire
from physis_client.errors import PhysisError, TooLarge, VersionMismatch
from physis_stream.core.commands import Pace
from physis_stream.core.errors import Capacity, EngineError
from physis_stream.runtime.service import ChunkOut
from physis_stream.server import fields
from physis_stream.server.auth import bearer
from physis_stream.server.context import ServerContext
from physis_stream.server.control_channel import event_object
from physis_stream.server.dialogue import Dialogue, chunk_object
from physis_stream.server.feed import Listener
from physis_stream.server.packing import packed
from physis_stream.server.problems import InvalidRequest, error_object, new_request_id, problem_response
from physis_stream.server.sessions import ServedSession

log = logging.getLogger("physis_stream.server")
HELLO_S = 10.0
LAST_ANSWER_S = 1.0
POLICY, TOO_BIG, NORMAL = 1008, 1009, 1000


class AckWindow:
    """First frame ids of chunks that are on their way."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._sent: deque[int] = deque()
        self._room = asyncio.Event()
        self._room.set()

    def sent(self, first_frame_id: int) -> None:
        self._sent.append(first_frame_id)
        if len(self._sent) >= self._most:
            self._room.clear()

    def acknowledge(self, frame_id: int) -> None:
        """The client has all chunks that begin at or before this frame."""
        while self._sent and self._sent[0] <= frame_id:
            self._sent.popleft()
        if len(self._sent) < self._most:
            self._room.set()

    async def room(self) -> None:
        await self._room.wait()


class SessionSocket:
    """One accepted connection. Ends when the client goes, the session ends, or the client breaks the protocol."""

    def __init__(self, server: ServerContext, session: ServedSession, socket: WebSocket) -> None:
        self._server = server
        self._session = session
        self._socket = socket
        self._attachment = server.register.attach(session)
        self._dialogue = Dialogue(server.register, session, self._attachment.speaker, steps=True)
        self._limits = server.settings.limits
        self._window = AckWindow(self._limits.unacked_chunks)
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue(self._limits.requests_in_flight)
        self._sending = asyncio.Lock()
        self._answering = asyncio.Lock()
        world = session.world
        self._frame_bytes = world.chunk_frames * world.height * world.width * 3

    async def serve(self) -> None:
        lockstep = self._session.pace is Pace.LOCKSTEP
        listener = self._session.feed.listen(
            max_chunks=2, replay=True, accept=(lambda chunk: chunk.chunk == 0) if lockstep else None
        )
        try:
            if await self._greet():
                await self._converse(listener)
        except (WebSocketDisconnect, ConnectionError):
            pass
        finally:
            self._server.dropped_chunks += listener.dropped
            self._session.feed.leave(listener)
            self._attachment.release()

    async def _greet(self) -> bool:
        """Read hello and answer it; say whether to go on."""
        try:
            async with asyncio.timeout(HELLO_S):
                request = await self._receive()
            if request.get("type") != "hello":
                raise InvalidRequest("the first message is hello")
            if request.get("version") != wire.VERSION:
                raise VersionMismatch(f"this server speaks version {wire.VERSION}, not {request.get('version')!r}")
            answer = await self._dialogue.respond({"id": 0, **request})
        except (PhysisError, TimeoutError) as error:
            await self._send({"re": None, "ok": False, "error": error_object(error, new_request_id())})
            await self._socket.close(POLICY, "no hello")
            return False
        await self._send({"type": "hello", **answer})
        return bool(answer["ok"])

    async def _converse(self, listener: Listener) -> None:
        tasks = {
            asyncio.create_task(self._read(), name="socket read"),
            asyncio.create_task(self._answer(), name="socket answer"),
            asyncio.create_task(self._tell_notices(listener), name="socket notices"),
            asyncio.create_task(self._tell_chunks(listener), name="socket chunks"),
        }
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for task in done:
            error = task.exception()
            if error is not None and not isinstance(error, (WebSocketDisconnect, ConnectionError)):
                log.error("a socket failed", exc_info=error)
        if self._socket.client_state is WebSocketState.CONNECTED:
            await self._close(NORMAL, self._session.feed.ended_reason or "closed")

    async def _close(self, code: int, reason: str) -> None:
        try:
            await self._socket.close(code, reason[:100])
        except (RuntimeError, ConnectionError, WebSocketDisconnect):
            log.debug("the socket was gone before it was closed")

    async def _read(self) -> None:
        while True:
            try:
                request = await self._receive()
            except PhysisError as error:
                await self._send({"re": None, "ok": False, "error": error_object(error, new_request_id())})
                continue
            if request.get("type") == "ack":
                await self._acknowledge(request)
            elif self._requests.full():
                number = request.get("id")
                refusal = Capacity(f"at most {self._requests.maxsize} requests may wait", retry_after_s=0.5)
                body = {"re": number if type(number) is int else None, "ok": False}
                await self._send({**body, "error": error_object(refusal, new_request_id())})
            else:
                self._requests.put_nowait(request)

    async def _acknowledge(self, request: dict[str, Any]) -> None:
        try:
            self._window.acknowledge(fields.event(request, "frame_id"))
        except PhysisError as error:
            await self._send({"event": "error", "error": error_object(error, new_request_id())})

    async def _answer(self) -> None:
        while True:
            request = await self._requests.get()
            async with self._answering:
                await self._send(await self._dialogue.respond(request))

    async def _tell_notices(self, listener: Listener) -> None:
        while (notice := await listener.notice()) is not None:
            await self._send(event_object(notice))
        with suppress(TimeoutError):  # the answer to the `close` that ended the session may still be on its way
            async with asyncio.timeout(LAST_ANSWER_S), self._answering:
                return

    async def _tell_chunks(self, listener: Listener) -> None:
        while True:
            await self._window.room()
            chunk = await listener.chunk()
            if chunk is None:
                await asyncio.Event().wait()  # the notices end this socket
                return
            self._window.sent(chunk.first_frame_id)
            await self._send(self._message(chunk))

    def _message(self, chunk: ChunkOut) -> dict[str, Any]:
        return {"type": "chunk", **chunk_object(chunk, self._dialogue.own(chunk.applied))}

    async def _receive(self) -> dict[str, Any]:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1006))
        raw = message.get("bytes")
        if raw is None:
            raise InvalidRequest("messages on this socket are binary msgpack")
        if len(raw) > self._limits.websocket_message:
            raise TooLarge(f"a message has at most {self._limits.websocket_message} bytes")
        return wire.decode(raw, max_bytes=self._limits.websocket_message)

    async def _send(self, message: dict[str, Any]) -> None:
        async with self._sending:
            await self._socket.send_bytes(await packed(message, self._frame_bytes))


class Sockets:
    """The WebSocket route: refuses with a real status code and problem+json before accepting."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._open: Counter[ServedSession] = Counter()

    async def answer(self, socket: WebSocket) -> None:
        try:
            session = self._server.register.find(socket.path_params["id"], bearer(socket, query=True))
            most = self._server.settings.limits.sockets_per_session
            if self._open[session] >= most:
                raise Capacity(f"a session has at most {most} sockets", retry_after_s=5.0)
        except (PhysisError, EngineError) as error:
            await socket.send_denial_response(problem_response(error))
            return
        await socket.accept()
        self._open[session] += 1
        self._server.sockets += 1
        try:
            await SessionSocket(self._server, session, socket).serve()
        finally:
            self._server.sockets -= 1
            self._open[session] -= 1
            if not self._open[session]:
                del self._open[session]
