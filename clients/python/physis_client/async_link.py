"""One live connection of the asyncio client: a task that reads, and answers that wait.

Knows the protocol and the socket; what arrives unasked goes to a `Receiver`, which is the session.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Protocol

from websockets.asyncio.client import ClientConnection, connect

from physis_client import http_calls, links, wire
from physis_client.errors import PhysisError, Timeout, TooLarge, Transport
from physis_client.protocol import Answered, ChunkArrived, Greeted, Happened, Refused, SessionProtocol


class Receiver(Protocol):
    """What a link tells the session that it serves."""

    id: str
    token: str

    def receive_state(self, state: str) -> None: ...

    def receive_chunk(self, arrived: ChunkArrived) -> None: ...

    def receive_event(self, happened: Happened, state: str) -> None: ...

    def receive_loss(self, error: PhysisError, link: Link) -> None: ...


class Link:
    """Made by `open`, which connects and exchanges hellos; `start` begins to read."""

    def __init__(
        self, session: Receiver, socket: ClientConnection, protocol: SessionProtocol, greeting: Greeted
    ) -> None:
        self.world, self.state = greeting.world, greeting.state
        self._session = session
        self._socket = socket
        self._protocol = protocol
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._lost: PhysisError | None = None
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, session: Receiver, address: http_calls.Address, timeout: float) -> Link:
        """Connect and exchange hellos."""
        protocol = SessionProtocol()
        try:
            options = links.connect_options(address, session.token, timeout)
            socket = await connect(links.socket_url(address, session.id), **options)
        except Exception as error:
            raise links.connect_error(error, timeout) from error
        try:
            await socket.send(protocol.hello())
            greeting = protocol.receive(await asyncio.wait_for(socket.recv(), timeout))
            if isinstance(greeting, Refused):
                raise greeting.error
            if not isinstance(greeting, Greeted):
                raise Transport("the server did not greet")
        except BaseException as error:
            await socket.close()
            if not isinstance(error, Exception):
                raise
            raise (error if isinstance(error, PhysisError) else links.connect_error(error, timeout)) from error
        return cls(session, socket, protocol, greeting)

    def start(self) -> None:
        self._task = asyncio.create_task(self._read(), name=f"physis {self._session.id[:8]}")

    async def ask(self, kind: str, fields: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        if self._lost is not None:
            raise self._lost
        number, message = self._protocol.request(kind, fields)
        if len(message) > wire.MAX_REQUEST_BYTES:
            raise TooLarge(f"a request has at most {wire.MAX_REQUEST_BYTES} bytes")
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            return await asyncio.wait_for(self._exchange(message, future), timeout)
        except TimeoutError as error:
            raise Timeout(f"{kind} took longer than {timeout:g} s") from error
        except PhysisError:
            raise
        except Exception as error:
            raise links.lost_error(error, self._protocol.ended_reason) from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        await self._socket.close()
        if self._task is not None and self._task is not asyncio.current_task():
            with contextlib.suppress(asyncio.TimeoutError, asyncio.CancelledError):
                await asyncio.wait_for(self._task, 3.0)

    async def _exchange(self, message: bytes, future: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
        await self._socket.send(message)
        return await future

    async def _read(self) -> None:
        cause: Exception | None = None
        try:
            while True:
                await self._take(self._protocol.receive(await self._socket.recv()))
        except Exception as error:
            cause = error
        self._lost = links.lost_error(cause, self._protocol.ended_reason)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost)
                future.exception()
        self._session.receive_loss(self._lost, self)
        with contextlib.suppress(Exception):
            await self._socket.close()

    async def _take(self, received: object) -> None:
        if isinstance(received, Answered):
            self._session.receive_state(self._protocol.state)
            future = self._waiting.get(received.number)
            if future is None or future.done():
                return
            if received.error is None:
                future.set_result(received.body)
            else:
                future.set_exception(received.error)
        elif isinstance(received, ChunkArrived):
            self._session.receive_chunk(received)
            await self._socket.send(self._protocol.ack(received.chunk))
        elif isinstance(received, Happened):
            self._session.receive_event(received, self._protocol.state)
