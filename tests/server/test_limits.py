"""Every limit of docs/protocol.md: what is within passes, what is beyond is refused by its code and nothing leaks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from physis_client import wire
from physis_stream.server.limits import Limits, TokenBucket
from physis_stream.server.settings import ServerSettings
from physis_stream.server.webrtc import checked_offer
from physis_stream.testing.fake_service import FakeEngineService
from physis_stream.testing.serving import QUICK

from .conftest import WORLD, problem

JSON = {"Content-Type": "application/json"}
PACKED = {"Content-Type": wire.CONTENT_TYPE}


def with_limits(**fields):
    return ServerSettings(timers=QUICK, limits=replace(Limits(), **fields))


async def test_a_json_body_beyond_the_limit_is_413_by_its_declared_length(api):
    answer = await api.http.post("/v1/sessions", content=b" " * (65 << 10), headers=JSON)
    assert problem(answer) == (413, "too_large")


async def test_a_body_that_declares_no_length_is_cut_off_at_the_limit(api):
    sent = 0

    async def endless():
        nonlocal sent
        while sent < 100 << 20:
            sent += 4096
            yield b" " * 4096

    answer = await api.http.post("/v1/sessions", content=endless(), headers=JSON)
    assert problem(answer) == (413, "too_large")


async def test_a_body_that_trickles_in_is_given_up(make_api):
    api = await make_api(settings=ServerSettings(timers=replace(QUICK, body_s=0.1)))

    async def slow():
        yield b"{"
        await asyncio.sleep(1.0)
        yield b"}"

    answer = await api.http.post("/v1/sessions", content=slow(), headers=JSON)
    assert problem(answer) == (408, "invalid_request")


async def test_a_msgpack_body_beyond_the_limit_is_413(make_api):
    api = await make_api(settings=with_limits(binary_body=1000))
    session = await api.open(mode="lockstep")
    assert (await api.step(session, {"action": [0.0, 0.0]})).status_code == 200
    assert problem(await api.step(session, {"action": [0.0, 0.0], "x": b"0" * 1000})) == (413, "too_large")


async def test_a_model_name_beyond_the_limit_is_too_large(api):
    answer = await api.http.post("/v1/sessions", json={"model": "m" * 129})
    assert problem(answer) == (413, "too_large")


async def test_step_many_takes_only_so_many_sessions(make_api):
    api = await make_api(settings=with_limits(step_many_items=2), service=FakeEngineService(max_sessions=4))
    sessions = [await api.open(mode="lockstep") for _ in range(3)]
    items = [{"session": s["id"], "token": s["token"], "action": [0.0, 0.0]} for s in sessions]
    two = await api.http.post("/v1/step_many", content=wire.encode({"items": items[:2]}), headers=PACKED)
    three = await api.http.post("/v1/step_many", content=wire.encode({"items": items}), headers=PACKED)
    assert two.status_code == 200
    assert problem(three) == (413, "too_large")


async def test_the_server_keeps_only_so_many_sessions_forks_included(make_api):
    api = await make_api(settings=with_limits(sessions=2), service=FakeEngineService(max_sessions=9))
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/fork", json={"count": 2})) == (503, "capacity")
    assert (await api.ask(session, "/fork")).status_code == 201
    assert problem(await api.http.post("/v1/sessions", json={"model": WORLD})) == (503, "capacity")


async def test_a_session_keeps_only_so_many_snapshots(make_api):
    api = await make_api(settings=with_limits(snapshots_per_session=2))
    session = await api.open(mode="lockstep")
    assert [(await api.ask(session, "/snapshot")).status_code for _ in range(3)] == [201, 201, 503]


async def test_a_refused_snapshot_does_not_count(make_api):
    from physis_stream.core.errors import InvalidState

    api = await make_api(settings=with_limits(snapshots_per_session=1))
    session = await api.open(mode="lockstep")
    api.service.refuse_next["snapshot"] = InvalidState("not now")
    assert problem(await api.ask(session, "/snapshot")) == (409, "invalid_state")
    assert (await api.ask(session, "/snapshot")).status_code == 201


async def test_offers_are_limited_in_rate_even_if_they_are_broken(make_api):
    api = await make_api(settings=with_limits(offer_burst=3, offer_rate=0.01))
    session = await api.open()
    answers = [await api.ask(session, "/webrtc", json={"sdp": "v=0", "type": "offer"}) for _ in range(4)]
    assert [a.status_code for a in answers] == [422, 422, 422, 429]
    assert problem(answers[-1]) == (429, "capacity")
    assert int(answers[-1].headers["retry-after"]) > 1


async def test_an_sdp_beyond_the_limit_is_413(api):
    session = await api.open()
    sdp = "v=0\r\n" + "a=x\r\n" * 14_000
    assert problem(await api.ask(session, "/webrtc", json={"sdp": sdp, "type": "offer"})) == (413, "too_large")


OFFER = "v=0\r\nm=video 9 UDP/TLS/RTP/SAVPF 96\r\n"


@pytest.mark.parametrize(
    ("sdp", "words"),
    [
        (OFFER + "a=candidate:1 1 udp 1 192.0.2.1 9 typ host\r\n" * 65, "candidates"),
        (OFFER + "m=application 9 UDP/DTLS/SCTP webrtc-datachannel\r\n" * 4, "media sections"),
        (OFFER + OFFER[5:], "exactly one video"),
        ("v=0\r\nm=application 9 X y\r\n", "exactly one video"),
        (OFFER + "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n", "no audio"),
        ("x=0\r\n", "session description"),
        ("v=0\r\n" + "a" * 70_000, "bytes"),
    ],
    ids=lambda v: v[:30] if isinstance(v, str) else None,
)
def test_an_offer_beyond_its_bounds_is_refused_by_name(sdp, words):
    with pytest.raises(Exception, match=words):
        checked_offer(sdp, Limits())


def test_hidden_candidates_are_taken_out_of_an_offer_with_their_end_mark():
    hidden = "a=candidate:1 1 udp 1 b2a77987-1e57.local 9 typ host generation 0"
    shown = "a=candidate:2 1 udp 1 192.0.2.1 9 typ host"
    kept = checked_offer(f"{OFFER}{hidden}\r\n{shown}\r\na=end-of-candidates\r\n", Limits())
    assert hidden not in kept
    assert shown in kept
    assert "end-of-candidates" not in kept, "the hidden address may still come by itself"
    plain = f"{OFFER}{shown}\r\na=end-of-candidates\r\n"
    assert checked_offer(plain, Limits()) == plain


def test_a_bucket_allows_a_burst_then_the_rate():
    bucket = TokenBucket(rate=2.0, burst=3)
    assert [bucket.take(10.0) for _ in range(3)] == [None] * 3
    assert bucket.take(10.0) == pytest.approx(0.5)
    assert bucket.take(10.25) == pytest.approx(0.25)
    assert bucket.take(10.5) is None
    assert [bucket.take(1000.0) for _ in range(4)] == [None, None, None, pytest.approx(0.5)], "it never saves more"
