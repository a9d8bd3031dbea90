"""Which rows make the next batch. One shape bucket a tick; within it, three lanes:

    urgent    rows with a deadline that can still be met, in order of playout slack
    late      rows whose deadline can no longer be met, oldest first
    lockstep  rows without a deadline, oldest first

Urgent rows fill the batch, which stops growing where its predicted time would make its most urgent row late: width is
bounded by the deadline, not by memory. Only rows that can wait for the next tick are left out for that: one that would
be late if left out, or is late already, costs less in this batch than in one of its own, and a batch that is cut
for nothing makes everybody late. Even so a tick ends soon enough for a chunk's rows to fit into its media time, so that
in an overload those who can be served in time still are.

What room is left goes to late rows, then to lockstep; lockstep rows fill a tick only so far that the rows of a realtime
chunk still fit into its own media time. Each of those two lanes also earns credit while it waits, a share of the rows
served, and spends it ahead of the urgent lane, so that no class starves. Shape buckets take turns by deficit
round-robin over predicted time. Every item is pushed, moved at most
once, and popped: O(log n).

It knows work items and costs, no sessions, and no reasons why an item may run.
"""

from __future__ import annotations

from collections import OrderedDict

from physis_stream.core.cost_model import CostModel
from physis_stream.core.limits import Limits
from physis_stream.core.run_queue import RunQueue, WorkItem


class _CreditLane:
    """A lane without deadlines that is owed `share` of the rows served while it waits."""

    def __init__(self, share: float) -> None:
        self.queue = RunQueue()
        self._share = share
        self._credit = 0.0

    @property
    def owed(self) -> int:
        """Rows that may go ahead of the urgent lane now."""
        return min(int(self._credit), len(self.queue))

    def settle(self, lane_rows: int, batch_rows: int) -> None:
        """After a batch: earn a share of it while rows still wait, pay for the own rows in it."""
        if not self.queue:
            self._credit = 0.0
            return
        self._credit = max(0.0, self._credit + self._share * batch_rows - lane_rows)


class _Batch:
    """Rows taken so far, and the time by which the batch must have ended."""

    def __init__(self, shape_key: str, cost: CostModel, max_rows: int, now_ns: int, pulse_ns: int | None) -> None:
        self.items: list[WorkItem] = []
        self._now_ns, self._pulse_ns = now_ns, pulse_ns
        self.budget_ns: int | None = None
        self._shape_key = shape_key
        self._cost = cost
        self._max_rows = max_rows
        self._decodes = 0

    @property
    def full(self) -> bool:
        return len(self.items) >= self._max_rows

    def fits(self, item: WorkItem) -> bool:
        """If the item belongs in this batch: within the budget, or because it cannot wait. Alone, it always fits."""
        if self.budget_ns is None or not self.items:
            return True
        time_ns = self.time_with(item)
        if time_ns <= self.budget_ns:
            return True
        in_pulse = self._pulse_ns is None or time_ns <= self._pulse_ns
        return in_pulse and item.due_ns is not None and not self._can_wait(item)

    def _can_wait(self, item: WorkItem) -> bool:
        """If the item would still make it in a tick of its own after this one."""
        this_ns = self._cost.predict_ns(self._shape_key, len(self.items), self._decodes)
        next_ns = self._cost.predict_ns(self._shape_key, 1, item.decodes)
        return item.latest_end_ns - self._now_ns >= this_ns + next_ns

    def tighten(self, budget_ns: int | None) -> None:
        """From here on, the batch must end within this time as well."""
        if budget_ns is not None:
            self.budget_ns = budget_ns if self.budget_ns is None else min(self.budget_ns, budget_ns)

    def time_with(self, item: WorkItem) -> int:
        return self._cost.predict_ns(self._shape_key, len(self.items) + 1, self._decodes + item.decodes)

    def take(self, item: WorkItem) -> None:
        item.live = False
        self.items.append(item)
        self._decodes += item.decodes


