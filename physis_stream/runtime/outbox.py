"""What waits for one subscriber: chunks are dropped oldest first, notices never, and nothing of an epoch that is over.

No word of an applied event is lost with a dropped chunk: the next chunk of the epoch names it.

For one event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
from collections import deque

from physis_stream.runtime.service import ChunkOut, Notice, Output


class Outbox:
    """A bounded queue with one reader."""

    def __init__(self, max_chunks: int) -> None:
        if max_chunks < 1:
            raise ValueError(f"max_chunks must be at least 1, got {max_chunks}")
        self._max_chunks = max_chunks
        self._items: deque[Output] = deque()
        self._ready = asyncio.Event()
        self._epoch = 0
        self.num_dropped = 0

    def put(self, item: Output) -> None:
        """Add an item; makes room by dropping the oldest chunk."""
        if isinstance(item, ChunkOut):
            if item.epoch < self._epoch:
                return
            self.begin_epoch(item.epoch)
            if sum(isinstance(kept, ChunkOut) for kept in self._items) >= self._max_chunks:
                self._items.append(item)
                self._drop_oldest_chunk()
                self._ready.set()
                return
        elif item.kind == "status" and isinstance(item.detail.get("epoch"), int):
            self.begin_epoch(item.detail["epoch"])
        self._items.append(item)
        self._ready.set()

    def _drop_oldest_chunk(self) -> None:
        """Drop one; the events that it was the first to use are told with the chunk after it."""
        at, heir_at = [place for place, kept in enumerate(self._items) if isinstance(kept, ChunkOut)][:2]
        lost, heir = self._items[at], self._items[heir_at]
        assert isinstance(lost, ChunkOut)
        assert isinstance(heir, ChunkOut)
        self._items[heir_at] = heir.telling_for(lost)
        del self._items[at]
        self.num_dropped += 1

    def begin_epoch(self, epoch: int) -> None:
        """Drop the chunks of older epochs."""
        if epoch > self._epoch:
            self._epoch = epoch
            self._items = deque(item for item in self._items if not isinstance(item, ChunkOut) or item.epoch >= epoch)

    async def get(self) -> Output:
        """Remove and return the oldest item, waiting for one."""
        while not self._items:
            self._ready.clear()
            await self._ready.wait()
        return self._items.popleft()


def is_last(item: Output) -> bool:
    """If nothing comes after this item."""
    return isinstance(item, Notice) and item.kind == "ended"
