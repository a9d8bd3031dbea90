"""The engine in a process of its own, so that encoders and the model never fight over an interpreter lock.

    event loop --asks--> writer thread --pipe--> child          child --pipe--> reader thread --replies--> event loop
                                                 child --frames--> shared memory (`frame_ring`) --copy--> reader thread

A child that dies is noticed at once by its closed pipe, one that hangs by its heartbeat; every call under way is
refused with EngineDown, every session ends with a notice, and a new child is started, at most `MAX_RESTARTS` times
in `RESTART_SPAN_S`. A child whose parent dies ends itself. This process makes the shared memory and unlinks it.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import queue
import threading
from collections import deque
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from physis_stream.core.errors import EngineDown
from physis_stream.runtime.asking_service import HANG_S, AskingService
from physis_stream.runtime.clock import Clock, RealClock
from physis_stream.runtime.engine_child import Builder, Failed, Ready, RingSpec, build_default, run_child
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.frame_ring import FrameRing
from physis_stream.runtime.messages import Ask, Reply

log = logging.getLogger(__name__)
START_S = 300.0
"""Longest time that loading a world may take."""
STOP_S = 10.0
"""How long a child is given to end by itself."""
MAX_RESTARTS = 5
RESTART_SPAN_S = 60.0
RING_BYTES = 64 << 20
MIN_SLOTS, MAX_SLOTS = 8, 256


class _Child:
    """One child process with its pipe, its ring and the two threads that serve them."""

    def __init__(self, process: BaseProcess, pipe: Connection, ring: FrameRing, ready: Ready) -> None:
        self.process, self.pipe, self.ring, self.ready = process, pipe, ring, ready
        self.asks: queue.SimpleQueue[Ask | None] = queue.SimpleQueue()
        self.threads: list[threading.Thread] = []

    def write(self) -> None:
        """Writer thread: asks to the pipe; None ends the child's loop and this thread."""
        with suppress(OSError, ValueError):
            while True:
                ask = self.asks.get()
                self.pipe.send(ask)
                if ask is None:
                    return


class ProcessEngine(AskingService):
    """An EngineService whose loop runs in a child process. `build` makes the engine there and must pickle."""

    def __init__(self, config: EngineConfig, *, build: Builder = build_default, clock: Clock | None = None) -> None:
        super().__init__()
        self._config, self._build = config, build
        self._clock = RealClock() if clock is None else clock
        self._child: _Child | None = None
        self._down: str = "the engine has not been started"
        self._starts: deque[int] = deque(maxlen=MAX_RESTARTS)
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def process_id(self) -> int | None:
        """Process id of the present child; None while there is none."""
        return None if self._child is None else self._child.process.pid

    async def start(self) -> None:
        """Start the child and return when it takes calls. Raises ValueError for a configuration that cannot be served,
        EngineDown if the child fails otherwise."""
        self._stopping = False
        await self._launch()
        self._spawn(self._watch())

    async def stop(self) -> None:
        self._stopping = True
        self._down = "the engine was stopped"
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        child, self._child = self._child, None
        if child is not None:
            child.asks.put(None)
            await asyncio.to_thread(_end, child)
        self.abandon(self._down)

    def _send(self, ask: Ask) -> None:
        if self._child is None:
            raise EngineDown(self._down, retry_after_s=None if self._stopping else 2.0)
        self._child.asks.put(ask)

    def _heartbeat_age_s(self) -> float:
        child = self._child
        return 0.0 if child is None else max(0.0, (self._clock.now_ns() - child.ring.heartbeat_ns) / 1e9)

    async def _launch(self) -> None:
        """Bring up a child and the threads that serve it."""
        self._starts.append(self._clock.now_ns())
        child = await asyncio.to_thread(_begin, self._config, self._build)
        child.ring.beat(self._clock.now_ns())
        loop = asyncio.get_running_loop()
        for target, arguments in ((child.write, ()), (self._read, (child, loop))):
            thread = threading.Thread(target=target, args=arguments, name="physis-pipe", daemon=True)
            child.threads.append(thread)
            thread.start()
        self._world, self._child = child.ready.world, child

    def _read(self, child: _Child, loop: asyncio.AbstractEventLoop) -> None:
        """Reader thread: replies off the pipe, frames out of the ring, until the child hangs up."""
        with suppress(EOFError, OSError):
            while True:
                replies: Sequence[Reply] = child.ring.load(child.pipe.recv_bytes())
                loop.call_soon_threadsafe(self.deliver, replies)
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._on_gone, child)

    def _on_gone(self, child: _Child) -> None:
        """A child's pipe has closed; unless that was asked for, its sessions end and another child is started."""
        if self._child is not child or self._stopping:
            return
        self._child, self._down = None, "the engine's process died; it is being restarted"
        log.error("the engine's process %s died", child.process.pid)
        self.abandon("the engine's process died")
        self._spawn(self._replace(child))

    async def _replace(self, dead: _Child) -> None:
        await asyncio.to_thread(_end, dead)
        now_ns = self._clock.now_ns()
        if len(self._starts) == MAX_RESTARTS and now_ns - self._starts[0] < RESTART_SPAN_S * 1e9:
            self._down = f"the engine's process died {MAX_RESTARTS} times in {RESTART_SPAN_S:.0f} s; it stays down"
            log.critical(self._down)
            return
        try:
            await self._launch()
        except (EngineDown, ValueError) as error:
            self._down = f"the engine could not be restarted: {error}"
            log.critical(self._down)

    async def _watch(self) -> None:
        """Kill a child whose heart has stopped; its closed pipe then does the rest."""
        while True:
            await asyncio.sleep(1.0)
            child = self._child
            if child is not None and self._heartbeat_age_s() > HANG_S:
                log.error("the engine's process %s hangs and is killed", child.process.pid)
                child.process.kill()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _begin(config: EngineConfig, build: Builder) -> _Child:
    """Start a child, wait for its world, give it a ring. Blocks; raises ValueError or EngineDown."""
    context = multiprocessing.get_context("spawn")
    pipe, childs_end = context.Pipe()
    process = context.Process(target=run_child, args=(childs_end, config, build), name="physis-engine", daemon=True)
    process.start()
    childs_end.close()
    try:
        first = pipe.recv() if pipe.poll(START_S) else Failed(f"no world after {START_S:.0f} s", wrong_use=False)
    except (EOFError, OSError):
        first = Failed("the process ended while it loaded the world", wrong_use=False)
    if not isinstance(first, Ready):
        process.kill()
        process.join()
        pipe.close()
        raise ValueError(first.message) if first.wrong_use else EngineDown(f"the engine did not start: {first.message}")
    num_slots = min(MAX_SLOTS, max(MIN_SLOTS, RING_BYTES // first.chunk_bytes))
    ring = FrameRing.create(num_slots, first.chunk_bytes)
    pipe.send(RingSpec(ring.name, num_slots, first.chunk_bytes))
    return _Child(process, pipe, ring, first)


def _end(child: _Child) -> None:
    """See a child out, by force if need be, and free its memory. Blocks."""
    child.process.join(STOP_S)
    if child.process.is_alive():
        child.process.kill()
        child.process.join()
    child.asks.put(None)
    for thread in child.threads:
        thread.join(STOP_S)
    child.pipe.close()
    child.ring.close(unlink=True)
