"""A peer over loopback, against the real server: frames, control, telemetry, resets, forks, losses, refreshes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import weakref
from dataclasses import replace

import pytest
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.rtp import RTCP_PSFB_APP, RtcpPsfbPacket, RtcpReceiverInfo, RtcpRrPacket, pack_remb_fci

from physis_client.errors import (
    Capacity,
    InvalidAction,
    InvalidState,
    NotFound,
    PhysisError,
    SessionEnded,
    Transport,
    Unauthorized,
    VersionMismatch,
)
from physis_stream.core.ids import SessionId
from physis_stream.server.limits import Limits
from physis_stream.server.rate_control import Path
from physis_stream.server.settings import IceServer, ServerSettings
from physis_stream.testing.fake_service import FakeEngineService, start_of
from physis_stream.testing.serving import QUICK, serving

from .conftest import WORLD, eventually
from .page import Page, centre, frames


async def test_frames_arrive_even_sharp_and_in_order(page):
    peer = await page.connect(await page.open())
    pictures = await frames(peer, 6)
    assert {picture.rgb.shape for picture in pictures} == {(192, 192, 3)}
    gaps = [(b.rtp_ts - a.rtp_ts) % 2**32 for a, b in itertools.pairwise(pictures)]
    assert min(gaps) > 0
    assert gaps.count(9000) >= 3, f"90 kHz at 10 fps, once it runs: {gaps}"


async def test_hello_says_which_world_and_session_this_is(page):
    session = await page.open()
    peer = await page.connect(session)
    assert peer.hello["world"]["name"] == WORLD
    assert peer.hello["session"]["id"] == session["id"]
    assert peer.hello["state"] == "streaming"


async def test_an_action_moves_the_world_and_telemetry_names_it_with_the_frames_rtp_timestamp(page):
    session = await page.open()
    peer = await page.connect(session)
    seen = {}

    async def watch():
        async for frame in peer.frames():
            seen[frame.rtp_ts] = frame

    watching = asyncio.create_task(watch())
    await peer.wait(lambda: len(peer.telemetry) >= 2)
    peer.act(7, [1.0, 1.0])
    told = await peer.wait(lambda: next((t for t in peer.telemetry if 7 in t["applied"]), None))
    assert told["action"] == [1.0, 1.0]
    assert set(told) == {
        "frame_id", "rtp_ts", "epoch", "chunk", "applied", "action", "state", "reward", "t_render", "timing_ms",
    }  # fmt: skip
    await peer.wait(lambda: told["rtp_ts"] in seen)
    after = await peer.wait(lambda: next((t for t in peer.telemetry if t["chunk"] == told["chunk"] + 1), None))
    await peer.wait(lambda: after["rtp_ts"] in seen)
    shown = centre(seen[(after["rtp_ts"] - 9000) % 2**32].rgb)
    assert shown == pytest.approx((told["state"]["x"], told["state"]["y"]), abs=0.03)
    watching.cancel()


async def test_a_late_or_repeated_action_changes_nothing(page):
    session = await page.open()
    peer = await page.connect(session)
    peer.act(5, [1.0, 1.0])
    await peer.wait(lambda: any(5 in t["applied"] for t in peer.telemetry))
    peer.act(5, [-1.0, -1.0])
    peer.act(3, [-1.0, -1.0])
    peer.act(6, [1.0, 1.0])
    await peer.wait(lambda: any(6 in t["applied"] for t in peer.telemetry))
    assert not any({3} & set(t["applied"]) for t in peer.telemetry)
    assert sum(t["applied"].count(5) for t in peer.telemetry) == 1


MALFORMED_ACTIONS = (
    '{"seq": 1}',
    '{"seq": -1, "action": [0, 0]}',
    '{"seq": 1, "action": [0]}',
    '{"seq": 1, "action": [NaN, 0]}',
    "{",
    "[]",
    '{"seq": 1, "action": ["a", "b"]}',
    "x" * 20_000,
)


async def test_a_malformed_action_is_reported_on_control_and_changes_nothing(page):
    session = await page.open()
    peer = await page.connect(session)
    for text in MALFORMED_ACTIONS:
        peer.events.clear()
        peer.actions.send(text)
        event = await peer.wait(lambda: peer.event("error"))
        assert event["error"]["code"] in ("invalid_action", "invalid_request", "too_large"), text[:40]
        assert event["error"]["request_id"]
    assert page.service._sessions[SessionId(session["id"])].target == (0.0, 0.0)


async def test_every_request_is_answered_also_the_broken_ones(page):
    peer = await page.connect(await page.open())
    broken = ["{", "[]", "null", '"x"', '{"id": 1.5, "type": "ping"}', '{"type": "ping"}', "x" * 20_000, "[" * 5000]
    for text in broken:
        peer.send(text)
    peer.control.send(b"\x00\x01")
    refused = await peer.wait(
        lambda: (
            [e for e in peer.events if e["event"] == "refused"][len(broken) :]
            and [e for e in peer.events if e["event"] == "refused"]
        )
    )
    assert len(refused) == len(broken) + 1
    assert {e["re"] for e in refused} == {None}
    assert {e["error"]["code"] for e in refused} == {"invalid_request", "too_large"}
    assert (await peer.request("ping", t=3.5))["t"] == 3.5, "the channel lives on"


REFUSED_REQUESTS = (
    ("nothing", {}, PhysisError),
    ("hello", {"version": 2}, VersionMismatch),
    ("hello", {}, VersionMismatch),
    ("action", {"event": 1, "action": [1.0]}, InvalidAction),
    ("action", {"event": "1", "action": [1.0, 1.0]}, PhysisError),
    ("prompt", {"event": 1, "text": 3}, PhysisError),
    ("prompt", {"event": 1, "text": "x" * 2001}, PhysisError),
    ("reset", {"seed": -1}, PhysisError),
    ("fork", {"count": 0}, PhysisError),
    ("fork", {"count": 60}, Capacity),
    ("restore", {"snapshot": "none"}, NotFound),
    ("step", {"event": 1, "action": [0.0, 0.0]}, PhysisError),
    ("ping", {"t": "x"}, PhysisError),
)


async def test_a_refused_request_is_answered_by_its_family(page):
    peer = await page.connect(await page.open())
    for kind, fields, family in REFUSED_REQUESTS:
        with pytest.raises(family):
            await peer.request(kind, **fields)
    assert (await peer.request("resume"))["ok"], "none of them moved anything"


async def test_a_failure_inside_is_answered_too(page):
    peer = await page.connect(await page.open())
    page.service.refuse_next["reset"] = ZeroDivisionError("secret")
    with pytest.raises(PhysisError, match="internal") as caught:
        await peer.request("reset")
    assert caught.value.code == "internal"
    assert "secret" not in caught.value.message


async def test_pause_stops_the_frames_and_resume_goes_on(page):
    peer = await page.connect(await page.open())
    await frames(peer, 2)
    assert (await peer.request("pause"))["session"]["state"] == "paused"
    await peer.wait(lambda: (peer.event("status") or {}).get("state") == "paused")
    await asyncio.sleep(0.3)
    told = len(peer.telemetry)
    await asyncio.sleep(0.3)
    assert len(peer.telemetry) == told
    await peer.request("resume")
    await peer.wait(lambda: len(peer.telemetry) > told)


async def test_reset_flushes_everything_upstream_and_downstream(page):
    """After the answer only the new epoch is told; the picture jumps to the new start."""
    session = await page.open()
    peer = await page.connect(session)
    peer.act(1, [1.0, 1.0])
    await peer.wait(lambda: any(1 in t["applied"] for t in peer.telemetry))
    answer = await peer.request("reset", seed=5)
    assert answer["session"]["epoch"] == 1
    peer.telemetry.clear()
    await peer.wait(lambda: len(peer.telemetry) >= 3)
    assert {t["epoch"] for t in peer.telemetry} == {1}
    assert peer.telemetry[0]["chunk"] == 0
    first = peer.telemetry[0]["rtp_ts"]
    told = [t["rtp_ts"] for t in peer.telemetry]
    assert all((b - a) % 2**32 < 2**31 for a, b in itertools.pairwise(told)), "timestamps still rise"
    pictures = [f for f in await frames(peer, 8) if (f.rtp_ts - first) % 2**32 < 2**31]
    assert centre(pictures[0].rgb) == pytest.approx(start_of(5), abs=0.4)


async def test_a_fork_is_another_session_with_its_own_peer_and_does_not_mix(page):
    session = await page.open()
    parent = await page.connect(session)
    (child,) = (await parent.request("fork"))["sessions"]
    twin = await page.connect(child)
    parent.act(1, [1.0, 1.0])
    twin.act(1, [-1.0, -1.0])
    for peer, target in ((parent, 0.99), (twin, -0.99)):
        await peer.wait(lambda p=peer, t=target: p.telemetry and p.telemetry[-1]["state"]["x"] * t > 0.9, timeout=4.0)
    await parent.request("close")
    assert await page.state(child) == "streaming"


async def test_snapshot_and_restore_over_control(page):
    peer = await page.connect(await page.open())
    mark = (await peer.request("snapshot"))["snapshot"]
    assert (await peer.request("restore", snapshot=mark))["session"]["epoch"] == 1


async def test_stats_come_unasked_and_on_request(page):
    peer = await page.connect(await page.open())
    event = await peer.wait(lambda: peer.event("stats"))
    assert event["sessions"] == 1
    assert (await peer.request("stats"))["stats"]["alive"] is True


async def test_a_failed_session_is_told_and_only_reset_is_legal(page):
    session = await page.open()
    peer = await page.connect(session)
    page.service.fail_session(SessionId(session["id"]), "a tick failed")
    event = await peer.wait(lambda: peer.event("error"))
    assert event["error"]["message"] == "a tick failed"
    with pytest.raises(InvalidState):
        await peer.request("fork")
    assert (await peer.request("reset", seed=1))["session"]["state"] == "streaming"


async def test_a_dead_engine_is_told_within_a_second_and_its_recovery_too(page):
    peer = await page.connect(await page.open())
    page.service.crash()
    event = await peer.wait(lambda: peer.event("error"), timeout=1.0)
    assert event["error"]["code"] == "engine_down"
    page.service.recover()
    await peer.wait(lambda: peer.event("recovered"))


# Coming and going


async def test_close_ends_the_session_at_once_with_a_word(page):
    session = await page.open()
    peer = await page.connect(session)
    page.service.delay_s["close_session"] = 0.4
    assert (await peer.request("close"))["ok"]
    assert page.service.live_sessions() == []
    await peer.wait(lambda: peer.event("ended"))
    assert peer.ended_reason == "closed"
    with pytest.raises(SessionEnded):
        async for _ in peer.frames():
            pass
    await eventually(lambda: len(page.server.context.peers) == 0)


async def test_a_beacon_on_leaving_frees_the_slot_at_once(page):
    session = await page.open()
    await page.connect(session)
    assert (await page.ask(session, method="DELETE")).status_code == 204
    assert page.service.live_sessions() == []
    await eventually(lambda: len(page.server.context.peers) == 0)


async def test_ten_refreshes_in_a_row_leave_one_session(page):
    """A refresh sends its beacon, or loses it: either way one session is left when the dust has settled."""
    for refresh in range(10):
        session = await page.open()
        peer = await page.connect(session)
        if refresh % 2:
            await page.ask(session, method="DELETE")
        await peer.close()
        if len(page.service.live_sessions()) == page.service.max_sessions:
            await eventually(lambda: len(page.service.live_sessions()) < page.service.max_sessions)
    last = await page.open()
    await page.connect(last)
    await eventually(lambda: page.service.live_sessions() == [last["id"]])
    assert len(page.server.context.peers) == 1


async def test_a_page_that_comes_back_with_its_token_goes_on(page):
    session = await page.open()
    peer = await page.connect(session)
    peer.act(1, [1.0, 1.0])
    await peer.wait(lambda: any(1 in t["applied"] for t in peer.telemetry))
    await peer.close()
    await eventually(lambda: len(page.server.context.peers) == 0)
    assert await page.state(session) == "reconnecting"
    again = await page.connect(session)
    assert await page.state(session) == "streaming"
    again.act(1, [-1.0, -1.0])
    await again.wait(lambda: any(1 in t["applied"] for t in again.telemetry), timeout=2.0)


async def test_a_peer_that_vanishes_is_noticed_and_its_slot_freed(page):
    """No goodbye of any kind: its sockets just fall silent."""
    session = await page.open()
    peer = await page.connect(session)
    await frames(peer, 2)
    clock = asyncio.get_running_loop().time
    vanish(peer)
    began = clock()
    await eventually(lambda: len(page.server.context.peers) == 0)
    noticed = clock() - began
    await eventually(lambda: page.service.live_sessions() == [])
    freed = clock() - began
    assert noticed < QUICK.silence_s + 1.5
    assert freed < QUICK.silence_s + QUICK.grace_s + 2.5
    assert (await page.ask(session, method="GET")).json()["ended_reason"] == "the client vanished"


def vanish(peer):
    """Cut the peer's sockets without a word."""
    transport = peer.connection.sctp.transport.transport
    for protocol in transport._connection._protocols:
        protocol.transport.abort()