class _Bucket:
    """Runnable rows of one shape."""

    def __init__(self, shape_key: str, limits: Limits) -> None:
        self.shape_key = shape_key
        self.deficit_ns = 0.0
        self._max_rows = limits.max_rows
        self._urgent = RunQueue()
        self._late = _CreditLane(limits.late_share)
        self._lockstep = _CreditLane(limits.lockstep_share)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._late.queue) + len(self._lockstep.queue)

    def push(self, item: WorkItem) -> None:
        if item.due_ns is None:
            self._lockstep.queue.push(item.asked_ns, item)
        else:
            self._urgent.push(item.latest_end_ns, item)

    def predicted_ns(self, cost: CostModel) -> int:
        return cost.predict_ns(self.shape_key, min(len(self), self._max_rows), 0)

    def take(self, now_ns: int, cost: CostModel, pulse_ns: int | None) -> list[WorkItem]:
        """Make one batch; at least one row if there is one."""
        batch = _Batch(self.shape_key, cost, self._max_rows, now_ns, pulse_ns)
        self._set_budget(batch, now_ns, cost)
        lockstep = self._drain(self._lockstep.queue, batch, self._lockstep.owed)
        late = self._drain(self._late.queue, batch, self._late.owed)
        self._drain_urgent(batch)
        late += self._drain(self._late.queue, batch)
        batch.tighten(pulse_ns)
        lockstep += self._drain(self._lockstep.queue, batch)
        self._late.settle(late, len(batch.items))
        self._lockstep.settle(lockstep, len(batch.items))
        return batch.items

    def _set_budget(self, batch: _Batch, now_ns: int, cost: CostModel) -> None:
        """Move rows that cannot make it to the late lane; the first that can sets the time budget of the batch."""
        while (item := self._urgent.peek()) is not None:
            slack_ns = item.latest_end_ns - now_ns
            if slack_ns >= cost.predict_ns(self.shape_key, 1, item.decodes):
                batch.budget_ns = slack_ns
                return
            self._urgent.pop()
            self._late.queue.push(item.asked_ns, item)

    def _drain_urgent(self, batch: _Batch) -> None:
        """Rows in order of slack; the first always goes, whatever the credit of others has put before it."""
        num_taken = 0
        while not batch.full and (item := self._urgent.peek()) is not None:
            if num_taken and not batch.fits(item):
                return
            self._urgent.pop()
            batch.take(item)
            num_taken += 1

    @staticmethod
    def _drain(queue: RunQueue, batch: _Batch, most: int | None = None) -> int:
        """Move up to `most` rows that fit into the batch; return how many."""
        num_taken = 0
        while num_taken != most and not batch.full and (item := queue.peek()) is not None and batch.fits(item):
            queue.pop()
            batch.take(item)
            num_taken += 1
        return num_taken


class Scheduler:
    """All runnable rows of one worker."""

    def __init__(self, cost: CostModel, limits: Limits) -> None:
        self._cost = cost
        self._limits = limits
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def push(self, shape_key: str, item: WorkItem) -> None:
        """Add a row that could run now."""
        bucket = self._buckets.get(shape_key)
        if bucket is None:
            bucket = self._buckets[shape_key] = _Bucket(shape_key, self._limits)
        bucket.push(item)

    def cancel(self, item: WorkItem) -> None:
        """Withdraw a row; no-op for one that was taken or cancelled."""
        if item.live and item.lane is not None:
            item.lane.cancel(item)

    def select(self, now_ns: int, pulse_ns: int | None = None) -> tuple[str, list[WorkItem]]:
        """Take the next batch out of the queues: its shape and rows, in order of service. Empty if nothing can run.

        `pulse_ns` is how long a tick may be filled up with lockstep rows, None where no realtime session would wait
        for it.
        """
        bucket = self._next_bucket()
        if bucket is None:
            return "", []
        return bucket.shape_key, bucket.take(now_ns, self._cost, pulse_ns)

    def _next_bucket(self) -> _Bucket | None:
        """Deficit round-robin: the first bucket in turn whose saved-up time covers its batch."""
        ready = [bucket for bucket in self._buckets.values() if len(bucket)]
        for bucket in self._buckets.values():
            if not len(bucket):
                bucket.deficit_ns = 0.0
        if len(ready) < 2:
            return ready[0] if ready else None
        costs = {bucket.shape_key: float(max(1, bucket.predicted_ns(self._cost))) for bucket in ready}
        quantum_ns = sum(costs.values()) / len(costs)
        rounds = min(max(0.0, costs[b.shape_key] - b.deficit_ns) / quantum_ns for b in ready)
        for bucket in ready:
            bucket.deficit_ns += quantum_ns * rounds
        chosen = next(b for b in ready if b.deficit_ns >= costs[b.shape_key] - 1.0)
        chosen.deficit_ns -= costs[chosen.shape_key]
        self._buckets.move_to_end(chosen.shape_key)
        return chosen
