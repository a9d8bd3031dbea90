"""The page holds up: narrow and wide, light and dark, without a mouse, without motion, under its strict policy."""

from __future__ import annotations

import pytest

from tests.browser.screen import Screen, Spot

pytestmark = pytest.mark.browser
SIZES = [(360, 740), (844, 390), (412, 915), (768, 1024), (1024, 768), (1280, 800), (1920, 1080)]

CONTRAST_JS = """
() => {
  const parse = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const probe = document.createElement("i");
  document.body.append(probe);
  const colour = (name) => { probe.style.color = `var(${name})`; return light(parse(getComputedStyle(probe).color)); };
  const ratio = (a, b) => {
    const [x, y] = [colour(a), colour(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  };
  const pairs = [["--ink", "--paper"], ["--muted", "--paper"], ["--accent", "--paper"], ["--on-accent", "--accent"],
                 ["--ink", "--sheet"], ["--muted", "--sheet"]];
  const found = pairs.map(([a, b]) => [a, b, ratio(a, b)]);
  probe.remove();
  return found;
}
"""


def background(screen: Screen) -> str:
    return screen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")


@pytest.mark.parametrize("size", SIZES)
def test_nothing_sticks_out_at_any_width(fake, screen_on, size):
    width, height = size
    screen = screen_on(fake, viewport={"width": width, "height": height}, has_touch=width < 600, is_mobile=width < 600)
    screen.open_live()
    screen.page.evaluate("() => document.querySelector('[data-part=fork]').click()")
    screen.until(lambda: screen.panes() == 2, 10, "no second pane")
    screen.wait_live(1)
    wide = screen.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]
    clipped = screen.page.evaluate(
        """() => [...document.querySelectorAll('button, input, dd, h1, h2, .note')].filter((element) => {
             const box = element.getBoundingClientRect();
             return box.width > 0 && (box.right > innerWidth + 0.5 || box.left < -0.5);
           }).map((element) => element.outerHTML.slice(0, 80))"""
    )
    assert clipped == []


def test_one_pane_needs_no_scrolling_on_a_laptop(fake, screen_on):
    screen = screen_on(fake).open_live()
    assert screen.page.evaluate("() => document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(fake, screen_on, scheme):
    screen = screen_on(fake, color_scheme=scheme).open()
    for text, behind, ratio in screen.page.evaluate(CONTRAST_JS):
        assert ratio >= 4.5, f"{text} on {behind} has a contrast of {ratio:.2f} in {scheme}"


def test_the_colours_follow_the_system_until_they_are_chosen(fake, screen_on):
    screen = screen_on(fake, color_scheme="light").open()
    light = background(screen)
    screen.page.emulate_media(color_scheme="dark")
    dark = background(screen)
    assert light != dark
    screen.page.locator("#theme").click()
    assert background(screen) == light
    screen.page.reload()
    assert background(screen) == light
    screen.page.locator("#theme").click()
    assert background(screen) == dark


FOCUS_JS = """
() => {
  const it = document.activeElement;
  const framed = it.matches("input") ? it.closest("label") ?? it : it;
  const style = getComputedStyle(framed);
  const ring = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1.5;
  const accent = getComputedStyle(document.querySelector(".mark svg")).stroke;
  const edge = it.matches("input") && style.borderTopColor === accent;
  return [it.dataset.part ?? (it.id || it.name || it.className), ring || edge];
}
"""
UNNAMED_JS = """
() => [...document.querySelectorAll("button, input, [role], canvas:not([aria-hidden])")].filter((element) => {
  const label = element.getAttribute("aria-label") || element.textContent.trim()
    || element.labels?.[0]?.textContent.trim() || element.getAttribute("aria-labelledby");
  return element.getBoundingClientRect().width > 0 && !label;
}).map((element) => element.outerHTML.slice(0, 100))
"""
SMALL_JS = """
() => [...document.querySelectorAll(".pane button")].filter((button) => {
  const box = button.getBoundingClientRect();
  return box.width > 0 && (box.height < 44 || box.width < 40);
}).map((button) => button.outerHTML.slice(0, 80))
"""
POLICY_JS = "addEventListener('securitypolicyviolation', (e) => console.error('policy', e.violatedDirective))"


def test_the_keyboard_reaches_everything_and_shows_where_it_is(fake, screen_on):
    screen = screen_on(fake).open_live()
    marked = {}
    for _ in range(16):
        screen.page.keyboard.press("Tab")
        screen.page.wait_for_timeout(200)
        name, shown = screen.page.evaluate(FOCUS_JS)
        marked[name] = shown
    assert {"theme", "stage", "pause", "seed", "dice", "fork", "scale"} <= marked.keys()
    marked.pop("", None)
    assert [name for name, shown in marked.items() if not shown] == []


def test_everything_that_acts_has_a_name(fake, screen_on):
    assert screen_on(fake).open_live().page.evaluate(UNNAMED_JS) == []


def test_touch_targets_are_large_enough_for_a_thumb(fake, screen_on):
    screen = screen_on(fake, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True).open_live()
    assert screen.page.evaluate(SMALL_JS) == []


def test_nothing_moves_for_those_who_ask_for_less_motion(fake, screen_on):
    screen = screen_on(fake, reduced_motion="reduce").open_live()
    screen.point(Spot(0.4, 0.4))
    assert screen.page.evaluate("() => document.getAnimations().filter((a) => a.playState === 'running').length") == 0


def test_the_picture_is_crisp_or_smooth_as_chosen(fake, screen_on):
    screen = screen_on(fake).open_live()
    rendering = "() => getComputedStyle(document.querySelector('video')).imageRendering"
    assert screen.page.evaluate(rendering) == "pixelated"
    screen.part("scale").click()
    assert screen.page.evaluate(rendering) == "auto"
    screen.page.reload()
    assert screen.page.evaluate(rendering) == "auto"


def test_a_live_page_logs_no_error_and_breaks_no_policy(fake, screen_on):
    screen = screen_on(fake)
    screen.page.add_init_script(POLICY_JS)
    screen.open_live()
    screen.point(Spot(0.4, 0.4))
    screen.part("fork").click()
    screen.until(lambda: screen.panes() == 2, 10, "no second pane")
    screen.wait_live(1)
    screen.part("reset", 1).locator("button[type=submit]").click()
    screen.page.wait_for_timeout(500)
    assert screen.console == []