async def test_a_polite_goodbye_is_noticed_at_once():
    service = FakeEngineService(pace=0.2)
    async with serving(service, ServerSettings(timers=replace(QUICK, silence_s=30.0))) as server:
        page = Page(server, service)
        peer = await page.connect(await page.open())
        await peer.close()
        await eventually(lambda: len(server.context.peers) == 0, within_s=1.0)
        await page.http.aclose()


async def test_a_picture_loss_is_answered_with_a_keyframe(page):
    session = await page.open()
    peer = await page.connect(session)
    await frames(peer, 2)
    await peer.request("pause")
    await asyncio.sleep(0.4)
    (held,) = page.server.context.peers._peers.values()
    sent, put = [], held._track.put
    held._track.put = lambda frame: (sent.append(frame.keyframe), put(frame))
    receiver = peer.connection.getReceivers()[0]
    await receiver._send_rtcp_pli(
        peer.connection.getTransceivers()[0].receiver._RTCRtpReceiver__active_ssrc.popitem()[0]
    )
    await eventually(lambda: sent)
    assert sent == [True]


async def test_what_a_receiver_reports_of_its_path_is_heard(page):
    peer = await page.connect(await page.open())
    await frames(peer, 2)
    (held,) = page.server.context.peers._peers.values()
    sender = held._pc.getSenders()[0]
    receiver = peer.connection.getReceivers()[0]

    def path():
        return held._video._paths.get(held._track, Path())

    estimate = RtcpPsfbPacket(
        fmt=RTCP_PSFB_APP, ssrc=1, media_ssrc=0, fci=pack_remb_fci(bitrate=777_000, ssrcs=[sender._ssrc])
    )
    await receiver._send_rtcp(estimate)
    await eventually(lambda: 770_000 < (path().room_bps or 0) < 780_000)
    lost = RtcpReceiverInfo(
        ssrc=sender._ssrc, fraction_lost=64, packets_lost=9, highest_sequence=1, jitter=0, lsr=0, dlsr=0
    )
    await receiver._send_rtcp(RtcpRrPacket(ssrc=1, reports=[lost]))
    await eventually(lambda: path().loss == 0.25)
    await receiver._send_rtcp(RtcpPsfbPacket(fmt=RTCP_PSFB_APP, ssrc=1, media_ssrc=0, fci=b"junk"))
    await frames(peer, 2)


