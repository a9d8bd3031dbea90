"""A server over the fake engine for each test, without a socket where none is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from physis_client import wire
from physis_stream.server.app import create_app
from physis_stream.server.settings import ServerSettings
from physis_stream.testing.fake_service import FakeEngineService
from physis_stream.testing.serving import QUICK, Serving, serving

WORLD = "fake-square"


@dataclass
class Api:
    """An HTTP client of one app, with the words of the protocol."""

    http: httpx.AsyncClient
    service: FakeEngineService
    server: Any

    async def open(self, **fields: Any) -> dict[str, Any]:
        answer = await self.http.post("/v1/sessions", json={"model": WORLD, "seed": 1, **fields})
        assert answer.status_code in (201, 202), answer.text
        return answer.json()

    async def ask(self, session: dict[str, Any], ending: str = "", method: str = "POST", **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {session['token']}", **more.pop("headers", {})}
        return await self.http.request(method, f"/v1/sessions/{session['id']}{ending}", headers=headers, **more)

    async def step(self, session: dict[str, Any], body: dict[str, Any]) -> httpx.Response:
        return await self.ask(session, "/step", content=wire.encode(body), headers={"Content-Type": wire.CONTENT_TYPE})


def problem(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, after checking that it is a whole problem+json body."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    wanted = {"type", "title", "status", "detail", "code", "message", "recoverable", "retry_after_s", "request_id"}
    assert set(body) == wanted
    assert body["status"] == answer.status_code
    assert "Traceback" not in answer.text
    return answer.status_code, body["code"]


async def eventually(fact: Callable[[], Any], within_s: float = 3.0) -> Any:
    """Wait until `fact()` is true and return it; fail if that takes longer."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + within_s
    while not (found := fact()):
        assert clock() < deadline, "it never became true"
        await asyncio.sleep(0.01)
    return found


ApiMaker = Callable[..., Any]


@pytest.fixture
async def make_api() -> AsyncIterator[ApiMaker]:
    """Return a maker of apps: `await make_api(settings=..., service=...)`; all end with the test."""
    async with AsyncExitStack() as stack:

        async def make(
            settings: ServerSettings | None = None, service: FakeEngineService | None = None, **more: Any
        ) -> Api:
            service = service or FakeEngineService(pace=0.1)
            app = create_app(service, settings or ServerSettings(timers=QUICK), **more)
            await stack.enter_async_context(app.router.lifespan_context(app))
            transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
            http = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", timeout=5.0)
            await stack.enter_async_context(http)
            return Api(http, service, app.state.server)

        yield make


@pytest.fixture
async def api(make_api: ApiMaker) -> Api:
    return await make_api()


@pytest.fixture
async def served() -> AsyncIterator[tuple[Serving, FakeEngineService]]:
    """A server on a real socket with shortened timers, and its engine."""
    service = FakeEngineService(pace=0.2)
    async with serving(service) as server:
        yield server, service


@pytest.fixture
async def page(served):
    """A page of that server; its peers are closed with the test."""
    from .page import Page

    made = Page(*served)
    yield made
    await asyncio.gather(*(peer.close() for peer in made.peers))
    await made.http.aclose()
