"""Runs the real server over any engine service on a free loopback port.

In this event loop, or in a thread for blocking code.

For tests and examples. Both forms end with the block: peers are closed, sessions ended and the service stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from physis_stream.runtime.service import EngineService
from physis_stream.server.serve import OrderlyServer, StartFailed, bind, url_of, uvicorn_config
from physis_stream.server.settings import ServerSettings, Timers

QUICK = Timers(
    silence_s=0.8,
    grace_s=1.0,
    unattached_s=2.0,
    lockstep_idle_s=3.0,
    sweep_s=0.05,
    stats_s=0.1,
    call_s=5.0,
    drain_s=1.0,
)
"""Timers for tests: seconds where the server's own are tens of seconds."""


@dataclass(frozen=True)
class Serving:
    """A running server. `context` is its inside; `call(f)` runs `f()` on its event loop and returns the result."""

    url: str
    context: Any
    call: Callable[[Callable[[], Any]], Any]

    @property
    def websocket_url(self) -> str:
        return self.url.replace("http", "ws", 1)


class _QuietServer(OrderlyServer):
    """Leaves the process's signals alone, so that it may run beside others; stops when told, not at the next tick."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stop = asyncio.Event()

    async def main_loop(self) -> None:
        await self._stop.wait()

    def stop(self) -> None:
        self._stop.set()


@asynccontextmanager
async def serving(service: EngineService, settings: ServerSettings | None = None) -> AsyncIterator[Serving]:
    """Serve in the running event loop, on a free port of 127.0.0.1."""
    settings = replace(settings or ServerSettings(timers=QUICK), port=0)
    listening = bind(settings)
    config = uvicorn_config(service, settings)
    server = _QuietServer(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        while not server.started:
            if task.done():
                await task
                raise StartFailed("the server did not start")
            await asyncio.sleep(0.005)
        app: Any = config.app
        yield Serving(url_of(settings, listening.getsockname()[1]), app.state.server, lambda call: call())
    finally:
        server.stop()
        await task
        listening.close()


@contextmanager
def serving_in_thread(service: EngineService, settings: ServerSettings | None = None) -> Iterator[Serving]:
    """Serve in a thread of its own with its own event loop."""
    found: list[Serving] = []
    failure: list[BaseException] = []
    ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def call(work: Callable[[], Any]) -> Any:
            async def run() -> Any:
                return work()

            return asyncio.run_coroutine_threadsafe(run(), loop).result(5.0)

        async with serving(service, settings) as inside:
            found.append(replace(inside, call=call))
            ready.set()
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failure.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="serving", daemon=True)
    thread.start()
    ready.wait()
    if failure:
        raise failure[0]
    try:
        yield found[0]
    finally:
        stop.set()
        thread.join(timeout=10.0)
