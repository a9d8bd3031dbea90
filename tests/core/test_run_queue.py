"""The heap of runnable rows: by urgency, with removal that costs nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from physis_stream.core.ids import SessionId
from physis_stream.core.run_queue import RunQueue, WorkItem


def item(name: str = "a") -> WorkItem:
    return WorkItem(SessionId(name), chunk=1, step=0, opens=False, decodes=0, asked_ns=0)


def test_the_most_urgent_comes_first_and_equals_in_order_of_arrival():
    queue = RunQueue()
    for key, name in ((5, "late"), (1, "first"), (1, "second")):
        queue.push(key, item(name))
    assert [queue.pop().session for _ in range(3)] == ["first", "second", "late"]
    assert queue.pop() is None


def test_a_cancelled_item_never_comes_out():
    queue = RunQueue()
    gone, stays = item("gone"), item("stays")
    queue.push(1, gone)
    queue.push(2, stays)
    queue.cancel(gone)
    assert len(queue) == 1
    assert queue.peek() is stays
    assert queue.pop() is stays
    assert len(queue) == 0


def test_cancelled_items_do_not_pile_up():
    queue = RunQueue()
    for turn in range(10_000):
        passing = item()
        queue.push(turn, passing)
        queue.cancel(passing)
    assert len(queue._heap) <= 65


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_it_agrees_with_a_sorted_list(entries):
    queue, expected = RunQueue(), []
    for arrival, (key, keep) in enumerate(entries):
        work = item(str(arrival))
        queue.push(key, work)
        if keep:
            expected.append((key, arrival))
        else:
            queue.cancel(work)
    assert len(queue) == len(expected)
    assert [queue.pop().session for _ in expected] == [str(arrival) for _, arrival in sorted(expected)]
