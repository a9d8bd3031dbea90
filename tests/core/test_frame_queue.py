"""A queue that a slow reader cannot fill and an old epoch cannot reach."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_stream.core.frame_queue import FrameQueue


def test_first_in_first_out():
    queue: FrameQueue[str] = FrameQueue(3)
    assert [queue.put(0, item) for item in "abc"] == [0, 0, 0]
    assert [queue.get(), queue.get(), queue.get(), queue.get()] == ["a", "b", "c", None]


def test_the_oldest_is_dropped_when_the_reader_is_slow():
    queue: FrameQueue[str] = FrameQueue(2)
    assert [queue.put(0, item) for item in "abcd"] == [0, 0, 1, 1]
    assert (queue.get(), queue.get(), queue.num_dropped) == ("c", "d", 2)


def test_a_new_epoch_drops_what_is_left_of_the_old_one():
    queue: FrameQueue[str] = FrameQueue(4)
    queue.put(0, "old")
    queue.put(0, "older")
    assert queue.put(1, "new") == 2
    assert (queue.get(), queue.get()) == ("new", None)


def test_an_item_of_an_old_epoch_is_refused():
    queue: FrameQueue[str] = FrameQueue(4)
    assert queue.begin_epoch(2) == 0
    assert queue.put(1, "straggler") == 1
    assert queue.get() is None


def test_beginning_the_same_or_an_older_epoch_drops_nothing():
    queue: FrameQueue[str] = FrameQueue(4)
    queue.put(3, "frame")
    assert queue.begin_epoch(3) == queue.begin_epoch(1) == 0
    assert len(queue) == 1


def test_a_queue_holds_at_least_one_item():
    with pytest.raises(ValueError, match="at least 1"):
        FrameQueue(0)


@given(st.integers(1, 5), st.lists(st.one_of(st.none(), st.integers(0, 4))))
def test_it_is_bounded_ordered_and_never_shows_an_old_epoch(capacity, acts):
    """`None` reads, a number puts an item of that epoch."""
    queue: FrameQueue[tuple[int, int]] = FrameQueue(capacity)
    newest, last, seen, dropped = 0, -1, 0, 0
    for number, epoch in enumerate(acts):
        if epoch is None:
            item = queue.get()
            if item is not None:
                assert item[0] == newest
                assert item[1] > last
                last, seen = item[1], seen + 1
        else:
            newest = max(newest, epoch)
            dropped += queue.put(epoch, (epoch, number))
        assert len(queue) <= capacity
    assert dropped == queue.num_dropped
    assert seen + dropped + len(queue) == sum(epoch is not None for epoch in acts)
