"""The HTTP routes: each call of docs/protocol.md does what its row says, and an ended session stays ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from physis_client import wire
from physis_client.chunks import chunk_from_message
from physis_stream.server.settings import ServerSettings
from physis_stream.testing.fake_service import FakeEngineService, start_of
from physis_stream.testing.serving import QUICK

from .conftest import WORLD, eventually, problem

SESSION_FIELDS = {"id", "model", "mode", "state", "epoch", "chunks", "queue_position", "seed", "ended_reason"}


async def test_models_lists_the_worlds_with_all_that_a_page_needs(api):
    answer = await api.http.get("/v1/models")
    (world,) = answer.json()["models"]
    assert answer.status_code == 200
    assert set(world) == {
        "name", "title", "description", "family", "height", "width", "fps", "chunk_frames", "action", "discipline",
        "num_steps", "state_names", "state_units", "accepts_prompt", "accepts_image",
    }  # fmt: skip
    assert set(world["action"]) == {"dim", "low", "high", "names", "initial", "combine"}


async def test_opening_answers_201_with_a_session_and_its_only_token(api):
    answer = await api.http.post("/v1/sessions", json={"model": WORLD, "seed": 7, "mode": "lockstep"})
    body = answer.json()
    assert answer.status_code == 201
    assert answer.headers["location"] == f"/v1/sessions/{body['id']}"
    assert set(body) == SESSION_FIELDS | {"token"}
    assert (body["model"], body["mode"], body["state"], body["seed"]) == (WORLD, "lockstep", "ready", 7)
    assert len(body["token"]) >= 22, "at least 128 random bits in base64"
    again = (await api.ask(body, method="GET")).json()
    assert set(again) == SESSION_FIELDS


async def test_a_session_without_a_mode_is_realtime_and_without_a_seed_gets_one(api):
    body = (await api.http.post("/v1/sessions", json={"model": WORLD})).json()
    assert body["mode"] == "realtime"
    assert body["state"] == "streaming"
    assert body["seed"] >= 0


async def test_a_full_engine_queues_with_202_and_a_position(make_api):
    api = await make_api(service=FakeEngineService(max_sessions=1, pace=0.1))
    first = await api.open()
    second = await api.http.post("/v1/sessions", json={"model": WORLD})
    third = await api.http.post("/v1/sessions", json={"model": WORLD})
    assert (second.status_code, second.json()["queue_position"], second.json()["state"]) == (202, 1, "queued")
    assert third.json()["queue_position"] == 2
    await api.ask(first, method="DELETE")
    assert (await api.ask(second.json(), method="GET")).json()["state"] == "streaming"
    assert (await api.ask(third.json(), method="GET")).json()["queue_position"] == 1


async def test_a_full_engine_refuses_who_does_not_wait_and_says_when_to_come_back(make_api):
    api = await make_api(service=FakeEngineService(max_sessions=1, pace=0.1))
    await api.open()
    answer = await api.http.post("/v1/sessions", json={"model": WORLD, "wait": False})
    assert problem(answer) == (503, "capacity")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.json()["retry_after_s"] > 0


async def test_delete_frees_the_slot_at_once_and_answers_204_twice(api):
    session = await api.open()
    assert (await api.ask(session, method="DELETE")).status_code == 204
    assert api.service.live_sessions() == []
    assert (await api.ask(session, method="DELETE")).status_code == 204


async def test_an_ended_session_tells_why_and_refuses_the_rest(api):
    session = await api.open()
    await api.ask(session, method="DELETE")
    told = (await api.ask(session, method="GET")).json()
    assert (told["state"], told["ended_reason"]) == ("ended", "closed")
    for ending in ("/reset", "/pause", "/resume", "/fork", "/snapshot"):
        assert problem(await api.ask(session, ending)) == (410, "session_ended")
    assert api.service.live_sessions() == [], "no call brings it back to life"


async def test_reset_begins_a_new_epoch_from_the_seed(api):
    session = await api.open(mode="lockstep")
    answer = (await api.ask(session, "/reset", json={"seed": 5})).json()
    assert (answer["epoch"], answer["seed"]) == (1, 5)
    assert api.service.place_of(session["id"]) == start_of(5)
    again = (await api.ask(session, "/reset")).json()
    assert (again["epoch"], again["seed"]) == (2, 5), "without a seed from the last one"


async def test_pause_and_resume_move_a_realtime_session(api):
    session = await api.open()
    assert (await api.ask(session, "/pause")).json()["state"] == "paused"
    assert (await api.ask(session, "/resume")).json()["state"] == "streaming"


async def test_pause_of_a_lockstep_session_is_refused_by_state(api):
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/pause")) == (409, "invalid_state")


async def test_fork_gives_children_with_tokens_of_their_own(api):
    session = await api.open(mode="lockstep")
    answer = await api.ask(session, "/fork", json={"count": 3})
    children = answer.json()["sessions"]
    assert answer.status_code == 201
    assert len({child["token"] for child in [session, *children]}) == 4
    other = {**children[0], "token": children[1]["token"]}
    assert problem(await api.ask(other, method="GET")) == (403, "unauthorized")
    assert (await api.ask(children[0], method="GET")).status_code == 200


async def test_fork_without_a_body_makes_one(api):
    session = await api.open(mode="lockstep")
    assert len((await api.ask(session, "/fork")).json()["sessions"]) == 1


async def test_a_fork_does_not_mix_with_its_parent(api):
    parent = await api.open(mode="lockstep")
    (child,) = (await api.ask(parent, "/fork")).json()["sessions"]
    await api.step(parent, {"action": [1.0, 1.0]})
    await api.step(child, {"action": [-1.0, -1.0]})
    up, down = api.service.place_of(parent["id"]), api.service.place_of(child["id"])
    assert up[0] > down[0]
    assert up[1] > down[1]


async def test_snapshot_and_restore_bring_the_world_back(api):
    session = await api.open(mode="lockstep")
    before = api.service.place_of(session["id"])
    mark = (await api.ask(session, "/snapshot")).json()["snapshot"]
    await api.step(session, {"action": [1.0, 1.0]})
    assert api.service.place_of(session["id"]) != before
    restored = (await api.ask(session, "/restore", json={"snapshot": mark})).json()
    assert restored["epoch"] == 1
    assert api.service.place_of(session["id"]) == before


async def test_restore_of_an_unknown_snapshot_is_not_found(api):
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/restore", json={"snapshot": "f" * 32})) == (404, "not_found")


async def test_a_step_brings_one_chunk_in_msgpack(api):
    session = await api.open(mode="lockstep")
    answer = await api.step(session, {"event": 9, "action": [0.5, 0.5]})
    assert answer.headers["content-type"] == wire.CONTENT_TYPE
    chunk = chunk_from_message(wire.decode(answer.content)["chunk"])
    assert chunk.frames.shape == (3, 96, 96, 3)
    assert chunk.applied == (9,)
    assert chunk.action == (0.5, 0.5)
    assert set(chunk.state) == {"x", "y"}


async def test_a_retried_step_brings_the_same_chunk_and_moves_nothing(api):
    session = await api.open(mode="lockstep")
    first = (await api.step(session, {"event": 1, "action": [1.0, 1.0]})).content
    place = api.service.place_of(session["id"])
    assert (await api.step(session, {"event": 1, "action": [1.0, 1.0]})).content == first
    assert api.service.place_of(session["id"]) == place


async def test_steps_without_event_numbers_count_by_themselves(api):
    session = await api.open(mode="lockstep")
    chunks = [wire.decode((await api.step(session, {"action": [0.0, 0.0]})).content)["chunk"] for _ in range(3)]
    assert [chunk["chunk"] for chunk in chunks] == [1, 2, 3]
    assert [chunk["applied"] for chunk in chunks] == [[1], [2], [3]]


async def test_a_step_of_a_realtime_session_is_refused_by_state(api):
    session = await api.open()
    assert problem(await api.step(session, {"action": [0.0, 0.0]})) == (409, "invalid_state")


async def step_many(api, items):
    body = wire.encode({"items": items})
    return await api.http.post("/v1/step_many", content=body, headers={"Content-Type": wire.CONTENT_TYPE})


def item(session, action):
    return {"session": session["id"], "token": session["token"], "action": action}


async def test_step_many_steps_all_in_order_with_one_engine_call(api):
    a, b = await api.open(mode="lockstep", seed=1), await api.open(mode="lockstep", seed=2)
    api.service.calls.clear()
    answer = await step_many(api, [item(b, [1.0, 1.0]), item(a, [-1.0, -1.0])])
    first, second = wire.decode(answer.content)["chunks"]
    assert api.service.calls.count("step_many") == 1
    assert (first["action"], second["action"]) == ([1.0, 1.0], [-1.0, -1.0])


@pytest.mark.parametrize(
    "bad", [[float("nan"), 0.0], [1.0], ["a", "b"], np.zeros((2, 2)), None, [[1.0, 2.0]], [True, False], {"x": 1}]
)
async def test_one_bad_action_moves_no_session(api, bad):
    a, b = await api.open(mode="lockstep"), await api.open(mode="lockstep")
    before = [api.service.place_of(s["id"]) for s in (a, b)]
    answer = await step_many(api, [item(a, [1.0, 1.0]), item(b, bad)])
    assert problem(answer) == (422, "invalid_action")
    assert [api.service.place_of(s["id"]) for s in (a, b)] == before


async def test_a_session_may_stand_only_once_in_step_many(api):
    a = await api.open(mode="lockstep")
    assert problem(await step_many(api, [item(a, [0.0, 0.0])] * 2)) == (422, "invalid_action")


async def test_step_many_wants_each_sessions_own_token(api):
    a, b = await api.open(mode="lockstep"), await api.open(mode="lockstep")
    answer = await step_many(api, [item(a, [0.0, 0.0]), {**item(b, [0.0, 0.0]), "token": a["token"]}])
    assert problem(answer) == (403, "unauthorized")


async def test_an_image_starts_a_session_only_as_bytes_of_the_worlds_size(api):
    async def open_with(image):
        body = wire.encode({"model": WORLD, "image": image})
        return await api.http.post("/v1/sessions", content=body, headers={"Content-Type": wire.CONTENT_TYPE})

    assert (await open_with(np.zeros((96, 96, 3), np.uint8))).status_code == 201
    assert problem(await open_with(np.zeros((95, 96, 3), np.uint8))) == (422, "invalid_request")
    assert problem(await open_with(np.zeros((96, 96, 3), np.float32))) == (422, "invalid_request")
    as_json = await api.http.post("/v1/sessions", json={"model": WORLD, "image": [[[0, 0, 0]]]})
    assert problem(as_json) == (422, "invalid_request")


async def test_ice_servers_are_none_by_default(api):
    assert (await api.http.get("/v1/ice_servers")).json() == {"ice_servers": []}


async def test_stats_are_the_engines_facts_and_the_peers(api):
    await api.open()
    stats = (await api.http.get("/v1/stats")).json()
    assert (stats["sessions"], stats["peers"], stats["alive"]) == (1, 0, True)


async def test_ready_while_room_and_503_with_the_reason_when_full(make_api):
    api = await make_api(service=FakeEngineService(max_sessions=1, pace=0.1))
    assert (await api.http.get("/readyz")).status_code == 200
    await api.open()
    answer = await api.http.get("/readyz")
    assert answer.status_code == 503
    assert "no room" in answer.json()["reason"]


async def test_liveness_and_readiness_fail_when_the_engines_loop_is_dead(api):
    assert (await api.http.get("/healthz")).json() == {"alive": True}
    api.service.crash()
    health, ready = await api.http.get("/healthz"), await api.http.get("/readyz")
    assert (health.status_code, ready.status_code) == (503, 503)
    assert "dead" in ready.json()["reason"]


async def test_a_server_that_goes_down_takes_no_new_session_and_is_not_ready(api):
    session = await api.open()
    await api.server.drain()
    await api.server.drain()
    assert (await api.ask(session, method="GET")).json()["ended_reason"] == "the server is going down"
    assert problem(await api.http.post("/v1/sessions", json={"model": WORLD})) == (503, "engine_down")
    assert (await api.http.get("/readyz")).status_code == 503


async def test_chunks_too_big_to_pack_on_the_loop_arrive_the_same(make_api):
    api = await make_api(service=FakeEngineService(height=480, width=640, chunk_frames=2))
    session = await api.open(mode="lockstep")
    answer = await api.step(session, {"action": [0.0, 0.0]})
    assert chunk_from_message(wire.decode(answer.content)["chunk"]).frames.shape == (2, 480, 640, 3)


async def test_an_open_that_the_engine_finishes_too_late_leaves_no_session_behind(make_api):
    api = await make_api(settings=ServerSettings(timers=replace(QUICK, call_s=0.05)))
    api.service.delay_s["open_session"] = 0.15
    assert problem(await api.http.post("/v1/sessions", json={"model": WORLD})) == (504, "timeout")
    await eventually(lambda: "close_session" in api.service.calls)
    assert api.service.live_sessions() == []
