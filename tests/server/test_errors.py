"""Every row of the error table: the code, its status, its family, and that nothing of the inside leaks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from physis_client import errors as client_errors
from physis_client.errors import FAMILIES, PhysisError, from_object
from physis_stream.core import errors as core_errors
from physis_stream.server.json_text import to_json
from physis_stream.server.limits import Limits
from physis_stream.server.problems import STATUS, InvalidRequest, error_object, problem_response
from physis_stream.server.settings import ServerSettings, Timers

from .conftest import WORLD, problem

ENGINE = {
    "invalid_action": (core_errors.InvalidAction, 422),
    "invalid_state": (core_errors.InvalidState, 409),
    "not_found": (core_errors.NotFound, 404),
    "capacity": (core_errors.Capacity, 503),
    "too_large": (core_errors.TooLarge, 413),
    "session_ended": (core_errors.SessionEnded, 410),
    "engine_down": (core_errors.EngineDown, 503),
}


def every_engine_error():
    found = [core_errors.EngineError]
    for one in found:
        found.extend(one.__subclasses__())
    return [e for e in dict.fromkeys(found) if e.__module__.startswith("physis_stream.")]


@pytest.mark.parametrize("code", sorted(ENGINE))
async def test_a_refusal_of_the_engine_reaches_the_client_under_its_status(api, code):
    family, status = ENGINE[code]
    session = await api.open()
    api.service.refuse_next["reset"] = family("because")
    answer = await api.ask(session, "/reset")
    assert problem(answer) == (status, code)
    assert answer.json()["message"] == "because"
    assert isinstance(from_object(answer.json()), FAMILIES[code])


async def test_too_many_requests_are_429_and_say_when_to_come_back(make_api):
    api = await make_api(settings=ServerSettings(limits=replace(Limits(), open_burst=1, open_rate=0.1)))
    await api.open()
    answer = await api.http.post("/v1/sessions", json={"model": WORLD})
    assert problem(answer) == (429, "capacity")
    assert 1 <= int(answer.headers["retry-after"]) <= 11


async def test_an_engine_that_does_not_answer_is_504(make_api):
    api = await make_api(settings=ServerSettings(timers=replace(Timers(), call_s=0.05)))
    session = await api.open()
    api.service.delay_s["pause"] = 10.0
    assert problem(await api.ask(session, "/pause")) == (504, "timeout")


async def test_an_unforeseen_failure_is_500_without_its_text(api, caplog):
    session = await api.open()
    api.service.refuse_next["pause"] = ZeroDivisionError("secret path /etc/shadow")
    answer = await api.ask(session, "/pause")
    assert problem(answer) == (500, "internal")
    assert "secret" not in answer.text
    assert answer.json()["request_id"] in caplog.text, "the log finds it by the request id"
    assert "secret" in caplog.text


async def test_a_dead_engine_refuses_as_engine_down(api):
    session = await api.open()
    api.service.crash()
    assert problem(await api.ask(session, "/reset")) == (503, "engine_down")
    assert isinstance(from_object((await api.ask(session, "/reset")).json()), client_errors.Transport)


@pytest.mark.parametrize(("path", "method", "status"), [("/v1/nothing", "GET", 404), ("/v1/models", "PUT", 405)])
async def test_what_is_not_there_answers_with_a_problem_too(api, path, method, status):
    answer = await api.http.request(method, path)
    assert problem(answer)[0] == status


def test_every_code_of_the_engine_has_a_status_and_a_family():
    for family in every_engine_error():
        assert family.code in STATUS
        assert family.code in FAMILIES


def test_every_family_of_the_client_has_a_status_but_the_clients_own():
    assert set(FAMILIES) - set(STATUS) == {"transport"}


def test_an_engine_error_keeps_all_its_facts():
    body = error_object(core_errors.Capacity("full", retry_after_s=3.5), "id")
    assert body == {
        "code": "capacity",
        "message": "full",
        "recoverable": True,
        "retry_after_s": 3.5,
        "request_id": "id",
    }
    assert error_object(core_errors.SessionEnded("over"), "id")["recoverable"] is False


def test_retry_after_is_whole_seconds_and_never_less_than_the_wait():
    answer = problem_response(core_errors.Capacity("full", retry_after_s=2.1))
    assert answer.headers["retry-after"] == "3"


def test_a_body_that_does_not_parse_is_400_and_one_that_is_wrong_422():
    assert problem_response(InvalidRequest("x", status=400)).status_code == 400
    assert problem_response(InvalidRequest("x")).status_code == 422


def test_an_error_object_comes_back_as_the_family_that_users_catch():
    for code, family in FAMILIES.items():
        error = from_object({"code": code, "message": "m", "recoverable": False, "retry_after_s": 1, "request_id": "r"})
        assert type(error) is family
        assert (error.code, error.message, error.recoverable) == (code, "m", False)
        assert (error.retry_after_s, error.request_id) == (1.0, "r")


@pytest.mark.parametrize("body", [None, [], "text", {}, {"code": 3}, {"code": "", "retry_after_s": "soon"}])
def test_a_malformed_error_object_is_an_internal_error(body):
    error = from_object(body)
    assert type(error) is PhysisError
    assert error.code == "internal"
    assert error.retry_after_s is None


def test_an_unknown_code_keeps_its_name():
    assert from_object({"code": "from_the_future", "message": "m"}).code == "from_the_future"


def test_what_json_does_not_know_does_not_break_an_answer():
    assert to_json({"a": float("nan"), "b": [float("inf"), 1.5], "c": object}) == (
        '{"a":null,"b":[null,1.5],"c":"<class \'object\'>"}'
    )
