"""A person drives: by the pixels, the agent follows pointer, keys and finger; pause and reset mean what they say."""

from __future__ import annotations

import pytest

from tests.browser.screen import Screen, Spot, spot_of

pytestmark = pytest.mark.browser
CENTRE = Spot(0.5, 0.5)


def start_after_reset(screen: Screen, seed: int) -> tuple[Spot, Spot | None]:
    """Reset with a seed while the agent rests in a corner; return agent and block of the first new picture."""
    corner = screen.free_spots()[0]
    screen.point(corner)
    screen.arrives(corner, 4.0, within_px=6.0)
    resting = screen.rest()
    screen.part("reset").locator("input").fill(str(seed))
    screen.page.evaluate("() => window.filmPane(0)")
    screen.part("reset").locator("button[type=submit]").click()
    found: list[dict] = []

    def moved() -> bool:
        film = screen.page.evaluate("() => window.film")
        found[:] = [seen for seen in film if seen["agent"] and spot_of(seen["agent"]).px_to(resting) > 5]
        return bool(found)

    screen.until(moved, 3.0, "no picture of the new epoch came")
    agent, block = found[0]["agent"], found[0]["block"]
    return spot_of(agent), None if block is None else spot_of(block)


def test_the_agent_follows_the_pointer(world, screen_on):
    screen = screen_on(world).open_live()
    for spot in screen.free_spots()[:2]:
        screen.point(CENTRE)
        screen.rest()
        screen.point(spot)
        screen.arrives(spot, within_s=1.5)


def test_control_to_photon_and_intervals_are_measured(world, screen_on):
    screen = screen_on(world).open_live()
    for step in range(40):
        screen.point(Spot(0.3 + 0.01 * step, 0.3))
        screen.page.wait_for_timeout(50)
    photon, interval, fps = (screen.number(name) for name in ("photon-value", "interval-value", "fps-value"))
    assert photon is not None
    assert 5 < photon < 600
    assert interval is not None
    assert 80 < interval < 130
    assert fps is not None
    assert 8 < fps < 12
    assert screen.number("e-streaming") == 1


def test_keys_steer_and_stop_steering(world, screen_on):
    screen = screen_on(world).open_live()
    spot = screen.free_spots()[0]
    screen.point(spot)
    screen.arrives(spot, 4.0, within_px=6.0)
    before = screen.rest()
    key, sign = ("ArrowRight", 1) if spot.x < 0.5 else ("a", -1)
    screen.page.keyboard.down(key)
    screen.page.wait_for_timeout(350)
    screen.page.keyboard.up(key)
    after = screen.rest()
    assert sign * (after.x - before.x) > 0.1
    assert abs(after.y - before.y) < 0.06


def test_pause_freezes_the_world_and_going_on_moves_it(world, screen_on):
    screen = screen_on(world).open_live()
    first, second = screen.free_spots()[:2]
    screen.point(first)
    screen.arrives(first, 4.0, within_px=6.0)
    screen.rest()
    screen.page.keyboard.press("Space")
    screen.until(lambda: screen.link() == "Paused", 3, "the page does not say that it is paused")
    screen.page.wait_for_timeout(400)
    before = screen.agent()
    screen.point(second)
    screen.page.wait_for_timeout(1200)
    assert screen.agent().px_to(before) < 1.5
    assert screen.part("pause").inner_text() == "Go on"
    screen.page.keyboard.press("Space")
    screen.until(lambda: screen.link() == "Live", 3, "the page does not go on")
    screen.point(Spot(second.x, second.y + 0.004))
    screen.arrives(second, 4.0, within_px=5.0)


def test_a_seed_names_the_start(world, screen_on):
    screen = screen_on(world).open_live()
    one, one_block = start_after_reset(screen, 10)
    again, again_block = start_after_reset(screen, 10)
    other, other_block = start_after_reset(screen, 1)
    assert one.px_to(again) < 8
    if one_block is None or again_block is None or other_block is None:
        assert one.px_to(other) > 20
    else:
        assert one_block.px_to(again_block) < 4
        assert max(one.px_to(other), one_block.px_to(other_block)) > 10


def test_a_finger_drives_on_a_phone(world, screen_on):
    screen = screen_on(world, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).open_live()
    spot = screen.free_spots()[0]
    screen.tap(spot)
    screen.arrives(spot, 4.0)


def test_readouts_agree_with_the_picture(world, screen_on):
    screen = screen_on(world).open_live()
    if screen.block() is None:
        pytest.skip("this world has no agent readout in pixels of the picture")
    spot = screen.free_spots()[0]
    screen.point(spot)
    screen.arrives(spot, 4.0)
    screen.rest()
    text = screen.part("readouts").locator("dd").first.inner_text()
    x, y = (float(number) for number in text.split(","))
    assert Spot(x / 512, y / 512).px_to(screen.agent()) < 4
