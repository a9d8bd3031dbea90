"""Whatever a client sends, the answer is a typed refusal and nothing has moved."""

from __future__ import annotations

import json

import pytest

from physis_client import wire

from .conftest import WORLD, problem

JSON = {"Content-Type": "application/json"}
PACKED = {"Content-Type": wire.CONTENT_TYPE}


@pytest.mark.parametrize(
    "body",
    [b"{", b"\xff\xfe", b"[]", b"3", b'"text"', b"null", b"[" * 100_000, b'{"model": ' + b"9" * 5000, b"\x00"],
    ids=["cut", "not utf-8", "list", "number", "string", "null", "deep", "huge number", "zero byte"],
)
async def test_broken_json_is_400(api, body):
    answer = await api.http.post("/v1/sessions", content=body, headers=JSON)
    assert problem(answer)[1] in ("invalid_request", "too_large")
    assert answer.status_code in (400, 413)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": 3},
        {"model": None},
        {"model": WORLD, "seed": -1},
        {"model": WORLD, "seed": 1.5},
        {"model": WORLD, "seed": "1"},
        {"model": WORLD, "seed": True},
        {"model": WORLD, "seed": 2**60},
        {"model": WORLD, "mode": "fast"},
        {"model": WORLD, "mode": ["realtime"]},
        {"model": WORLD, "wait": "yes"},
        {"model": WORLD, "wait": 1},
    ],
    ids=str,
)
async def test_a_wrong_field_is_422_and_opens_nothing(api, fields):
    answer = await api.http.post("/v1/sessions", json=fields)
    assert problem(answer) == (422, "invalid_request")
    assert api.service.live_sessions() == []


async def test_nan_as_a_seed_is_refused(api):
    answer = await api.http.post("/v1/sessions", content=b'{"model": "fake-square", "seed": NaN}', headers=JSON)
    assert problem(answer) == (422, "invalid_request")


async def test_an_unknown_world_is_not_found_and_names_those_that_exist(api):
    answer = await api.http.post("/v1/sessions", json={"model": "../../etc/passwd"})
    assert problem(answer) == (404, "not_found")
    assert WORLD in answer.json()["message"]


async def test_json_where_msgpack_is_due_is_400(api):
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/step", json={"action": [0, 0]})) == (400, "invalid_request")
    assert problem(await api.http.post("/v1/step_many", json={"items": []})) == (400, "invalid_request")


async def test_another_content_type_than_json_is_400(api):
    session = await api.open()
    answer = await api.ask(session, "/reset", content=b"seed=1", headers={"Content-Type": "text/plain"})
    assert problem(answer) == (400, "invalid_request")


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x01", wire.encode({"a": 1})[:-1], b"\x01", b"\x81\x01\x02", b"\xdd\xff\xff\xff\xff"]
)
async def test_broken_msgpack_is_refused(api, body):
    session = await api.open(mode="lockstep")
    answer = await api.ask(session, "/step", content=body, headers=PACKED)
    assert problem(answer) == (422, "invalid_request")


ACTIONS = [
    None, [], [1.0], [1.0, 2.0, 3.0], [float("nan"), 0.0], [0.0, float("inf")], ["1", "2"], [True, False], "00",
    {"x": 1}, [[0.0, 0.0]], 3, [None, None], [2**80, 0],
]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS, ids=repr)
async def test_a_wrong_action_is_422_and_moves_nothing(api, action):
    session = await api.open(mode="lockstep")
    place = api.service.place_of(session["id"])
    try:
        answer = await api.step(session, {"action": action})
    except wire.WireError:
        return  # an integer of more than 64 bits does not even encode
    assert problem(answer) == (422, "invalid_action")
    assert api.service.place_of(session["id"]) == place


@pytest.mark.parametrize("event", [-1, 1.5, "1", True, 2**60, [1]], ids=repr)
async def test_a_wrong_event_number_is_refused(api, event):
    session = await api.open(mode="lockstep")
    assert problem(await api.step(session, {"event": event, "action": [0.0, 0.0]})) == (422, "invalid_request")


