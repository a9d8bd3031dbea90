"""A bounded queue between a producer and one reader: drops the oldest when full, and every epoch that is over.

No frame of an old epoch is ever handed out after the new one began, and a slow reader costs memory for `capacity`
items, not more. It knows no threads and no frames; whoever shares it between threads guards it.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FrameQueue(Generic[Item]):
    """First in, first out, at most `capacity` items of one epoch."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        self.capacity = capacity
        self.epoch = 0
        self.num_dropped = 0
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def put(self, epoch: int, item: Item) -> int:
        """Append an item; return how many were dropped for it: older ones, or itself if its epoch is over."""
        if epoch < self.epoch:
            self.num_dropped += 1
            return 1
        dropped = self.begin_epoch(epoch)
        if len(self._items) == self.capacity:
            self._items.popleft()
            self.num_dropped += 1
            dropped += 1
        self._items.append(item)
        return dropped

    def get(self) -> Item | None:
        """Remove and return the oldest item; None when empty."""
        return self._items.popleft() if self._items else None

    def begin_epoch(self, epoch: int) -> int:
        """Drop what belongs to older epochs; return how many. A no-op for the present epoch and for older ones."""
        if epoch <= self.epoch:
            return 0
        dropped = len(self._items)
        self._items.clear()
        self.num_dropped += dropped
        self.epoch = epoch
        return dropped
