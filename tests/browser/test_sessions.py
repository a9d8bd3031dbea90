"""Sessions and pages: forks and neighbours never mix, and a page that goes takes its sessions with it."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest

from physis_stream.bench.latency_browser import FLAGS, chromium_path
from tests.browser.screen import Screen, Spot
from tests.browser.servers import FakeServed, stats, wait_for_sessions

pytestmark = pytest.mark.browser


def settle(screen: Screen, spot: Spot, pane: int = 0) -> Spot:
    screen.point(spot, pane)
    screen.arrives(spot, 5.0, pane, within_px=6.0)
    return screen.rest(pane)


def test_a_fork_goes_on_from_the_same_moment_and_alone(world, screen_on):
    screen = screen_on(world).open_live()
    first, second = screen.free_spots()[:2]
    before, block = settle(screen, first), screen.block()
    screen.page.keyboard.press("f")
    screen.until(lambda: screen.panes() == 2, 10, "no second pane")
    screen.wait_live(1)
    assert screen.agent(1).px_to(before) < 4
    if block is not None:
        twin = screen.block(1)
        assert twin is not None
        assert twin.px_to(block) < 4

    settle(screen, second, pane=1)
    assert screen.agent(0).px_to(before) < 4, "the fork's pointer moved the parent"
    aside = Spot(first.x, first.y + (0.08 if first.y < 0.5 else -0.08))
    there = screen.agent(1)
    settle(screen, aside, pane=0)
    assert screen.agent(1).px_to(there) < 4, "the parent's pointer moved the fork"

    wait_for_sessions(world, 2, 3)
    screen.part("close", 1).click()
    screen.until(lambda: screen.panes() == 1, 3, "the pane does not close")
    wait_for_sessions(world, 1, 5)
    assert screen.link() == "Live"


def test_two_pages_do_not_mix(world, screen_on):
    one, two = screen_on(world).open_live("?seed=3"), screen_on(world).open_live("?seed=3")
    first, second = one.free_spots()[:2]
    settle(one, first)
    settle(two, second)
    assert one.agent().px_to(first) < 6
    assert two.agent().px_to(second) < 6
    one.until(lambda: one.page.locator("#seats .mine").count() == 1, 4, "the page does not know its own session")
    one.until(lambda: one.page.locator("#seats .taken").count() == 1, 4, "the page does not see the other session")


def test_ten_refreshes_leave_one_session(world, screen_on):
    screen = screen_on(world).open_live()
    for turn in range(10):
        screen.page.reload(wait_until="domcontentloaded")
        screen.page.wait_for_timeout((30, 150, 600)[turn % 3])
    screen.wait_live()
    wait_for_sessions(world, 1, 25)
    assert screen.link() == "Live"


def test_a_refresh_of_a_live_page_frees_its_slot_at_once(world, screen_on):
    screen = screen_on(world).open_live()
    screen.page.reload()
    screen.wait_live()
    assert wait_for_sessions(world, 1, 2) < 2


def test_a_closed_page_frees_its_slot(world, screen_on):
    screen = screen_on(world).open_live()
    wait_for_sessions(world, 1, 2)
    screen.page.goto("about:blank")
    wait_for_sessions(world, 0, 2)


def test_a_killed_browser_frees_its_slot_within_twenty_seconds(world, tmp_path):
    command = [chromium_path() or "chromium", *FLAGS, "--headless=new", f"--user-data-dir={tmp_path}", world.url]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for_sessions(world, 1, 30)
        began = time.monotonic()
        while stats(world)["peers"] != 1:
            assert time.monotonic() - began < 20, "the browser did not connect"
            time.sleep(0.1)
        time.sleep(1.5)
    finally:
        os.killpg(browser.pid, signal.SIGKILL)
        browser.wait(10)
    wait_for_sessions(world, 0, 20)


def test_each_pane_pauses_and_resets_alone(fake: FakeServed, screen_on):
    screen = screen_on(fake).open_live()
    screen.part("fork").click()
    screen.until(lambda: screen.panes() == 2, 10, "no second pane")
    screen.wait_live(1)
    screen.part("pause", 0).click()
    screen.until(lambda: screen.part("state", 0).inner_text() == "Paused", 3, "the first pane does not pause")
    assert screen.part("state", 1).inner_text().startswith("Live")
    there = Spot(0.3, 0.3)
    settle(screen, there, pane=1)
    assert stats(fake)["streaming"] == 1
    assert screen.part("fork", 1).is_disabled()


def test_an_impatient_hand_makes_one_fork(fake: FakeServed, screen_on):
    screen = screen_on(fake).open_live()
    fake.service.delay_s["fork"] = 0.5
    for _ in range(4):
        screen.page.keyboard.press("f")
    screen.until(lambda: screen.panes() == 2, 10, "no second pane")
    screen.page.wait_for_timeout(1000)
    assert screen.panes() == 2
    wait_for_sessions(fake, 2, 2)
