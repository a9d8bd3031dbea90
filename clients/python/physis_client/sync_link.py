"""One live connection of the blocking client: a thread that reads, and answers that wait.

Knows the protocol and the socket; what arrives unasked goes to a `Receiver`, which is the session.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

from websockets.sync.client import ClientConnection, connect

from physis_client import http_calls, links, wire
from physis_client.errors import PhysisError, Timeout, TooLarge, Transport
from physis_client.protocol import Answered, ChunkArrived, Greeted, Happened, Refused, SessionProtocol


class Receiver(Protocol):
    """What a link tells the session that it serves, on its own thread."""

    id: str
    token: str

    def receive_state(self, state: str) -> None: ...

    def receive_chunk(self, arrived: ChunkArrived) -> None: ...

    def receive_event(self, happened: Happened, state: str) -> None: ...

    def receive_loss(self, error: PhysisError, link: Link) -> None: ...


class Link:
    """Connects and exchanges hellos when made; `start` begins to read."""

    def __init__(self, session: Receiver, address: http_calls.Address, timeout: float) -> None:
        self._session = session
        self._protocol = SessionProtocol()
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._lost: PhysisError | None = None
        self._opened = contextlib.ExitStack()
        try:
            options = links.connect_options(address, session.token, timeout)
            connecting = connect(links.socket_url(address, session.id), **options)
            self._socket: ClientConnection = self._opened.enter_context(connecting)
        except Exception as error:
            raise links.connect_error(error, timeout) from error
        try:
            self._socket.send(self._protocol.hello())
            greeting = self._protocol.receive(self._socket.recv(timeout))
            if isinstance(greeting, Refused):
                raise greeting.error
            if not isinstance(greeting, Greeted):
                raise Transport("the server did not greet")
        except Exception as error:
            self._opened.close()
            raise (error if isinstance(error, PhysisError) else links.connect_error(error, timeout)) from error
        self.world, self.state = greeting.world, greeting.state
        self._thread = threading.Thread(target=self._read, name=f"physis {session.id[:8]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, kind: str, fields: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        future: Future[dict[str, Any]] = Future()
        with self._lock:
            if self._lost is not None:
                raise self._lost
            number, message = self._protocol.request(kind, fields)
            self._waiting[number] = future
        if len(message) > wire.MAX_REQUEST_BYTES:
            self._waiting.pop(number, None)
            raise TooLarge(f"a request has at most {wire.MAX_REQUEST_BYTES} bytes")
        try:
            self._socket.send(message)
            return future.result(timeout)
        except FutureTimeout as error:
            raise Timeout(f"{kind} took longer than {timeout:g} s") from error
        except PhysisError:
            raise
        except Exception as error:
            raise links.lost_error(error, self._protocol.ended_reason) from error
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        self._opened.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=3.0)

    def _read(self) -> None:
        cause: Exception | None = None
        try:
            while True:
                self._take(self._protocol.receive(self._socket.recv()))
        except Exception as error:
            cause = error
        lost = links.lost_error(cause, self._protocol.ended_reason)
        with self._lock:
            self._lost = lost
            waiting, self._waiting = dict(self._waiting), {}
        for future in waiting.values():
            future.set_exception(lost)
        self._session.receive_loss(lost, self)
        with contextlib.suppress(Exception):
            self._opened.close()

    def _take(self, received: object) -> None:
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
            self._socket.send(self._protocol.ack(received.chunk))
        elif isinstance(received, Happened):
            self._session.receive_event(received, self._protocol.state)
