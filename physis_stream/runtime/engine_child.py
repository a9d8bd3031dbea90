"""The child process of `engine_process`: loads the world, runs the engine's loop, and leaves when its parent does.

Messages on the pipe, in order:   child -> Ready | Failed      parent -> RingSpec      then asks down, batches of
replies up

Nothing heavy is imported before the threads' environment is set: OpenMP reads it once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from physis_stream.runtime.clock import Clock, RealClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_driver import drive
from physis_stream.runtime.frame_ring import FrameRing
from physis_stream.runtime.inbox import Inbox
from physis_stream.runtime.messages import Reply
from physis_stream.runtime.process_tuning import calm_threads, keep_memory
from physis_stream.runtime.service import WorldInfo

GRACE_S = 5.0
"""How long a child whose parent is gone may take to finish its tick before it ends itself."""

Builder = Callable[[EngineConfig, Clock], Any]
"""Makes the engine; must pickle, that is, be a function of a module."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The world is loaded; the child waits for the ring. `chunk_bytes` is the size of one chunk's frames."""

    world: WorldInfo
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The world could not be loaded. `wrong_use` if that is the configuration's fault (a ValueError)."""

    message: str
    wrong_use: bool


@dataclass(frozen=True, slots=True)
class RingSpec:
    """Where the frames go."""

    name: str
    num_slots: int
    slot_bytes: int


def build_default(config: EngineConfig, clock: Clock) -> Any:
    """Load the configured world; see `engine_loop.build_engine`."""
    from physis_stream.runtime.engine_loop import build_engine

    return build_engine(config, clock)


def run_child(pipe: Connection, config: EngineConfig, build: Builder) -> None:
    """Entry point of the child process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calm_threads(config.num_threads)
    keep_memory()
    clock = RealClock()
    try:
        engine = build(config, clock)
    except Exception as error:
        pipe.send(Failed(str(error) or type(error).__name__, isinstance(error, ValueError)))
        return
    world: WorldInfo = engine.world
    pipe.send(Ready(world, world.chunk_frames * world.height * world.width * 3))
    try:
        spec: RingSpec = pipe.recv()
    except EOFError:
        return
    ring = FrameRing.attach(spec.name, spec.num_slots, spec.slot_bytes)
    inbox = Inbox()
    threading.Thread(target=_receive, args=(pipe, inbox), name="physis-asks", daemon=True).start()

    def deliver(replies: Sequence[Reply]) -> None:
        pipe.send_bytes(ring.dump(list(replies)))

    try:
        drive(engine, inbox, deliver, ring.beat, clock)
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        ring.close(unlink=False)


def _receive(pipe: Connection, inbox: Inbox) -> None:
    """Move asks from the pipe to the inbox until the parent hangs up; then make sure that this process ends."""
    try:
        while (ask := pipe.recv()) is not None:
            inbox.put(ask)
    except (EOFError, OSError):
        watchdog = threading.Timer(GRACE_S, os._exit, args=(1,))
        watchdog.daemon = True
        watchdog.start()
    inbox.close()
