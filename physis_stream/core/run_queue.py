"""Work items that could run now, by urgency, with O(log n) insertion and lazy removal. Knows no session's state."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from physis_stream.core.ids import SessionId


@dataclass(slots=True, eq=False)
class WorkItem:
    """One row that could run. `step` 0 of a chunk not yet open also opens it.

    `due_ns` is when its chunk must be ready, None without a deadline; `after_ns` the predicted time from the end of
    this row's tick until then. `asked_ns` orders items without a deadline, and those that have missed theirs. `live`
    is cleared when the item is taken or cancelled.
    """

    session: SessionId
    chunk: int
    step: int
    opens: bool
    decodes: int
    asked_ns: int
    due_ns: int | None = None
    after_ns: int = 0
    live: bool = True
    lane: RunQueue | None = None

    @property
    def latest_end_ns(self) -> int:
        """When this row's tick must have ended for its chunk to be on time."""
        assert self.due_ns is not None, "an item without a deadline has no latest end"
        return self.due_ns - self.after_ns


class RunQueue:
    """A heap of work items by key; equal keys in order of arrival.

    Cancelled items are dropped when met, or in bulk.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, WorkItem]] = []
        self._arrivals = 0
        self._live = 0

    def __len__(self) -> int:
        return self._live

    def push(self, key_ns: int, item: WorkItem) -> None:
        """Add a live item that is in no queue."""
        item.lane = self
        heapq.heappush(self._heap, (key_ns, self._arrivals, item))
        self._arrivals += 1
        self._live += 1

    def peek(self) -> WorkItem | None:
        """The most urgent live item, left in place."""
        heap = self._heap
        while heap and not heap[0][2].live:
            heapq.heappop(heap)
        return heap[0][2] if heap else None

    def pop(self) -> WorkItem | None:
        """Remove and return the most urgent live item; the caller decides whether it is taken or pushed elsewhere."""
        item = self.peek()
        if item is not None:
            heapq.heappop(self._heap)
            self._live -= 1
            item.lane = None
        return item

    def cancel(self, item: WorkItem) -> None:
        """Withdraw an item of this queue; amortised O(1)."""
        item.live = False
        item.lane = None
        self._live -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[2].live]
            heapq.heapify(self._heap)
