"""The engine in a thread of this process: torch lets go of the interpreter while it computes, but encoders and the
engine's own code do share it. For tests and small servers; `engine_process` keeps them apart.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence

from physis_stream.core.errors import EngineDown
from physis_stream.runtime.asking_service import AskingService
from physis_stream.runtime.clock import Clock, RealClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_driver import drive
from physis_stream.runtime.engine_loop import EngineLoop, build_engine
from physis_stream.runtime.inbox import Inbox
from physis_stream.runtime.messages import Ask, Reply

log = logging.getLogger(__name__)


class ThreadEngine(AskingService):
    """An EngineService whose loop runs in a daemon thread. A loop that breaks ends every session; there is no
    restart.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        build: Callable[[EngineConfig, Clock], EngineLoop] = build_engine,
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        self._config, self._build = config, build
        self._clock = RealClock() if clock is None else clock
        self._inbox = Inbox()
        self._thread: threading.Thread | None = None
        self._beat_ns = 0
        self._down: str | None = "the engine has not been started"

    async def start(self) -> None:
        """Load the world in the engine's thread and return when it takes calls; raises what loading raised."""
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[EngineLoop] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, ready), name="physis-engine", daemon=True)
        self._thread.start()
        self._world = (await ready).world
        self._down = None

    async def stop(self) -> None:
        self._inbox.close()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None
        self._down = "the engine was stopped"
        self.abandon(self._down)

    def _send(self, ask: Ask) -> None:
        if self._down is not None or not self._inbox.put(ask):
            raise EngineDown(self._down or "the engine was stopped")

    def _heartbeat_age_s(self) -> float:
        return (self._clock.now_ns() - self._beat_ns) / 1e9

    def _run(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[EngineLoop]) -> None:
        """The engine's thread: build, drive, and say how it ended."""
        try:
            engine = self._build(self._config, self._clock)
        except Exception as error:
            loop.call_soon_threadsafe(ready.set_exception, error)
            return
        self._beat(self._clock.now_ns())
        loop.call_soon_threadsafe(ready.set_result, engine)

        def deliver(replies: Sequence[Reply]) -> None:
            loop.call_soon_threadsafe(self.deliver, replies)

        try:
            drive(engine, self._inbox, deliver, self._beat, self._clock)
        except Exception:
            log.exception("the engine's loop broke")
            self._inbox.close()
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._break)

    def _beat(self, now_ns: int) -> None:
        self._beat_ns = now_ns

    def _break(self) -> None:
        self._down = "the engine's loop broke"
        self.abandon(self._down)
