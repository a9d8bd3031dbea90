"""Puts the server together: `create_app(service, settings)` returns the ASGI app that serves one engine."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from physis_client.errors import PhysisError
from physis_stream.core.errors import EngineError
from physis_stream.runtime.service import EngineService
from physis_stream.server import openapi, static_files
from physis_stream.server.auth import Authority, Gate
from physis_stream.server.context import ServerContext
from physis_stream.server.engine_watch import EngineWatch
from physis_stream.server.events import EventStreams
from physis_stream.server.http import Routes
from physis_stream.server.limits import TokenBucket
from physis_stream.server.metrics import Metrics
from physis_stream.server.peers import Peers
from physis_stream.server.problems import answer_with_problem, problem_response
from physis_stream.server.sessions import SessionRegister
from physis_stream.server.settings import ServerSettings
from physis_stream.server.websocket import Sockets

log = logging.getLogger("physis_stream.server")


async def answer_http_exception(request: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405 in this server's words."""
    assert isinstance(error, HTTPException)
    code = "not_found" if error.status_code == 404 else "invalid_request"
    problem = PhysisError(str(error.detail), code=code)
    problem.status = error.status_code  # type: ignore[attr-defined]
    return problem_response(problem)


async def sweep_for_ever(register: SessionRegister) -> None:
    """End sessions that nobody holds."""
    while True:
        await asyncio.sleep(register.timers.sweep_s)
        try:
            await register.sweep(register.now())
        except Exception:
            log.exception("sweeping the sessions failed")


def create_app(
    service: EngineService,
    settings: ServerSettings,
    *,
    wall_clock: Callable[[], float] = time.time,
    playground: Path | None = None,
    client: Path | None = None,
) -> Starlette:
    """Return the app of one server over one engine. Its lifespan starts the engine and stops it again.

    `playground` and `client` are the folders of the pages; by default those that ship.
    """
    register = SessionRegister(service, settings.limits, settings.timers)
    watch = EngineWatch(register)
    server = ServerContext(
        service=service,
        settings=settings,
        register=register,
        watch=watch,
        peers=Peers(register, settings, watch),
        authority=Authority(settings, wall_clock),
        opens=TokenBucket(settings.limits.open_rate, settings.limits.open_burst),
    )
    playground = playground or static_files.asset_folder("playground", "demos/playground")
    client = client or static_files.asset_folder("web", "clients/web")
    app = Starlette(
        routes=[
            *Routes(server).table(),
            Route("/v1/sessions/{id}/events", EventStreams(server).answer, methods=["GET"]),
            WebSocketRoute("/v1/sessions/{id}/ws", Sockets(server).answer),
            Route("/metrics", Metrics(server).answer, methods=["GET"]),
            *openapi.routes(),
            *static_files.routes(playground, client),
        ],
        middleware=[Middleware(Gate, settings=settings)],
        exception_handlers={
            HTTPException: answer_http_exception,
            PhysisError: answer_with_problem,
            EngineError: answer_with_problem,
            TimeoutError: answer_with_problem,
            Exception: answer_with_problem,
        },
        lifespan=lambda _: _life(server),
    )
    app.state.server = server
    return app


@asynccontextmanager
async def _life(server: ServerContext) -> AsyncIterator[None]:
    await server.service.start()
    await server.watch.look()
    tasks = [asyncio.create_task(sweep_for_ever(server.register)), asyncio.create_task(server.watch.run())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await server.drain()
        await server.service.stop()
