"""A real Chromium, fresh pages, and the servers that they open.

`world` runs a test against the real server over the fake engine and against the product with the world that ships; the
latter is left out only where that world's weights are not in the tree.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, sync_playwright

from physis_stream.bench.latency_browser import FLAGS, chromium_path
from physis_stream.bench.serving import ServeProcess
from tests.browser.screen import Screen
from tests.browser.servers import FakeServed, Served, wait_for_sessions

ROOT = Path(__file__).resolve().parents[2]
OpenPage = Callable[..., Page]
OpenScreen = Callable[..., Screen]


def weights_of_world(name: str) -> list[Path]:
    return list((ROOT / "physis_stream" / "worlds" / name).rglob("*.safetensors"))


class Elsewhere:
    """A server that runs already, named by PHYSIS_TEST_URL."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")

    def stop(self) -> None:
        """Leave it running: it is not ours."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser a module. Playwright's event loop runs in this thread as long as the browser lives, which no asyncio
    test survives: it must be gone before the tests of other folders begin."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS), headless=True)
        yield browser
        browser.close()


@pytest.fixture
def new_page(chromium: Browser) -> Iterator[OpenPage]:
    """Opens pages, each in a context of its own, and closes them after the test."""
    contexts = []

    def open_page(**options: object) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        return page

    yield open_page
    for context in contexts:
        for page in context.pages:
            with suppress(Error):
                page.goto("about:blank", timeout=3000)
        context.close()


@pytest.fixture(scope="module")
def engine_served() -> Iterator[Served | None]:
    if url := os.environ.get("PHYSIS_TEST_URL"):
        yield Elsewhere(url)
        return
    if not weights_of_world("pusht"):
        yield None
        return
    served = ServeProcess("pusht", ("--max-sessions", "4"))
    yield served
    served.stop()


@pytest.fixture(params=["fake", "engine"])
def world(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "engine":
        engine = request.getfixturevalue("engine_served")
        if engine is None:
            pytest.fail("the weights of the world pusht are not in this tree: they ship with it")
        wait_for_sessions(engine, 0, 30)
        yield engine
        return
    fake = FakeServed()
    yield fake
    fake.stop()


@pytest.fixture
def fake() -> Iterator[FakeServed]:
    served = FakeServed()
    yield served
    served.stop()


@pytest.fixture
def screen_on(new_page: OpenPage) -> OpenScreen:
    """`screen_on(served, **context options)` returns a page of it, not yet opened."""

    def make(served: Served, **options: object) -> Screen:
        return Screen(new_page(**options), served.url)

    return make
