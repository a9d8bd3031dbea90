"""Fan-out of one session's outputs: bounded, epoch by epoch, ended once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from physis_stream.core.commands import Pace
from physis_stream.core.errors import EngineDown
from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import ChunkOut, Notice, OpenRequest
from physis_stream.server.feed import MAX_NOTICES, Listener, SessionFeed
from physis_stream.testing.fake_service import FakeEngineService

from .conftest import WORLD, eventually

ID = SessionId("0" * 32)


def chunk(index, epoch=0, life=None):
    frames = np.zeros((2, 4, 4, 3), np.uint8)
    return ChunkOut(ID, epoch, index, 2 * (index if life is None else life), frames, (), (0.0,), {}, None)


def notice(kind="status", **detail):
    return Notice(ID, kind, detail)


async def test_a_listener_keeps_the_newest_chunks_and_counts_what_it_dropped():
    listener = Listener(2)
    for index in range(5):
        listener.put(chunk(index))
    assert [(await listener.chunk()).chunk for _ in range(2)] == [3, 4]
    assert listener.dropped == 3
    assert not listener.has_chunk


async def test_what_a_dropped_chunk_applied_is_told_with_the_next():
    """An event that was accepted is never left unanswered because a reader was slow."""
    for most in (1, 2):
        listener = Listener(most)
        for index in range(5):
            listener.put(replace(chunk(index), applied=(10 + index,)))
        told = [(await listener.chunk()).applied for _ in range(most)]
        assert sorted(sum(told, ())) == [10, 11, 12, 13, 14]


async def test_what_an_old_epoch_applied_is_not_told_in_a_new_one():
    listener = Listener(1)
    listener.put(replace(chunk(5), applied=(1,)))
    listener.put(replace(chunk(0, epoch=1), applied=(2,)))
    assert (await listener.chunk()).applied == (2,)


async def test_notices_are_not_dropped_for_chunks_and_come_in_order():
    listener = Listener(1)
    for index in range(10):
        listener.put(notice(number=index))
        listener.put(chunk(index))
    assert [(await listener.notice()).detail["number"] for _ in range(10)] == list(range(10))


async def test_notices_are_bounded_too():
    listener = Listener(1)
    for index in range(MAX_NOTICES + 5):
        listener.put(notice(number=index))
    assert (await listener.notice()).detail["number"] == 5


async def test_a_listener_of_no_chunks_takes_none():
    listener = Listener(0)
    listener.put(chunk(1))
    assert not listener.has_chunk


async def test_a_listener_may_choose_its_chunks():
    listener = Listener(2, accept=lambda one: one.chunk == 0)
    for index in range(3):
        listener.put(chunk(index))
    assert (await listener.chunk()).chunk == 0
    assert not listener.has_chunk


async def test_an_ended_listener_gives_what_it_has_and_then_none():
    listener = Listener(2)
    listener.put(chunk(0))
    listener.put(notice())
    listener.end()
    assert (await listener.chunk()).chunk == 0
    assert await listener.chunk() is None
    assert (await listener.notice()).kind == "status"
    assert await listener.notice() is None
    assert await listener.chunk_within(10.0) is False


async def test_waiting_for_a_chunk_ends_with_the_chunk_or_the_time():
    listener = Listener(2)
    assert await listener.chunk_within(0.01) is False
    asyncio.get_running_loop().call_later(0.01, listener.put, chunk(0))
    assert await listener.chunk_within(5.0) is True


def a_feed(service=None):
    ends = []
    return SessionFeed(service or FakeEngineService(), ID, 0, ends.append), ends


async def test_a_new_epoch_takes_the_old_chunks_away_from_every_listener():
    feed, _ = a_feed()
    seen = []
    feed.watch_epochs(seen.append)
    listeners = [feed.listen(max_chunks=2) for _ in range(2)]
    feed.publish(chunk(5))
    feed.begin_epoch(1)
    assert [listener.has_chunk for listener in listeners] == [False, False]
    assert seen == [1]


async def test_a_chunk_of_an_old_epoch_is_never_handed_out():
    feed, _ = a_feed()
    listener = feed.listen(max_chunks=2)
    feed.begin_epoch(2)
    feed.publish(chunk(7, epoch=1))
    assert not listener.has_chunk
    feed.publish(chunk(0, epoch=2))
    assert (await listener.chunk()).epoch == 2


async def test_a_chunk_or_a_status_of_a_new_epoch_begins_it():
    feed, _ = a_feed()
    listener = feed.listen(max_chunks=2)
    feed.publish(chunk(5))
    feed.publish(notice(state="streaming", epoch=1))
    assert not listener.has_chunk
    feed.publish(chunk(0, epoch=2))
    assert feed.epoch == 2


async def test_a_late_listener_may_ask_for_the_newest_chunk():
    feed, _ = a_feed()
    feed.publish(chunk(3))
    assert (await feed.listen(max_chunks=2, replay=True).chunk()).chunk == 3
    assert not feed.listen(max_chunks=2).has_chunk
    feed.begin_epoch(1)
    assert not feed.listen(max_chunks=2, replay=True).has_chunk


async def test_the_end_is_told_once_to_all_and_to_those_who_come_late():
    feed, ends = a_feed()
    early = feed.listen(max_chunks=1)
    feed.end("closed")
    feed.end("again")
    late = feed.listen(max_chunks=1)
    for listener in (early, late):
        assert (await listener.notice()).detail == {"reason": "closed"}
        assert await listener.notice() is None
    assert ends == ["closed"]
    assert feed.latest is None, "an ended session keeps no frames"


async def test_who_left_hears_nothing_more():
    feed, _ = a_feed()
    listener = feed.listen(max_chunks=2)
    feed.leave(listener)
    feed.publish(chunk(0))
    assert not listener.has_chunk


async def test_the_engine_ends_the_feed_with_its_reason():
    service = FakeEngineService(pace=0.1)
    status = await service.open_session(OpenRequest(WORLD, 1, Pace.REALTIME))
    ends = []
    feed = SessionFeed(service, status.session, 0, ends.append)
    feed.start()
    await eventually(lambda: feed.chunks > 1)
    await service.close_session(status.session, "moved away")
    await eventually(lambda: ends)
    assert ends == ["moved away"]


class BrokenService(FakeEngineService):
    """Its subscription fails at once."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    async def subscribe(self, session, *, max_chunks=2):
        raise self.error
        yield


@pytest.mark.parametrize(
    ("error", "reason"), [(EngineDown("the loop is dead"), "the loop is dead"), (ValueError("x"), "the engine failed")]
)
async def test_a_subscription_that_fails_ends_the_session_instead_of_hanging(error, reason):
    feed, ends = a_feed(BrokenService(error))
    feed.start()
    await eventually(lambda: ends)
    assert ends == [reason]