async def test_a_connection_that_will_not_close_holds_nobody_up(page, monkeypatch, caplog):
    """aiortc#283."""
    await page.connect(await page.open())
    (peer,) = page.server.context.peers._peers.values()
    hang = asyncio.Event()
    monkeypatch.setattr(peer._pc, "close", hang.wait)
    clock = asyncio.get_running_loop().time
    began = clock()
    await peer.close("the test says so")
    assert clock() - began < QUICK.drain_s + 0.5
    assert "took too long" in caplog.text
    monkeypatch.undo()
    await peer._pc.close()


async def test_nothing_of_a_peer_or_a_session_is_left_after_it_is_gone(page):
    """aiortc#904, vllm#50860: memory grows with each connection, frames are kept for ever."""
    left = []
    for _ in range(3):
        session = await page.open()
        peer = await page.connect(session)
        await frames(peer, 1)
        (held,) = page.server.context.peers._peers.values()
        left += [weakref.ref(x) for x in (held, held._pc, held.session, held.session.feed, held._video, held._track)]
        del held
        await page.ask(session, method="DELETE")
        await peer.close()
        page.peers.clear()
        del peer
        await eventually(lambda: len(page.server.context.peers) == 0)
    await asyncio.sleep(0.3)
    gc.collect()
    assert [ref() for ref in left if ref() is not None] == []


