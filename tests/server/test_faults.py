"""Faults that other transports shipped, by their names, where no other file already holds the test.

Elsewhere: odd sides, constant pts, queues shorter than a chunk's frames, frame rates guessed (test_video); an abrupt
loss, a close that hangs, memory per connection, a channel that arrives open, a dead TURN server, unlimited offers, a
late peer, refreshes, media without control (test_webrtc, test_limits); acknowledgements, inference that blocks the
loop, updates that revive a session (test_websocket); unauthenticated reads (test_pages, test_auth); tracebacks as
text (test_errors).
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import ChunkOut
from physis_stream.server.feed import SessionFeed
from physis_stream.server.video_track import VideoStream
from physis_stream.testing.fake_service import FakeEngineService, start_of
from physis_stream.testing.serving import QUICK, serving

from .conftest import eventually
from .page import Page, centre, frames


async def test_a_dead_model_loop_shows_no_frozen_frames_and_says_so(page):
    """RR#58: the model loop died, frozen frames keep flowing."""
    peer = await page.connect(await page.open())
    await frames(peer, 3)
    page.service.crash()
    assert (await peer.wait(lambda: peer.event("error")))["error"]["code"] == "engine_down"
    await asyncio.sleep(0.3)
    told = len(peer.telemetry)
    peer._frames.clear()
    await asyncio.sleep(0.6)
    assert len(peer.telemetry) == told
    assert not peer._frames
    assert (await page.http.get("/healthz")).status_code == 503


async def test_a_chunk_of_29_frames_passes_whole():
    """RR#106: a queue of 10, chunks of 29."""
    feed = SessionFeed(FakeEngineService(), SessionId("0" * 32), 0, lambda reason: None)
    executor = ThreadPoolExecutor(1)
    stream = VideoStream(feed, fps=1000.0, chunk_frames=29, double_below=0, executor=executor)
    track = stream.add_track(lambda frame: None)
    track.reading = True
    for life in range(2):
        pictures = np.zeros((29, 32, 32, 3), np.uint8)
        feed.publish(ChunkOut(SessionId("0" * 32), 0, life, life * 29, pictures, (), (0.0,), {}, None))
    await eventually(lambda: stream.encoded == 58)
    packets = [await track.recv() for _ in range(58)]
    assert [p.pts for p in packets] == [90 * n for n in range(58)]
    assert track.dropped == 0
    stream.remove_track(track)
    executor.shutdown()


async def test_nobody_sees_the_world_of_another(page):
    """OpenAvatarChat#136: user A hears user B."""
    for session in (sessions := [await page.open(seed=seed) for seed in (1, 5, 9)]):
        page.service._sessions[SessionId(session["id"])].target = start_of(session["seed"])
    peers = [await page.connect(session) for session in sessions]
    for session, peer in zip(sessions, peers, strict=True):
        for frame in await frames(peer, 3):
            assert centre(frame.rgb) == pytest.approx(start_of(session["seed"]), abs=0.25)
        assert {t["epoch"] for t in peer.telemetry} == {0}


async def test_the_next_session_shows_nothing_of_the_last():
    """speech-to-speech#226: output of the last session shows in the next. RR#142."""
    service = FakeEngineService(pace=0.2, max_sessions=1)
    async with serving(service) as server:
        page = Page(server, service)
        last = await page.open(seed=1)
        peer = await page.connect(last)
        peer.act(1, [1.0, 1.0])
        await peer.wait(lambda: any(1 in t["applied"] for t in peer.telemetry))
        await page.ask(last, method="DELETE")
        fresh = await page.open(seed=5)
        service._sessions[SessionId(fresh["id"])].target = start_of(5)
        again = await page.connect(fresh)
        first = (await frames(again, 1))[0]
        assert centre(first.rgb) == pytest.approx(start_of(5), abs=0.25)
        assert all(t["action"] != [1.0, 1.0] and t["applied"] == [] for t in again.telemetry)
        await asyncio.gather(peer.close(), again.close())
        await page.http.aclose()


def only_an_end_of_candidates(offer):
    lines = [line for line in offer["sdp"].split("\r\n") if not line.startswith("a=candidate:")]
    assert "a=end-of-candidates" in lines
    return {**offer, "sdp": "\r\n".join(lines)}


async def test_an_offer_that_ends_its_candidates_without_any_connects_all_the_same(page):
    """pipecat#5126: Firefox's empty end-of-candidates. The first check names the address."""
    peer = await page.connect(await page.open(), accept=only_an_end_of_candidates)
    await frames(peer, 1)


async def test_a_world_of_odd_sides_streams():
    """aiortc 1.16: an odd side kills the track, both ends stay connected."""
    service = FakeEngineService(height=131, width=135, pace=0.2)
    async with serving(service) as server:
        page = Page(server, service)
        peer = await page.connect(await page.open())
        assert {frame.rgb.shape for frame in await frames(peer, 3)} == {(132, 136, 3)}
        await peer.close()
        await page.http.aclose()


async def test_an_action_is_applied_by_the_next_chunk_that_opens_not_seconds_later():
    """VO#6646, FD#84: the engine runs ahead; scope#559: a queue 64 deep."""
    service = FakeEngineService(pace=0.8)
    async with serving(service) as server:
        page = Page(server, service)
        session = await page.open()
        peer = await page.connect(session)
        await frames(peer, 2)
        opens_next = service._sessions[SessionId(session["id"])].chunk
        peer.act(1, [1.0, 1.0])
        told = await peer.wait(lambda: next((t for t in peer.telemetry if 1 in t["applied"]), None))
        assert told["chunk"] in (opens_next, opens_next + 1)
        await peer.close()
        await page.http.aclose()


async def test_a_page_that_only_opens_and_leaves_keeps_no_slot():
    """LiveTalking#401, fastrtc#53, VO#5295: refresh ten times and the server is full until it is restarted."""
    service = FakeEngineService(pace=0.2, max_sessions=2)
    async with serving(service) as server:
        page = Page(server, service)
        for _ in range(2):
            await page.open()
        assert (await page.http.get("/readyz")).status_code == 503
        await eventually(lambda: service.live_sessions() == [], within_s=QUICK.unattached_s + 2.0)
        assert (await page.http.get("/readyz")).status_code == 200
        await page.http.aclose()
