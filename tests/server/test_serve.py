"""The server as a process: it says where it is, holds its limits on the socket, and goes down in order."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import httpx
import pytest

from physis_client import Client
from physis_stream.server.serve import StartFailed, bind, run, url_of, uvicorn_config
from physis_stream.server.settings import ConfigurationError, ServerSettings
from physis_stream.testing.fake_service import FakeEngineService
from physis_stream.testing.serving import serving

from .conftest import WORLD, eventually


@pytest.fixture
def process():
    """`python -m physis_stream.testing.fake_server` on a free port: (process, url)."""
    command = [sys.executable, "-m", "physis_stream.testing.fake_server", "--port", "0"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = running.stdout.readline()
    yield running, re.search(r"http://\S+", line).group()
    if running.poll() is None:
        running.kill()
    running.communicate()


def test_it_prints_its_url_serves_and_leaves_in_order_on_a_signal(process):
    running, url = process
    with Client(url) as client:
        session = client.open_session(WORLD, mode="realtime")
        session.observe()
        running.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert running.wait(timeout=8.0) in (0, -signal.SIGTERM)
        assert time.monotonic() - began < 6.0
    errors = running.stderr.read()
    assert "Traceback" not in errors
    assert "ERROR" not in errors


class SlowStart(FakeEngineService):
    """Loads for a while, or fails to."""

    def __init__(self, error=None):
        super().__init__()
        self.error = error

    async def start(self):
        await asyncio.sleep(0.2)
        if self.error is not None:
            raise self.error
        await super().start()


def test_the_url_is_told_only_once_it_answers():
    service, told = SlowStart(), []

    def announce(said):
        told.append((said, service.started))
        signal.raise_signal(signal.SIGINT)

    with suppress(KeyboardInterrupt):
        run(service, ServerSettings(port=0), announce=announce)
    ((said, started),) = told
    assert started
    assert said.startswith("physis_stream serves at http://127.0.0.1:")
    assert not service.started, "and was stopped again"


def test_an_engine_that_does_not_start_is_an_error_and_nothing_is_announced(capfd):
    with pytest.raises(StartFailed):
        run(SlowStart(ValueError("no weights")), ServerSettings(port=0), announce=lambda said: pytest.fail(said))
    assert "no weights" in capfd.readouterr().err


async def test_an_engine_that_does_not_start_fails_inside_a_running_loop_too():
    with pytest.raises(StartFailed):
        async with serving(SlowStart(ValueError("no weights"))):
            pytest.fail("it must not serve")


async def test_open_event_streams_do_not_hold_the_server_up():
    service, clock = FakeEngineService(), asyncio.get_running_loop().time
    async with serving(service) as server, httpx.AsyncClient(base_url=server.url) as http:
        session = (await http.post("/v1/sessions", json={"model": WORLD})).json()
        url = f"/v1/sessions/{session['id']}/events?token={session['token']}"

        async def read():
            async with http.stream("GET", url) as answer:
                return [line async for line in answer.aiter_lines() if line.startswith("event: ")]

        reading = asyncio.create_task(read())
        await eventually(lambda: server.context.register._live[session["id"]].feed._listeners)
        began = clock()
        await server.context.drain()
        assert (await reading)[-1] == "event: ended"
    assert clock() - began < 1.5


def test_a_taken_port_is_a_clear_error():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigurationError, match="cannot bind"):
            bind(ServerSettings(port=taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:5"),
        ("0.0.0.0", "http://127.0.0.1:5"),
        ("::1", "http://[::1]:5"),
        ("::", "http://127.0.0.1:5"),
    ],
)
def test_the_url_opens_on_this_machine(host, url):
    assert url_of(ServerSettings(host=host, token="t" * 16), 5) == url


def test_the_socket_is_configured_for_pixels_and_vanishing_clients():
    config = uvicorn_config(FakeEngineService(), ServerSettings())
    assert config.ws_per_message_deflate is False
    assert config.ws_max_size == ServerSettings().limits.websocket_message
    assert config.ws_ping_interval + config.ws_ping_timeout <= 5.0
    assert config.access_log is False, "tokens in query strings are not logged"


async def test_a_flood_of_header_bytes_is_cut_off(served):
    server, _ = served
    port = int(server.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Big: ")
    with suppress(ConnectionError):
        for _ in range(64):
            writer.write(b"x" * (64 << 10))
            await writer.drain()
    with suppress(ConnectionError):
        answer = await asyncio.wait_for(reader.read(), 3.0)
        assert not answer or answer.startswith(b"HTTP/1.1 400")
    writer.close()
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/healthz")).status_code == 200