async def test_media_ends_when_control_is_gone(page):
    session = await page.open()
    peer = await page.connect(session)
    peer.control.close()
    await eventually(lambda: len(page.server.context.peers) == 0)
    assert await page.state(session) == "reconnecting"


async def test_a_peer_that_never_connects_is_given_up():
    service = FakeEngineService(pace=0.2)
    settings = ServerSettings(timers=replace(QUICK, connect_s=0.3, unattached_s=9.0, grace_s=9.0))
    async with serving(service, settings) as server:
        page = Page(server, service)
        session = await page.open()
        silent = RTCPeerConnection()
        silent.addTransceiver("video", direction="recvonly")
        silent.createDataChannel("control")
        await silent.setLocalDescription(await silent.createOffer())
        answer = await page.ask(session, "/webrtc", json={"sdp": silent.localDescription.sdp, "type": "offer"})
        assert answer.status_code == 201
        assert len(server.context.peers) == 1
        await eventually(lambda: len(server.context.peers) == 0)
        await silent.close()
        await page.http.aclose()


async def test_a_silent_but_living_peer_is_not_given_up(page):
    """A paused session sends no video; the peer's acknowledgements of statistics keep it."""
    session = await page.open()
    peer = await page.connect(session)
    await peer.request("pause")
    await asyncio.sleep(QUICK.silence_s * 2.5)
    assert len(page.server.context.peers) == 1
    assert (await peer.request("resume"))["session"]["state"] == "streaming"


