"""Ownership and expiry: who holds a session keeps it, who left loses it after the grace, and the sweep says why."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from physis_client.errors import SessionEnded, Unauthorized
from physis_stream.core.commands import Pace
from physis_stream.core.errors import EngineDown, NotFound
from physis_stream.runtime.service import OpenRequest
from physis_stream.server.ledger import REMEMBERED, EventLedger
from physis_stream.server.limits import Limits
from physis_stream.server.sessions import REMEMBERED_ENDED, SessionRegister
from physis_stream.server.settings import Timers
from physis_stream.server.silence import Silence
from physis_stream.testing.fake_service import FakeEngineService

from .conftest import WORLD, eventually

TIMERS = Timers(grace_s=12.0, unattached_s=20.0, lockstep_idle_s=300.0)


class Clock:
    """A hand that the test moves."""

    def __init__(self):
        self.now_s = 1000.0


@pytest.fixture
async def register():
    register = SessionRegister(FakeEngineService(max_sessions=2000), Limits(sessions=3000), TIMERS)
    clock = Clock()
    register.clock = clock
    register.now = lambda: clock.now_s
    yield register
    await register.close_all("the test is over")


async def opened(register, pace=Pace.REALTIME):
    session, _, token = await register.open(OpenRequest(WORLD, 1, pace))
    return session, token


async def swept(register, after_s):
    register.clock.now_s += after_s
    await register.sweep(register.clock.now_s)


async def test_a_realtime_session_to_which_nobody_comes_ends(register):
    session, token = await opened(register)
    await swept(register, 19.9)
    assert len(register) == 1
    await swept(register, 0.2)
    assert len(register) == 0
    with pytest.raises(SessionEnded, match="nobody came"):
        register.find(session.id, token)


async def test_a_lockstep_session_lives_on_calls_alone(register):
    session, token = await opened(register, Pace.LOCKSTEP)
    for _ in range(5):
        await swept(register, 250.0)
        register.find(session.id, token)
    await swept(register, 300.1)
    assert len(register) == 0


async def test_who_holds_a_session_keeps_it_for_ever(register):
    session, _ = await opened(register)
    register.attach(session)
    await swept(register, 1e6)
    assert len(register) == 1


async def test_a_session_that_lost_its_holder_is_kept_for_the_grace_and_then_ends(register):
    session, token = await opened(register)
    attachment = register.attach(session)
    register.clock.now_s += 100.0
    attachment.release()
    attachment.release()
    assert session.attachments == 0
    assert (await register.describe(session.id, token))["state"] == "reconnecting"
    await swept(register, 11.9)
    assert len(register) == 1
    await swept(register, 0.2)
    with pytest.raises(SessionEnded, match="vanished"):
        register.find(session.id, token)
    assert (await register.describe(session.id, token))["ended_reason"] == "the client vanished"
    assert register.service.live_sessions() == []


async def test_who_comes_back_within_the_grace_goes_on(register):
    session, token = await opened(register)
    register.attach(session).release()
    register.clock.now_s += 11.0
    register.attach(session)
    await swept(register, 100.0)
    assert (await register.describe(session.id, token))["state"] == "streaming"


async def test_two_holders_count_as_two(register):
    session, _ = await opened(register)
    first, second = register.attach(session), register.attach(session)
    assert first.speaker != second.speaker
    first.release()
    await swept(register, 100.0)
    assert len(register) == 1
    second.release()
    await swept(register, 13.0)
    assert len(register) == 0


async def test_asking_for_the_status_does_not_keep_a_lost_session(register):
    session, token = await opened(register)
    register.attach(session).release()
    for _ in range(13):
        await swept(register, 1.0)
        await register.describe(session.id, token)
    assert len(register) == 0


async def test_a_waiting_session_is_kept_by_asking(register):
    register.service.max_sessions = 0
    session, token = await opened(register)
    for _ in range(4):
        await swept(register, 15.0)
        assert (await register.describe(session.id, token))["queue_position"] == 1
    await swept(register, 21.0)
    assert len(register) == 0


async def test_closing_twice_is_no_error_and_closes_once(register):
    session, token = await opened(register)
    await register.close(session)
    await register.close(session)
    await register.close_by_id(session.id, token)
    assert register.service.calls.count("close_session") == 1


async def test_a_dead_engine_cannot_keep_a_session_from_ending_here(register):
    session, token = await opened(register)

    async def refuse(session, reason="closed"):
        raise EngineDown("dead")

    register.service.close_session = refuse
    await register.close(session, "closed")
    assert len(register) == 0
    with pytest.raises(SessionEnded):
        register.find(session.id, token)
    del register.service.close_session


async def test_what_a_session_was_is_remembered_for_its_owner_only_and_not_for_ever(register):
    session, token = await opened(register)
    await register.close(session)
    with pytest.raises(Unauthorized):
        await register.describe(session.id, "wrong")
    with pytest.raises(Unauthorized):
        await register.describe(session.id, None)
    for _ in range(REMEMBERED_ENDED):
        await register.close((await opened(register, Pace.LOCKSTEP))[0])
    with pytest.raises(NotFound):
        await register.describe(session.id, token)


async def test_the_slot_of_an_ended_session_is_free_at_once(register):
    register.service.max_sessions = 1
    session, _ = await opened(register)
    waiting, token = await opened(register)
    await register.close(session)
    assert (await register.describe(waiting.id, token))["state"] == "streaming"


async def test_a_session_that_the_engine_ends_is_forgotten_here(register):
    session, token = await opened(register)
    closed = []

    async def close(reason):
        closed.append(reason)

    session.closers.append(close)
    await register.service.close_session(session.id, "evicted")
    await eventually(lambda: len(register) == 0 and closed)
    assert closed == ["evicted"]
    assert (await register.describe(session.id, token))["ended_reason"] == "evicted"


async def test_no_two_sessions_share_a_token(register):
    tokens = {(await opened(register, Pace.LOCKSTEP))[1] for _ in range(50)}
    assert len(tokens) == 50
    assert min(map(len, tokens)) >= 43


async def test_children_that_come_after_their_asker_went_are_closed(register):
    """A socket that dies in the middle of a fork must not leave sessions that nobody knows."""
    session, _ = await opened(register, Pace.LOCKSTEP)
    service = register.service
    fork, gate = service.fork, asyncio.Event()

    async def slow_fork(parent, count):
        await gate.wait()
        return await fork(parent, count)

    service.fork = slow_fork
    asking = asyncio.create_task(register.fork(session, 3))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.set()
    await eventually(lambda: service.calls.count("close_session") == 3)
    assert service.live_sessions() == [session.id]


# The ledger of events


def test_events_of_all_speakers_get_one_growing_row_of_numbers():
    ledger = EventLedger()
    numbers = [ledger.number(1, 5), ledger.number(2, 5), ledger.number(1, 6)]
    assert numbers == [1, 2, 3]
    assert ledger.own(1, numbers) == [5, 6]
    assert ledger.own(2, numbers) == [5]
    assert ledger.own(3, numbers) == []


def test_a_repeated_event_gets_no_second_number():
    ledger = EventLedger()
    assert ledger.number(1, 5) == 1
    assert ledger.number(1, 5) is None
    assert ledger.number_again(1, 5) == 1
    assert ledger.number_again(1, 6) == 2


def test_a_page_that_reloads_may_count_from_one_again():
    ledger = EventLedger()
    assert [ledger.number(1, n) for n in (1, 2, 3)] == [1, 2, 3]
    assert [ledger.number(2, n) for n in (1, 2, 3)] == [4, 5, 6]


def test_a_refused_event_may_be_sent_again():
    ledger = EventLedger()
    ledger.number(1, 5)
    ledger.forget(1, 5)
    ledger.forget(1, 99)
    assert ledger.own(1, [1]) == []
    assert ledger.number(1, 5) == 2


def test_the_ledger_is_bounded():
    ledger = EventLedger()
    for event in range(REMEMBERED + 10):
        ledger.number(1, event)
    assert ledger.own(1, [10, 11]) == [10]
    assert len(ledger._seen) == len(ledger._by_number) == REMEMBERED


# Silence


def looks(*seen, silence_s=4.0, every_s=0.5):
    """What `Silence` says at each (time, packets)."""
    silence = Silence(silence_s, every_s, 0.0)
    return [silence.look(now_s, received) for now_s, received in seen]


def test_a_peer_that_keeps_sending_is_there():
    assert not any(looks(*((0.5 * n, n) for n in range(1, 100))))


def test_a_peer_that_falls_silent_is_gone_once_the_time_is_over():
    seen = [(0.5 * n, min(n, 3)) for n in range(1, 20)]
    gone = looks(*seen)
    assert gone.index(True) == seen.index((6.0, 3)), "heard at 1.5 s, gone after 5.5 s"


def test_one_packet_is_enough_to_be_heard():
    assert not any(looks(*((0.5 * n, n // 7) for n in range(1, 60))))


def test_a_server_that_was_held_up_blames_nobody_but_still_notices():
    held_up = [(0.5, 1), (1.0, 1), (11.0, 1)]
    assert looks(*held_up) == [False, False, False]
    assert looks(*held_up, *((11.0 + 0.5 * n, 1) for n in range(1, 9)))[-1] is True


def test_the_defaults_notice_within_5_s_and_free_within_20_s():
    timers = Timers()
    assert timers.silence_s + 2 * timers.sweep_s <= 5.0
    assert timers.silence_s + 2 * timers.sweep_s + timers.grace_s + timers.sweep_s <= 20.0
    assert replace(timers, grace_s=99.0).grace_s == 99.0
