"""Whatever goes wrong is said in plain words, with a way on that works; over the fake engine, told to fail."""

from __future__ import annotations

import pytest

from physis_stream.core.errors import Capacity, EngineDown, InvalidState
from tests.browser.screen import Screen, Spot
from tests.browser.servers import FakeServed, wait_for_sessions

pytestmark = pytest.mark.browser
LISTEN_JS = """
() => {
  const text = document.getElementById("link-text");
  window.seen = [];
  new MutationObserver(() => window.seen.push(text.textContent)).observe(text, { childList: true, subtree: true });
}
"""


def says(screen: Screen, title: str, within_s: float = 10.0, pane: int = 0) -> None:
    screen.until(lambda: screen.veil_title(pane) == title, within_s, f"the page never says {title!r}")


def session_of(fake: FakeServed):
    (session,) = fake.service.live_sessions()
    return session


def test_a_full_server_gives_a_place_in_line_that_opens_by_itself(screen_on):
    fake = FakeServed(max_sessions=1)
    try:
        first = screen_on(fake).open_live()
        second, third = screen_on(fake).open(), screen_on(fake)
        says(second, "You are next")
        third.open()
        says(third, "You are in line")
        assert third.part("veil-number").inner_text() == "2"
        assert third.link() == "In line"
        third.page.get_by_role("button", name="Leave the line").click()
        says(third, "No world is open")
        first.page.goto("about:blank")
        second.wait_live()
        assert second.link() == "Live"
        wait_for_sessions(fake, 1, 3)
    finally:
        fake.stop()


def test_a_refusal_for_capacity_counts_down_and_tries_again(fake, screen_on):
    fake.service.refuse_next["open_session"] = Capacity("All four places are taken.", retry_after_s=3)
    screen = screen_on(fake).open()
    says(screen, "Every place is taken")
    assert "All four places are taken." in screen.part("veil-text").inner_text()
    screen.until(lambda: "Trying again in" in screen.part("veil-count").inner_text(), 2, "no countdown")
    screen.wait_live()


def test_an_engine_that_is_down_at_the_start_is_said_and_tried_again(fake, screen_on):
    fake.service.refuse_next["open_session"] = EngineDown("the loop is dead")
    screen = screen_on(fake).open()
    says(screen, "The engine is not running")
    screen.page.get_by_role("button", name="Try now").click()
    screen.wait_live()


def test_an_engine_that_dies_under_a_session_is_said_until_it_is_back(fake, screen_on):
    screen = screen_on(fake).open_live()
    fake.call(fake.service.crash)
    says(screen, "The engine stopped")
    fake.call(fake.service.recover)
    screen.until(lambda: not screen.veiled(), 10, "the picture does not come back")
    assert "brought it back" in screen.page.locator("#toast").inner_text()
    screen.point(Spot(0.4, 0.4))
    screen.arrives(Spot(0.4, 0.4), 5)


def test_a_failed_world_is_brought_back_by_reset(fake, screen_on):
    screen = screen_on(fake).open_live()
    fake.call(lambda: fake.service.fail_session(session_of(fake)))
    says(screen, "This world stumbled")
    screen.part("veil").get_by_role("button", name="Reset").click()
    screen.until(lambda: not screen.veiled(), 5, "reset does not bring it back")
    screen.point(Spot(0.4, 0.4))
    screen.arrives(Spot(0.4, 0.4), 5)


def test_a_session_that_ended_says_why_and_a_new_one_starts(fake, screen_on):
    screen = screen_on(fake).open_live()
    session = session_of(fake)
    fake.call(lambda: fake.service.close_session(session, "its time was over"))
    says(screen, "This session has ended")
    assert screen.part("veil-text").inner_text() == "Its time was over."
    screen.page.get_by_role("button", name="Start a new one").click()
    screen.wait_live()
    assert session_of(fake) != session


def test_a_lost_connection_is_said_and_mended_within_the_grace(fake, screen_on):
    screen = screen_on(fake).open_live()
    session = session_of(fake)
    screen.page.evaluate(LISTEN_JS)
    fake.lose_peers()
    screen.until(lambda: "Reconnecting" in screen.page.evaluate("() => window.seen"), 8, "the loss goes unsaid")
    screen.until(lambda: screen.link() == "Live" and not screen.veiled(), 10, "it does not reconnect")
    assert session_of(fake) == session
    screen.point(Spot(0.4, 0.4))
    screen.arrives(Spot(0.4, 0.4), 5)


def test_a_server_that_goes_away_is_said_and_a_new_one_is_found(screen_on):
    fake = FakeServed()
    port = fake.port
    screen = screen_on(fake).open_live()
    fake.stop()
    says(screen, "This session has ended", 40)
    screen.page.get_by_role("button", name="Start a new one").click()
    says(screen, "The server cannot be reached")
    again = FakeServed(port=port)
    try:
        screen.wait_live()
    finally:
        again.stop()


def test_a_server_with_a_token_asks_for_it(screen_on):
    token = "a-long-enough-token-for-tests"
    fake = FakeServed(token=token)
    try:
        screen = screen_on(fake).open()
        says(screen, "This server asks for a token")
        screen.part("veil-form").locator("input").fill("not-this-one-but-as-long")
        screen.page.get_by_role("button", name="Continue").click()
        screen.page.wait_for_timeout(500)
        says(screen, "This server asks for a token")
        screen.part("veil-form").locator("input").fill(token)
        screen.page.get_by_role("button", name="Continue").click()
        screen.wait_live()
        screen.page.reload()
        screen.wait_live()
    finally:
        fake.stop()


def test_a_refused_command_is_told_and_changes_nothing(fake, screen_on):
    screen = screen_on(fake).open_live()
    fake.service.refuse_next["fork"] = InvalidState("fork is not legal just now")
    screen.part("fork").click()
    screen.until(lambda: screen.page.locator("#toast").is_visible(), 3, "the refusal goes unsaid")
    assert screen.page.locator("#toast").inner_text() == "Could not fork: fork is not legal just now"
    assert screen.panes() == 1
    assert screen.link() == "Live"


def test_frames_that_stop_coming_are_noticed(fake, screen_on):
    screen = screen_on(fake).open_live()
    fake.service.pace = 1000.0
    screen.until(lambda: screen.link() == "No frames are coming", 8, "a frozen picture passes for live")


def test_a_page_that_cannot_connect_says_so_and_gives_its_place_back(fake, screen_on):
    screen = screen_on(fake)
    screen.page.add_init_script(
        "RTCPeerConnection.prototype.setRemoteDescription = () => Promise.reject(new Error('no route to the picture'));"
    )
    screen.open()
    says(screen, "The server cannot be reached")
    assert screen.part("veil-text").inner_text() == "no route to the picture"
    wait_for_sessions(fake, 0, 2)