async def test_two_peers_of_one_session_see_the_same_and_hear_their_own_events(page):
    session = await page.open()
    first, second = await page.connect(session), await page.connect(session)
    first.act(1, [1.0, 1.0])
    second.act(1, [1.0, 1.0])
    for peer in (first, second):
        await peer.wait(lambda p=peer: any(1 in t["applied"] for t in p.telemetry))
        assert sum(t["applied"].count(1) for t in peer.telemetry) == 1
    await first.close()
    await eventually(lambda: len(page.server.context.peers) == 1)
    assert await page.state(session) == "streaming"
    await frames(second, 2)


async def test_a_late_peer_cannot_join_the_next_session(page):
    """A slot that changes hands does not change owners."""
    session = await page.open()
    await page.ask(session, method="DELETE")
    other = await page.open(seed=9)
    with pytest.raises(SessionEnded):
        await page.connect(session)
    with pytest.raises(Unauthorized):
        await page.connect({**other, "token": session["token"]})


async def test_a_session_has_only_so_many_peers(page):
    session = await page.open()
    for _ in range(Limits().peers_per_session):
        await page.connect(session)
    with pytest.raises(Capacity):
        await page.connect(session)


async def test_an_unknown_or_second_channel_is_closed_and_the_peer_lives(page):
    peer = await page.connect(await page.open())
    strange = peer.connection.createDataChannel("strange")
    second = peer.connection.createDataChannel("control")
    await eventually(lambda: strange.readyState == second.readyState == "closed")
    assert (await peer.request("ping", t=1))["t"] == 1


async def test_a_channel_that_arrives_open_with_a_message_right_behind_is_heard(page):
    """pipecat#5112: the channel is open when it arrives, its first message must not get stuck."""
    session = await page.open()
    connection = RTCPeerConnection()
    connection.addTransceiver("video", direction="recvonly")
    control = connection.createDataChannel("control")
    heard = asyncio.get_running_loop().create_future()
    control.on("message", lambda text: heard.done() or heard.set_result(json.loads(text)))
    control.on("open", lambda: control.send('{"id": 1, "type": "ping", "t": 1}'))
    await connection.setLocalDescription(await connection.createOffer())
    body = {"sdp": connection.localDescription.sdp, "type": "offer"}
    answer = (await page.ask(session, "/webrtc", json=body)).json()
    await connection.setRemoteDescription(RTCSessionDescription(sdp=answer["sdp"], type="answer"))
    assert (await asyncio.wait_for(heard, 3.0))["re"] == 1
    await connection.close()


# Negotiation


def without_vp8(offer):
    return {**offer, "sdp": offer["sdp"].replace("VP8/90000", "XX8/90000").replace("H264/90000", "X264/90000")}


