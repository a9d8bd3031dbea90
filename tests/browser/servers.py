"""Servers that the browser tests open pages of: the server over the fake engine, or the whole product in a process.

The fake one runs in a thread, so that a test can crash its engine or end its sessions; the product is started as a user
starts it (`physis_stream.bench.serving`) and stopped by its process id.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import uvicorn

from physis_stream.server.serve import bind, uvicorn_config
from physis_stream.server.settings import ServerSettings
from physis_stream.testing.fake_service import FakeEngineService

START_S = 90.0


class Served(Protocol):
    """A running server."""

    url: str

    def stop(self) -> None: ...


def stats(served: Served) -> dict[str, Any]:
    """The engine's numbers."""
    with urllib.request.urlopen(f"{served.url}/v1/stats", timeout=10) as answer:
        body: dict[str, Any] = json.load(answer)
    return body


def wait_for_sessions(served: Served, count: int, within_s: float) -> float:
    """Wait until the engine has exactly `count` sessions, none queued; return the seconds it took or fail."""
    began = time.monotonic()
    while True:
        now = stats(served)
        if (now["sessions"], now["queued"]) == (count, 0):
            return time.monotonic() - began
        held = f"{now['sessions']} sessions and {now['queued']} queued after {within_s} s"
        assert time.monotonic() - began < within_s, f"expected {count} sessions, there are {held}"
        time.sleep(0.1)


class FakeServed:
    """The server over the fake engine, in a thread of its own; `call` tells its `service` to misbehave."""

    def __init__(self, *, max_sessions: int = 4, token: str | None = None, port: int = 0) -> None:
        self.service = FakeEngineService(max_sessions=max_sessions, chunk_frames=1)
        settings = ServerSettings(port=port, token=token)
        self._socket = bind(settings)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn_config(self.service, settings))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="fake server", daemon=True)
        self._thread.start()
        began = time.monotonic()
        while not self._server.started:
            assert time.monotonic() - began < START_S, "the fake server did not start"
            time.sleep(0.02)

    def call(self, run: Callable[[], Any]) -> Any:
        """Run something on the server's loop and return its result."""

        async def there() -> Any:
            result = run()
            return await result if isinstance(result, Coroutine) else result

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(20)

    def lose_peers(self) -> None:
        """Give up every peer as if its network path were gone."""
        context = self._server.config.app.state.server

        def lose() -> None:
            for peer in list(context.peers._peers.values()):
                peer.lose("the test cut it")

        self.call(lose)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the fake server did not stop"
        self._socket.close()

    def _run(self) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            await self._server.serve(sockets=[self._socket])

        asyncio.run(serve())