@pytest.mark.parametrize("items", [None, [], {}, [3], [{}], [{"session": 1, "token": "t", "action": [0, 0]}]], ids=repr)
async def test_wrong_items_of_step_many_are_refused(api, items):
    answer = await api.http.post("/v1/step_many", content=wire.encode({"items": items}), headers=PACKED)
    assert problem(answer) == (422, "invalid_request")


@pytest.mark.parametrize("count", [0, -1, 65, 1.5, "2", True], ids=repr)
async def test_a_wrong_fork_count_is_refused(api, count):
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/fork", json={"count": count})) == (422, "invalid_request")


@pytest.mark.parametrize("snapshot", [None, 3, [], {}])
async def test_a_wrong_snapshot_id_is_refused(api, snapshot):
    session = await api.open(mode="lockstep")
    assert problem(await api.ask(session, "/restore", json={"snapshot": snapshot})) == (422, "invalid_request")


UNKNOWN = {"id": "0" * 31 + "f", "token": "t" * 43}
ENDINGS = ("", "/reset", "/pause", "/resume", "/fork", "/snapshot", "/restore", "/step", "/webrtc", "/events")


@pytest.mark.parametrize("ending", ENDINGS)
async def test_an_unknown_session_is_404_everywhere(api, ending):
    method = "GET" if ending in ("", "/events") else "POST"
    assert problem(await api.ask(UNKNOWN, ending, method=method)) == (404, "not_found")


@pytest.mark.parametrize("name", ["x", "..%2f..%2fetc", "%00", "a" * 5000])
async def test_a_strange_session_id_is_404(api, name):
    answer = await api.http.get(f"/v1/sessions/{name}", headers={"Authorization": "Bearer t"})
    assert problem(answer)[0] == 404


@pytest.mark.parametrize("ending", ENDINGS)
async def test_no_token_is_401_and_a_wrong_one_403(api, ending):
    session = await api.open(mode="lockstep")
    method = "GET" if ending in ("", "/events") else "POST"
    wrong = await api.ask({**session, "token": "t" * 43}, ending, method=method)
    assert problem(wrong) == (403, "unauthorized")
    none = await api.http.request(method, f"/v1/sessions/{session['id']}{ending}")
    assert problem(none) == (401, "unauthorized")
    assert none.headers["www-authenticate"] == "Bearer"


async def test_a_wrong_token_cannot_end_a_session(api):
    session = await api.open()
    assert problem(await api.ask({**session, "token": "x"}, method="DELETE")) == (403, "unauthorized")
    assert api.service.live_sessions() == [session["id"]]


async def test_the_token_of_another_session_does_not_open_this_one(api):
    a, b = await api.open(), await api.open()
    assert problem(await api.ask({**a, "token": b["token"]}, "/reset")) == (403, "unauthorized")


@pytest.mark.parametrize("sdp", ["", "v=0", "nonsense", "v=0\r\nm=video 9 X 0\r\n", "v=0\n" + "a=x\n" * 100, None, 3])
async def test_a_broken_offer_is_refused_and_leaves_no_peer(api, sdp):
    session = await api.open()
    answer = await api.ask(session, "/webrtc", json={"sdp": sdp, "type": "offer"})
    status, code = problem(answer)
    assert code == "invalid_request"
    assert status in (400, 422)
    assert len(api.server.peers) == 0


@pytest.mark.parametrize("kind", ["answer", "", None, 3])
async def test_only_an_offer_is_answered(api, kind):
    session = await api.open()
    assert problem(await api.ask(session, "/webrtc", json={"sdp": "v=0", "type": kind})) == (422, "invalid_request")


async def test_a_problem_body_is_whole_json_even_for_odd_input(api):
    answer = await api.http.post("/v1/sessions", json={"model": '"\n</script>\u0000'})
    assert json.loads(answer.text)["code"] == "not_found"