async def test_an_offer_without_a_codec_in_common_is_refused_and_leaves_nothing(page):
    session = await page.open()
    with pytest.raises(PhysisError) as caught:
        await page.connect(session, accept=without_vp8)
    assert caught.value.code == "invalid_request"
    assert len(page.server.context.peers) == 0


async def test_a_renegotiation_is_answered_and_an_ice_restart_refused(page):
    session = await page.open()
    peer = await page.connect(session)
    await peer.connection.setLocalDescription(await peer.connection.createOffer())
    body = {"sdp": peer.connection.localDescription.sdp, "type": "offer", "peer": peer.id}
    answer = await page.ask(session, "/webrtc", method="PATCH", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["type"] == "answer"
    restart = body["sdp"].replace("a=ice-ufrag:", "a=ice-ufrag:xx")
    refused = await page.ask(session, "/webrtc", method="PATCH", json={**body, "sdp": restart})
    assert (refused.status_code, refused.json()["code"]) == (409, "invalid_state")
    unknown = await page.ask(session, "/webrtc", method="PATCH", json={**body, "peer": "0" * 32})
    assert unknown.status_code == 404
    await frames(peer, 1)


async def test_one_peer_may_be_closed_by_name(page):
    session = await page.open()
    first, _ = await page.connect(session), await page.connect(session)
    assert (await page.ask(session, f"/webrtc?peer={first.id}", method="DELETE")).status_code == 204
    assert len(page.server.context.peers) == 1
    assert (await page.ask(session, "/webrtc", method="DELETE")).status_code == 204
    assert len(page.server.context.peers) == 0
    assert (await page.ask(session, "/webrtc", method="DELETE")).status_code == 204


async def test_a_dead_turn_server_does_not_hold_the_answer_back():
    service = FakeEngineService(pace=0.2)
    dead = IceServer(("turn:127.0.0.1:9?transport=udp",), "user", "secret")
    settings = ServerSettings(timers=replace(QUICK, gather_s=0.5), ice_servers=(dead,))
    async with serving(service, settings) as server:
        page = Page(server, service)
        clock = asyncio.get_running_loop().time
        session = await page.open()
        began = clock()
        peer = await page.connect(session)
        assert clock() - began < 2.0
        await frames(peer, 2)
        assert (await page.http.get("/v1/ice_servers")).json()["ice_servers"][0]["urls"] == list(dead.urls)
        await peer.close()
        await page.http.aclose()


async def test_a_viewer_watches_what_is_encoded_once_and_holds_nothing(page):
    session = await page.open()
    owner = await page.connect(session)
    await frames(owner, 2)
    connection = RTCPeerConnection()
    connection.addTransceiver("video", direction="recvonly")
    await connection.setLocalDescription(await connection.createOffer())
    headers = {"Authorization": f"Bearer {session['token']}", "Content-Type": "application/sdp"}
    answer = await page.http.post(
        f"/whep/{session['id']}", content=connection.localDescription.sdp.encode(), headers=headers
    )
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/sdp")
    await connection.setRemoteDescription(RTCSessionDescription(sdp=answer.text, type="answer"))
    track = connection.getReceivers()[0].track
    before = page.server.context.peers.encoded_frames
    seen = [await asyncio.wait_for(track.recv(), 3.0) for _ in range(4)]
    assert len(seen) == 4
    assert page.server.context.peers.encoded_frames - before < 12
    assert page.server.context.peers.viewers == 1
    await owner.close()
    await eventually(lambda: len(page.server.context.register) == 0)
    await eventually(lambda: len(page.server.context.peers) == 0)
    gone = await page.http.delete(answer.headers["location"], headers={"Authorization": f"Bearer {session['token']}"})
    assert gone.status_code == 410
    await connection.close()


async def test_the_server_goes_down_with_a_word_to_its_peers():
    service = FakeEngineService(pace=0.2)
    async with serving(service) as server:
        page = Page(server, service)
        peer = await page.connect(await page.open())
        await frames(peer, 1)
    await peer.wait(lambda: peer.ended_reason)
    assert peer.ended_reason == "the server is going down"
    with pytest.raises((SessionEnded, Transport)):
        async for _ in peer.frames():
            pass
    assert not service.started
    await peer.close()
    await page.http.aclose()
