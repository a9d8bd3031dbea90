"""The WebSocket: hello first, every request answered, chunks only as fast as they are acknowledged, losses noticed."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from physis_client import wire
from physis_stream.core.ids import SessionId
from physis_stream.server import serve
from physis_stream.server.limits import Limits
from physis_stream.server.settings import ServerSettings
from physis_stream.server.websocket import AckWindow
from physis_stream.testing.fake_service import FakeEngineService
from physis_stream.testing.serving import QUICK, serving

from .conftest import WORLD, eventually


class Robot:
    """A client of one server, as low as the wire."""

    def __init__(self, server, service):
        self.server, self.service = server, service

    async def open(self, **fields):
        async with httpx.AsyncClient(base_url=self.server.url) as http:
            answer = await http.post("/v1/sessions", json={"model": WORLD, "seed": 1, "mode": "lockstep", **fields})
            return answer.json()

    async def state(self, session):
        async with httpx.AsyncClient(base_url=self.server.url) as http:
            headers = {"Authorization": f"Bearer {session['token']}"}
            return (await http.get(f"/v1/sessions/{session['id']}", headers=headers)).json()["state"]

    def url(self, session):
        return f"{self.server.websocket_url}/v1/sessions/{session['id']}/ws"

    @asynccontextmanager
    async def socket(self, session, *, hello=True, **options):
        headers = {"Authorization": f"Bearer {session['token']}"} | options.pop("headers", {})
        async with connect(
            self.url(session), additional_headers=headers, compression=None, proxy=None, max_size=None, **options
        ) as raw:
            socket = Socket(raw)
            if hello:
                await socket.send(type="hello", version=1)
                socket.greeting = await socket.receive()
            yield socket


class Socket:
    def __init__(self, raw):
        self.raw = raw
        self.greeting = None

    async def send(self, **message):
        await self.raw.send(wire.encode(message))

    async def receive(self, within_s=3.0):
        return wire.decode(await asyncio.wait_for(self.raw.recv(), within_s))

    async def until(self, look, within_s=3.0):
        """The first message for which `look(message)` is true."""
        async with asyncio.timeout(within_s):
            while not look(message := await self.receive(within_s)):
                pass
        return message

    async def to_the_end(self):
        """All messages until the server closes, and how it closed."""
        seen = []
        try:
            while True:
                seen.append(await self.receive())
        except ConnectionClosed as closed:
            return seen, closed

    async def ask(self, number, kind, **fields):
        await self.send(id=number, type=kind, **fields)
        return await self.until(lambda message: message.get("re") == number)


@pytest.fixture
def robot(served):
    return Robot(*served)


async def test_hello_is_answered_with_the_world_and_the_session(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        assert (socket.greeting["type"], socket.greeting["ok"]) == ("hello", True)
        assert socket.greeting["world"]["name"] == WORLD
        assert socket.greeting["session"]["id"] == session["id"]


async def test_a_lockstep_session_first_shows_its_primed_chunk_and_then_answers_steps(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        primed = await socket.until(lambda m: m.get("type") == "chunk")
        assert (primed["chunk"], primed["frames"].shape, primed["frames"].dtype) == (0, (3, 96, 96, 3), np.uint8)
        for event in (1, 2):
            answer = await socket.ask(event, "step", event=event, action=[0.5, 0.5])
            assert answer["ok"]
            assert (answer["chunk"]["chunk"], answer["chunk"]["applied"]) == (event, [event])
        with pytest.raises(TimeoutError):
            await socket.receive(within_s=0.2)


async def test_a_reset_shows_the_new_epochs_primed_chunk(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        await socket.until(lambda m: m.get("type") == "chunk")
        await socket.send(id=1, type="reset", seed=2)
        primed = await socket.until(lambda m: m.get("type") == "chunk")
        assert (primed["epoch"], primed["chunk"]) == (1, 0)


async def test_an_action_may_travel_as_an_array(robot):
    async with robot.socket(await robot.open()) as socket:
        answer = await socket.ask(1, "step", event=1, action=np.array([1.0, 0.0], np.float32))
        assert answer["chunk"]["action"] == [1.0, 0.0]


async def test_a_realtime_session_streams_at_most_four_unacknowledged_chunks_and_then_the_newest(robot):
    session = await robot.open(mode="realtime")
    async with robot.socket(session) as socket:
        arrived = [await socket.until(lambda m: m.get("type") == "chunk") for _ in range(Limits().unacked_chunks)]
        with pytest.raises(TimeoutError):
            await socket.until(lambda m: m.get("type") == "chunk", within_s=0.4)
        assert (await socket.ask(9, "ping", t=1))["t"] == 1, "requests are answered meanwhile"
        await socket.send(type="ack", frame_id=arrived[-1]["first_frame_id"])
        next_one = await socket.until(lambda m: m.get("type") == "chunk")
        assert next_one["chunk"] > arrived[-1]["chunk"] + 3, "what waited was dropped, the newest came"
    await eventually(lambda: robot.server.context.dropped_chunks > 0)


async def test_one_acknowledgement_covers_all_before_it():
    window = AckWindow(2)
    window.sent(0)
    window.sent(3)
    waiting = asyncio.create_task(window.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    window.acknowledge(3)
    await waiting
    window.acknowledge(99)
    window.sent(6)
    await window.room()


async def test_an_acknowledgement_of_the_first_frees_one_place():
    window = AckWindow(2)
    window.sent(0)
    window.sent(3)
    window.acknowledge(1)
    await asyncio.wait_for(window.room(), 1.0)


async def test_a_steadily_acknowledging_client_misses_nothing(robot):
    session = await robot.open(mode="realtime")
    async with robot.socket(session) as socket:
        indices = []
        for _ in range(12):
            chunk = await socket.until(lambda m: m.get("type") == "chunk")
            indices.append(chunk["chunk"])
            await socket.send(type="ack", frame_id=chunk["first_frame_id"])
        assert indices == list(range(indices[0], indices[0] + 12))


@pytest.mark.parametrize("frame_id", [-1, "x", None, 1.5])
async def test_a_wrong_acknowledgement_is_told_and_the_socket_lives(robot, frame_id):
    async with robot.socket(await robot.open()) as socket:
        await socket.send(type="ack", frame_id=frame_id)
        event = await socket.until(lambda m: m.get("event") == "error")
        assert event["error"]["code"] == "invalid_request"
        assert (await socket.ask(1, "ping", t=1))["ok"]


BROKEN = (
    b"",
    b"\xc1",
    b"\x93\x01",
    wire.encode({"type": "step"})[:-1],
    b"\x01",
    wire.encode({"id": 1}),
    wire.encode({"id": "1", "type": "ping"}),
    wire.encode({"id": 1, "type": 7}),
    wire.encode({"id": 1, "type": "nothing"}),
    wire.encode({"id": 1, "type": "step", "event": 1}),
    wire.encode({"id": 1, "type": "step", "event": 1, "action": [float("nan"), 0.0]}),
    wire.encode({"id": 1, "type": "step", "event": 1, "action": np.zeros((3, 3))}),
    wire.encode({"id": 1, "type": "step", "event": -1, "action": [0.0, 0.0]}),
    wire.encode({"id": 1, "type": "x", "a": {"__nd__": True, "dtype": "|O", "shape": [1], "data": b"x"}}),
    wire.encode({"id": 1, "type": "x", "a": {"__nd__": True, "dtype": "|u1", "shape": [2**40], "data": b"x"}}),
    '{"id": 1, "type": "ping"}',
)


async def test_every_broken_message_is_answered_and_moves_nothing(robot):
    session = await robot.open()
    place = robot.service.place_of(SessionId(session["id"]))
    async with robot.socket(session) as socket:
        for raw in BROKEN:
            await socket.raw.send(raw)
            answer = await socket.until(lambda m: "re" in m)
            assert answer["ok"] is False, raw
            assert answer["error"]["code"] in ("invalid_request", "invalid_action"), raw
            assert answer["error"]["request_id"]
        assert (await socket.ask(2, "ping", t=1))["ok"], "the socket lives on"
    assert robot.service.place_of(SessionId(session["id"])) == place


async def test_a_huge_message_closes_the_socket_as_too_big_and_the_server_lives(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        await socket.raw.send(b"\x00" * (Limits().websocket_message + 1))
        _, closed = await socket.to_the_end()
        assert closed.rcvd.code == 1009
    async with robot.socket(session) as socket:
        assert socket.greeting["ok"]


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ({"type": "hello", "version": 2}, "version_mismatch"),
        ({"type": "hello"}, "version_mismatch"),
        ({"id": 1, "type": "ping", "t": 1}, "invalid_request"),
        ({"type": "ack", "frame_id": 1}, "invalid_request"),
    ],
    ids=str,
)
async def test_who_does_not_greet_rightly_is_told_and_shown_out(robot, first, code):
    async with robot.socket(await robot.open(), hello=False) as socket:
        await socket.send(**first)
        answer = await socket.receive()
        assert (answer["ok"], answer["error"]["code"]) == (False, code)
        with pytest.raises(ConnectionClosed):
            await socket.receive()


async def refused(robot, session, **options):
    with pytest.raises(InvalidStatus) as caught:
        async with robot.socket(session, **options):
            pass
    response = caught.value.response
    assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)["code"]


async def status_under_host(robot, session, host):
    """The status of an upgrade that names another Host, as a rebound name would."""
    port = int(robot.server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = (
        f"GET /v1/sessions/{session['id']}/ws HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==",
        f"Authorization: Bearer {session['token']}",
    )
    writer.write("\r\n".join([*lines, "", ""]).encode())
    status = (await asyncio.wait_for(reader.readline(), 3.0)).split()[1]
    writer.close()
    return int(status)


async def test_a_refusal_before_the_upgrade_has_a_status_and_a_problem(robot):
    session = await robot.open()
    assert await refused(robot, {**session, "token": "wrong"}) == (403, "unauthorized")
    assert await refused(robot, {**session, "id": "f" * 32}) == (404, "not_found")
    assert await refused(robot, session, origin="https://evil.example") == (403, "unauthorized")
    assert await status_under_host(robot, session, "evil.example") == 403
    await robot.service.close_session(SessionId(session["id"]), "closed")
    await eventually(lambda: len(robot.server.context.register) == 0)
    assert await refused(robot, session) == (410, "session_ended")


async def test_the_token_may_stand_in_the_query_for_browsers(robot):
    session = await robot.open()
    async with connect(f"{robot.url(session)}?token={session['token']}", proxy=None) as raw:
        socket = Socket(raw)
        await socket.send(type="hello", version=1)
        assert (await socket.receive())["ok"]
    with pytest.raises(InvalidStatus):
        async with connect(robot.url(session), proxy=None):
            pass


async def test_a_session_has_only_so_many_sockets(robot):
    session = await robot.open()
    async with AsyncExitStack() as stack:
        for _ in range(Limits().sockets_per_session):
            await stack.enter_async_context(robot.socket(session))
        assert await refused(robot, session) == (503, "capacity")


async def test_too_many_requests_at_once_are_refused_and_all_are_answered(robot):
    session = await robot.open()
    robot.service.delay_s["pause"] = 0.3
    async with robot.socket(session) as socket:
        for number in range(1, 80):
            await socket.send(id=number, type="pause")
        answers = [await socket.until(lambda m: "re" in m) for _ in range(14)]
        assert {a["error"]["code"] for a in answers} == {"capacity"}
        assert len({a["re"] for a in answers}) == 14


async def test_a_flood_of_requests_is_rate_limited_with_a_time_to_wait_but_steps_are_not():
    service = FakeEngineService()
    settings = ServerSettings(timers=QUICK, limits=replace(Limits(), control_rate=0.01, control_burst=5))
    async with serving(service, settings) as server:
        robot = Robot(server, service)
        async with robot.socket(await robot.open()) as socket:
            answers = [await socket.ask(number, "ping", t=1) for number in range(1, 8)]
            refusals = [answer["error"] for answer in answers if not answer["ok"]]
            assert len(refusals) == 3, "hello counted as well"
            assert {e["code"] for e in refusals} == {"capacity"}
            assert all(e["retry_after_s"] > 0 for e in refusals)
            for event in range(1, 20):
                assert (await socket.ask(event, "step", event=event, action=[0.0, 0.0]))["ok"]


async def test_a_close_request_is_answered_then_the_end_is_told_and_the_socket_closed(robot):
    session = await robot.open()
    robot.service.delay_s["close_session"] = 0.3
    async with robot.socket(session) as socket:
        await socket.send(id=1, type="close")
        seen, closed = await socket.to_the_end()
        assert any(m.get("re") == 1 and m["ok"] for m in seen)
        assert any(m.get("event") == "ended" and m["reason"] == "closed" for m in seen)
        assert closed.rcvd.code == 1000
    assert robot.service.live_sessions() == []


async def test_a_closed_socket_frees_the_slot_after_the_grace_and_a_return_keeps_it(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        assert (await socket.ask(1, "ping", t=1))["ok"]
    await eventually(lambda: robot.server.context.sockets == 0)
    assert await robot.state(session) == "reconnecting"
    async with robot.socket(session):
        assert await robot.state(session) == "ready"
        await asyncio.sleep(QUICK.grace_s + 0.2)
        assert await robot.state(session) == "ready"
    await eventually(lambda: robot.service.live_sessions() == [])
    assert await robot.state(session) == "ended"


async def test_a_client_that_vanishes_without_a_word_is_noticed(robot):
    session = await robot.open()
    async with robot.socket(session) as socket:
        socket.raw.transport.abort()
        await eventually(lambda: robot.server.context.sockets == 0, within_s=5.0)
    await eventually(lambda: robot.service.live_sessions() == [])


async def test_a_client_that_stops_answering_pings_is_dropped_within_five_seconds():
    assert serve.PING_INTERVAL_S + serve.PING_TIMEOUT_S <= 5.0


async def test_one_clients_slow_step_does_not_keep_others_from_connecting_or_being_heard(robot):
    """openpi#717: inference blocks the loop, the second client cannot connect."""
    slow, quick = await robot.open(), await robot.open()
    robot.service.delay_s["step_many"] = 1.0
    async with robot.socket(slow) as first:
        await first.send(id=1, type="step", event=1, action=[0.0, 0.0])
        clock = asyncio.get_running_loop().time
        began = clock()
        async with robot.socket(quick) as second:
            assert (await second.ask(1, "ping", t=1))["ok"]
        assert clock() - began < 0.7
        assert (await first.until(lambda m: m.get("re") == 1))["ok"]


async def test_an_update_of_a_closed_session_does_not_bring_it_back(robot):
    """VO#5388."""
    session = await robot.open(mode="realtime")
    async with robot.socket(session) as socket:
        await robot.service.close_session(SessionId(session["id"]), "evicted")
        with suppress(ConnectionClosed):
            await socket.send(id=1, type="action", event=1, action=[0.0, 0.0])
        await socket.to_the_end()
    assert robot.service.live_sessions() == []


async def test_the_same_prompt_world_refuses_a_prompt_where_it_takes_none(robot):
    robot.service.world = replace(robot.service.world, accepts_prompt=False)
    async with robot.socket(await robot.open()) as socket:
        answer = await socket.ask(1, "prompt", event=1, text="a red square")
        assert answer["error"]["code"] == "invalid_request"
