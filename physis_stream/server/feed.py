"""One session's outputs, read from the engine once and handed to whoever listens: peers, sockets, event streams.

Each listener is bounded: the oldest chunk gives way, notices of status give way to newer ones only beyond a generous
bound. Nothing of an epoch comes out after a later epoch began. Knows no transport.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

from physis_stream.core.errors import EngineError
from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import ChunkOut, EngineService, Notice, Output

log = logging.getLogger("physis_stream.server")
MAX_NOTICES = 256
READ_AHEAD = 8
"""Chunks that may wait for the reader, which hands them on at once: more than one hiccup of the loop costs."""


class Listener:
    """Two bounded queues of one reader. Both end (None) once the session has ended and they are empty."""

    def __init__(self, max_chunks: int, accept: Callable[[ChunkOut], bool] | None = None) -> None:
        self._max_chunks = max(1, max_chunks)
        self._chunks: deque[ChunkOut] = deque()
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._accept = accept or (lambda chunk: max_chunks > 0)
        self._chunk_there = asyncio.Event()
        self._notice_there = asyncio.Event()
        self._ended = False
        self.dropped = 0

    def put(self, item: Output) -> None:
        if isinstance(item, Notice):
            self._notices.append(item)
            self._notice_there.set()
            return
        if self._accept(item):
            if len(self._chunks) == self._max_chunks:
                self._drop_oldest(item)
            else:
                self._chunks.append(item)
            self._chunk_there.set()

    def _drop_oldest(self, newest: ChunkOut) -> None:
        """Make room; the events that the dropped chunk was first to use are told with the one after it."""
        self.dropped += 1
        lost = self._chunks.popleft()
        self._chunks.append(newest)
        self._chunks[0] = self._chunks[0].telling_for(lost)

    def drop_before(self, epoch: int) -> None:
        """Forget waiting chunks of earlier epochs."""
        kept = [chunk for chunk in self._chunks if chunk.epoch >= epoch]
        self._chunks.clear()
        self._chunks.extend(kept)
        if not kept and not self._ended:
            self._chunk_there.clear()

    def end(self) -> None:
        self._ended = True
        self._chunk_there.set()
        self._notice_there.set()

    @property
    def has_chunk(self) -> bool:
        return bool(self._chunks)

    async def chunk(self) -> ChunkOut | None:
        """Wait for the oldest waiting chunk; None once the session has ended."""
        while not self._chunks:
            if self._ended:
                return None
            self._chunk_there.clear()
            await self._chunk_there.wait()
        return self._chunks.popleft()

    def poke(self) -> None:
        """End a wait for a chunk early."""
        self._chunk_there.set()

    async def chunk_within(self, seconds: float) -> bool:
        """Wait until a chunk is there, the session ended, a poke or the time is over; say if a chunk is there."""
        if not self._chunks and not self._ended:
            self._chunk_there.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._chunk_there.wait()
            except TimeoutError:
                return False
        return bool(self._chunks)

    async def notice(self) -> Notice | None:
        """Wait for the oldest waiting notice; None once the session has ended and all are read."""
        while not self._notices:
            if self._ended:
                return None
            self._notice_there.clear()
            await self._notice_there.wait()
        return self._notices.popleft()


class SessionFeed:
    """Reads `service.subscribe(session)` and fans it out. `on_ended(reason)` is called once, after the ended notice."""

    def __init__(self, service: EngineService, session: SessionId, epoch: int, on_ended: Callable[[str], None]) -> None:
        self._service = service
        self._session = session
        self._on_ended = on_ended
        self._listeners: set[Listener] = set()
        self._epoch_watchers: list[Callable[[int], None]] = []
        self._task: asyncio.Task[None] | None = None
        self.epoch = epoch
        self.latest: ChunkOut | None = None
        self.ended_reason: str | None = None
        self.chunks = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._read(), name=f"feed {self._session[:8]}")

    def listen(
        self, *, max_chunks: int, replay: bool = False, accept: Callable[[ChunkOut], bool] | None = None
    ) -> Listener:
        """Return a new listener; `replay` gives it the newest chunk of the present epoch at once."""
        listener = Listener(max_chunks, accept)
        if replay and self.latest is not None and self.latest.epoch == self.epoch:
            listener.put(self.latest)
        if self.ended_reason is None:
            self._listeners.add(listener)
        else:
            listener.put(Notice(self._session, "ended", {"reason": self.ended_reason}))
            listener.end()
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)

    def watch_epochs(self, watch: Callable[[int], None]) -> None:
        """Call `watch(epoch)` whenever a new epoch begins."""
        self._epoch_watchers.append(watch)

    def begin_epoch(self, epoch: int) -> None:
        """From here on nothing older than `epoch` is handed out."""
        if epoch <= self.epoch:
            return
        self.epoch = epoch
        for listener in self._listeners:
            listener.drop_before(epoch)
        for watch in self._epoch_watchers:
            watch(epoch)

    def publish(self, item: Output) -> None:
        """Hand an output to all listeners, unless its epoch is over."""
        if isinstance(item, ChunkOut):
            if item.epoch < self.epoch:
                return
            self.begin_epoch(item.epoch)
            self.latest = item
            self.chunks += 1
        elif isinstance(item.detail.get("epoch"), int):
            self.begin_epoch(cast(int, item.detail["epoch"]))
        for listener in self._listeners:
            listener.put(item)

    def end(self, reason: str) -> None:
        """Tell all listeners that the session is over; the second call does nothing."""
        if self.ended_reason is not None:
            return
        self.ended_reason = reason
        for listener in self._listeners:
            listener.put(Notice(self._session, "ended", {"reason": reason}))
            listener.end()
        self._listeners.clear()
        self.latest = None
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._on_ended(reason)

    async def _read(self) -> None:
        outputs = cast("AsyncGenerator[Output]", self._service.subscribe(self._session, max_chunks=READ_AHEAD))
        reason = "the engine closed the session"
        try:
            async with aclosing(outputs) as reader:
                async for item in reader:
                    if isinstance(item, Notice) and item.kind == "ended":
                        reason = str(item.detail.get("reason", "closed"))
                        break
                    self.publish(item)
        except EngineError as error:
            reason = error.message
        except Exception:
            log.exception("reading the outputs of a session failed")
            reason = "the engine failed"
        self.end(reason)
