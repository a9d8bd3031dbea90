"""What browsers fetch: the playground, the client module, the API page; metrics; nothing outside of the folders."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from starlette.routing import Route, WebSocketRoute

from physis_stream.server import openapi
from physis_stream.server.app import create_app
from physis_stream.server.settings import ServerSettings
from physis_stream.server.static_files import PACKAGE, POLICY, TYPES, asset_folder
from physis_stream.testing.fake_service import FakeEngineService

from .conftest import eventually, problem

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def pages(make_api, tmp_path):
    playground, client = tmp_path / "playground", tmp_path / "web"
    playground.mkdir()
    client.mkdir()
    (playground / "index.html").write_text("<!doctype html><title>world</title>")
    (playground / "fonts").mkdir()
    (playground / "fonts" / "a.woff2").write_bytes(b"font")
    (playground / ".secret.js").write_text("hidden")
    (playground / "notes.py").write_text("code")
    (client / "physis.js").write_text("export {}")
    (tmp_path / "outside.js").write_text("outside")
    (client / "link.js").symlink_to(tmp_path / "outside.js")
    return await make_api(playground=playground, client=client)


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/index.html", "text/html"), ("/client/physis.js", "text/javascript"),
     ("/fonts/a.woff2", "font/woff2")],
)  # fmt: skip
async def test_a_page_has_its_type_its_policy_and_is_asked_for_again(pages, path, kind):
    answer = await pages.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith(kind)
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-security-policy"] == POLICY
    again = await pages.http.get(path, headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code in (200, 304)


@pytest.mark.parametrize(
    "path",
    ["/client/../outside.js", "/client/%2e%2e/outside.js", "/..%2foutside.js", "/client/link.js", "/.secret.js",
     "/notes.py", "/fonts", "/client/", "/absent.js", "/%00", "//etc/passwd", "/client//etc/passwd"],
)  # fmt: skip
async def test_nothing_else_is_served(pages, path):
    answer = await pages.http.get(path)
    assert problem(answer) == (404, "not_found")
    assert "outside" not in answer.text.replace("outside.js", "")


def test_the_policy_allows_no_foreign_script_and_no_frame():
    assert "script-src 'self';" in POLICY
    assert "unsafe-eval" not in POLICY
    assert "http:" not in POLICY
    assert "object-src 'none'" in POLICY


def test_assets_come_from_the_package_or_the_source_tree():
    assert asset_folder("web", "clients/web") in (PACKAGE / "_assets" / "web", ROOT / "clients" / "web")


@pytest.mark.parametrize(("installed", "source"), [("web", "clients/web"), ("playground", "demos/playground")])
def test_every_file_that_ships_has_a_type(installed, source):
    files = [path for path in (ROOT / source).rglob("*") if path.is_file()]
    assert files
    assert {path.suffix for path in files} <= set(TYPES)


async def test_the_api_page_needs_no_script_and_no_other_server(api):
    page = await api.http.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "<script" not in page.text
    assert not re.search(r"(src|href)=\"(https?:)?//", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_the_document_names_every_route_and_no_other(api):
    document = (await api.http.get("/openapi.json")).json()
    told = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    app = create_app(FakeEngineService(), ServerSettings())
    there = set()
    for route in app.routes:
        if isinstance(route, WebSocketRoute):
            there.add(("GET", route.path))
        elif isinstance(route, Route) and ":path}" not in route.path and route.path != "/":
            there |= {(method, route.path) for method in route.methods - {"HEAD"}}
    assert told == there - {("GET", "/docs"), ("GET", "/openapi.json")}


def test_the_document_is_sound():
    document = openapi.document()
    text = str(document)
    for name in re.findall(r"#/components/schemas/(\w+)", text):
        assert name in document["components"]["schemas"]
    for item in document["paths"].values():
        for operation in item.values():
            assert operation["responses"]
            assert "default" in operation["responses"]


# Metrics


async def test_metrics_are_prometheus_text_with_every_fact_of_the_engine(api):
    await api.open()
    answer = await api.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            assert re.fullmatch(r"[a-z_0-9]+ -?[0-9.e+-]+", line), line
            name, value = line.split()
            assert name not in values
            values[name] = float(value)
    assert values["physis_engine_sessions"] == 1
    assert values["physis_engine_alive"] == 1
    assert values["physis_server_sessions"] == 1
    assert values["physis_engine_ticks_total"] >= 1
    assert answer.text.count("# HELP") == answer.text.count("# TYPE") == len(values)


async def test_metrics_answer_when_the_engine_does_not(api):
    async def refuse():
        raise TimeoutError

    api.service.stats = refuse
    answer = await api.http.get("/metrics")
    assert answer.status_code == 200
    assert "physis_engine_alive 0" in answer.text


# Server-sent events


async def read_events(api, session, count):
    """The first `count` events of a session, as (name, data)."""
    headers = {"Authorization": f"Bearer {session['token']}"}
    found = []
    async with api.http.stream("GET", f"/v1/sessions/{session['id']}/events", headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            if line.startswith("data: "):
                found.append((name, json.loads(line[6:])))
                if len(found) == count:
                    break
    return found


async def test_an_ended_session_ends_its_event_stream(api):
    session = await api.open(mode="lockstep")
    reading = asyncio.create_task(read_events(api, session, 99))
    await eventually(lambda: api.server.register._live[session["id"]].feed._listeners)
    await api.ask(session, "/reset", json={"seed": 2})
    api.service.fail_session(session["id"], "the model failed")
    await asyncio.sleep(0)
    await api.ask(session, method="DELETE")
    events = await reading
    assert events[0] == ("status", {"state": "ready", "epoch": 0, "event": "status"})
    assert ("status", {"state": "ready", "epoch": 1, "event": "status"}) in events
    errors = [data["error"] for name, data in events if name == "error"]
    assert errors[0]["message"] == "the model failed"
    assert events[-1] == ("ended", {"reason": "closed", "event": "ended"})


async def test_an_event_stream_wants_the_sessions_token_also_in_the_query(api):
    session = await api.open(mode="lockstep")
    assert problem(await api.http.get(f"/v1/sessions/{session['id']}/events")) == (401, "unauthorized")
    assert problem(await api.http.get(f"/v1/sessions/{session['id']}/events?token=x")) == (403, "unauthorized")
    await api.ask(session, method="DELETE")
    answer = await api.http.get(f"/v1/sessions/{session['id']}/events?token={session['token']}")
    assert problem(answer) == (410, "session_ended")
