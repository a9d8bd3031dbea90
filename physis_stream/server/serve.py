"""Runs the server with uvicorn until it is told to stop; then closes peers, ends sessions and stops the engine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

import uvicorn

from physis_stream.runtime.service import EngineService
from physis_stream.server.app import create_app
from physis_stream.server.settings import ConfigurationError, ServerSettings

PING_INTERVAL_S = 1.5
PING_TIMEOUT_S = 3.0
NOT_STARTED = "the engine did not start; the log above says why"


class StartFailed(RuntimeError):
    """The engine behind the server did not start."""


def not_a_refused_upgrade(record: logging.LogRecord) -> bool:
    """Drop the error that uvicorn logs after an upgrade that was refused with a whole response."""
    return record.getMessage() != "ASGI callable returned without completing handshake."


def uvicorn_config(service: EngineService, settings: ServerSettings) -> uvicorn.Config:
    """Return uvicorn's configuration: pings that notice a vanished socket within 5 s, no compression of pixels."""
    logging.getLogger("uvicorn.error").addFilter(not_a_refused_upgrade)
    return uvicorn.Config(
        create_app(service, settings),
        host=settings.host,
        port=settings.port,
        log_level="warning",
        lifespan="on",
        ws_max_size=settings.limits.websocket_message,
        ws_max_queue=32,
        ws_ping_interval=PING_INTERVAL_S,
        ws_ping_timeout=PING_TIMEOUT_S,
        ws_per_message_deflate=False,
        h11_max_incomplete_event_size=64 << 10,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=round(settings.timers.drain_s) + 2,
        server_header=False,
        date_header=False,
        access_log=False,
    )


def bind(settings: ServerSettings) -> socket.socket:
    """Return a bound socket; ConfigurationError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise ConfigurationError(f"cannot bind {settings.host}:{settings.port}: {error.strerror}") from error
    return listening


def url_of(settings: ServerSettings, port: int) -> str:
    """The URL to open on this machine."""
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class OrderlyServer(uvicorn.Server):
    """Says when it serves: the engine has started and the socket listens. Ends sessions before it ends connections."""

    def __init__(self, config: uvicorn.Config, announce: Callable[[], None] = lambda: None) -> None:
        super().__init__(config)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        except SystemExit as stopped:
            raise StartFailed(NOT_STARTED) from stopped
        if self.started:
            self._announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Streams and sockets end with their sessions; what then still stands waits for uvicorn's grace."""
        app: Any = self.config.app
        await app.state.server.drain()
        await super().shutdown(sockets=sockets)


def run(service: EngineService, settings: ServerSettings, *, announce: Callable[[str], None] = print) -> None:
    """Serve until SIGINT or SIGTERM; `announce` is told the URL once it answers.

    Raises ConfigurationError if the port cannot be bound, StartFailed if the engine did not start.
    """
    listening = bind(settings)
    told = f"physis_stream serves at {url_of(settings, listening.getsockname()[1])}"
    server = OrderlyServer(uvicorn_config(service, settings), lambda: announce(told))
    try:
        server.run(sockets=[listening])
    finally:
        listening.close()
    if not server.started:
        raise StartFailed(NOT_STARTED)
