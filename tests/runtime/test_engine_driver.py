"""The driver waits on asks and wake-ups, never polls, and survives what asks do."""

from __future__ import annotations

import threading

import pytest

from physis_stream.core.errors import EngineError
from physis_stream.runtime import engine_driver
from physis_stream.runtime.clock import ManualClock
from physis_stream.runtime.inbox import Inbox
from physis_stream.runtime.messages import Answer, AskStats


class Engine:
    """Answers asks; `wakes` says when it wants to be turned next."""

    def __init__(self, wakes=()):
        self.wakes, self.turns, self.closed, self.replies = list(wakes), 0, False, []

    def ask(self, ask):
        if ask.call < 0:
            raise RuntimeError("a bad command")
        self.replies.append(Answer(ask.call))

    def turn(self):
        self.turns += 1
        return False

    def take_replies(self):
        replies, self.replies = self.replies, []
        return replies

    def next_wake_ns(self):
        return self.wakes.pop(0) if self.wakes else None

    def close(self):
        self.closed = True


class RecordingInbox(Inbox):
    """Hands out prepared batches and notes how long the driver was ready to wait."""

    def __init__(self, *batches):
        super().__init__()
        self.batches, self.waits = list(batches), []

    def take(self, timeout_s):
        self.waits.append(timeout_s)
        return self.batches.pop(0) if self.batches else None


def drive(engine, inbox, delivered=None, beats=None):
    engine_driver.drive(
        engine,
        inbox,
        (delivered if delivered is not None else []).extend,
        (beats if beats is not None else []).append,
        ManualClock(1000),
    )


def test_it_waits_until_the_cores_wake_up_and_no_longer_than_a_heartbeat():
    inbox = RecordingInbox([], [], [])
    drive(Engine([1000, 1000 + 50_000_000, None, 10**12]), inbox)
    assert inbox.waits == [0.0, 0.05, engine_driver.BEAT_S, engine_driver.BEAT_S]


def test_every_ask_is_answered_in_order_and_a_bad_one_harms_nobody():
    delivered, engine = [], Engine()
    drive(engine, RecordingInbox([AskStats(1), AskStats(-5), AskStats(2)]), delivered)
    assert {answer.call: answer.error is None for answer in delivered} == {1: True, -5: False, 2: True}
    broken = next(answer for answer in delivered if answer.call == -5)
    assert isinstance(broken.error, EngineError)
    assert engine.closed


def test_it_beats_before_every_wait():
    beats = []
    drive(Engine(), RecordingInbox([], []), beats=beats)
    assert beats == [1000, 1000, 1000]


def test_a_broken_engine_ends_the_loop_and_is_closed():
    class Broken(Engine):
        def turn(self):
            raise AssertionError("an invariant does not hold")

    engine = Broken()
    with pytest.raises(AssertionError):
        drive(engine, RecordingInbox([]))
    assert engine.closed


def test_an_inbox_wakes_its_taker_and_takes_nothing_after_closing():
    inbox, found = Inbox(), []
    taker = threading.Thread(target=lambda: found.append(inbox.take(30.0)))
    taker.start()
    assert inbox.put(AskStats(1))
    taker.join(10)
    assert found == [[AskStats(1)]]
    assert inbox.take(0.0) == []
    inbox.put(AskStats(2))
    inbox.close()
    assert not inbox.put(AskStats(3))
    assert inbox.take(1.0) == [AskStats(2)]
    assert inbox.take(1.0) is None
