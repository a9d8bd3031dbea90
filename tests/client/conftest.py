"""A server over the fake engine in a thread, for blocking and asyncio clients alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from physis_client import Client
from physis_stream.testing.fake_service import FakeEngineService
from physis_stream.testing.serving import Serving, serving_in_thread

WORLD = "fake-square"


@pytest.fixture
def engine() -> FakeEngineService:
    return FakeEngineService(pace=0.2, max_sessions=8)


@pytest.fixture
def server(engine) -> Iterator[Serving]:
    with serving_in_thread(engine) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[Client]:
    with Client(server.url, timeout=5.0) as made:
        yield made
