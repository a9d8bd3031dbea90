"""What a person sees of the playground: the picture's pixels, the words on the page, the pointer and the keys.

Places are shares (0..1) of the picture, or pixels of a 96 x 96 picture where a name ends in `_px`; y points down.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from playwright.sync_api import Locator, Page

SIDE = 96
LIVE_MS = 30_000

WATCH_JS = """
() => {
  const readers = new Map();
  const centroid = (data, side, match) => {
    let n = 0, x = 0, y = 0;
    for (let i = 0; i < data.length; i += 4) {
      if (!match(data[i], data[i + 1], data[i + 2])) continue;
      const at = i / 4;
      n += 1; x += at % side.w + 0.5; y += Math.floor(at / side.w) + 0.5;
    }
    return n < 4 ? null : { x: x / n / side.w, y: y / n / side.h, n };
  };
  const agent = (r, g, b) => b > 140 && b - r > 80 && b - g > 55;
  const block = (r, g, b) => Math.abs(r - 119) < 26 && Math.abs(g - 136) < 24 && Math.abs(b - 153) < 26 && b - r > 12;
  window.lookAt = (index) => {
    const video = document.querySelectorAll("video")[index];
    if (!video || video.readyState < 2 || video.videoWidth === 0) return null;
    const side = { w: video.videoWidth, h: video.videoHeight };
    const fresh = () => new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    if (!readers.has(index)) readers.set(index, fresh());
    const context = readers.get(index);
    if (context.canvas.width !== side.w) Object.assign(context.canvas, { width: side.w, height: side.h });
    context.drawImage(video, 0, 0);
    const { data } = context.getImageData(0, 0, side.w, side.h);
    return { agent: centroid(data, side, agent), block: centroid(data, side, block), at: performance.now() };
  };
  window.film = [];
  window.filmPane = (index) => {
    const video = document.querySelectorAll("video")[index];
    window.film = [];
    const take = () => {
      const seen = window.lookAt(index);
      if (seen) window.film.push(seen);
      video.requestVideoFrameCallback(take);
    };
    video.requestVideoFrameCallback(take);
  };
}
"""


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the picture, in shares."""

    x: float
    y: float

    def px_to(self, other: Spot) -> float:
        """Distance in pixels of a 96 x 96 picture."""
        return SIDE * math.hypot(self.x - other.x, self.y - other.y)


class Screen:
    """One open page of the playground. `console` holds every error that the page logged or threw."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.console: list[str] = []
        page.on("console", lambda message: self.console.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.console.append(str(error)))
        page.add_init_script(f"addEventListener('DOMContentLoaded', {WATCH_JS})")

    def open(self, query: str = "") -> Screen:
        self.page.goto(f"{self.url}/{query}")
        return self

    def open_live(self, query: str = "") -> Screen:
        """Open the page and wait until frames are shown."""
        self.open(query)
        self.wait_live()
        return self

    def wait_live(self, pane: int = 0) -> None:
        self.page.locator(".stage").nth(pane).and_(self.page.locator("[data-live]")).wait_for(timeout=LIVE_MS)
        self.until(lambda: not self.veiled(pane), 20, "the picture stays covered")

    # What is there

    def stage(self, pane: int = 0) -> Locator:
        return self.page.locator(".stage").nth(pane)

    def part(self, name: str, pane: int = 0) -> Locator:
        return self.page.locator(".pane").nth(pane).locator(f"[data-part='{name}']")

    def panes(self) -> int:
        return int(self.page.locator(".pane").count())

    def veiled(self, pane: int = 0) -> bool:
        return bool(self.part("veil", pane).is_visible())

    def veil_title(self, pane: int = 0) -> str:
        return str(self.part("veil-title", pane).inner_text()) if self.veiled(pane) else ""

    def link(self) -> str:
        return str(self.page.locator("#link-text").inner_text())

    def number(self, element: str) -> float | None:
        """The figure in the side column under this id; None while it is a dash."""
        text = self.page.locator(f"#{element}").inner_text()
        return None if text == "–" else float(text)

    def look(self, pane: int = 0) -> dict[str, Any]:
        """Agent and block as the picture shows them now."""
        seen: dict[str, Any] | None = self.page.evaluate("(index) => window.lookAt(index)", pane)
        assert seen is not None, "the video shows nothing"
        return seen

    def agent(self, pane: int = 0) -> Spot:
        seen = self.look(pane)["agent"]
        assert seen is not None, "no agent in the picture"
        return spot_of(seen)

    def block(self, pane: int = 0) -> Spot | None:
        """Where the block is, in worlds that have one."""
        seen = self.look(pane)["block"]
        return None if seen is None or seen["n"] < 40 else spot_of(seen)

    # What a person does

    def point(self, spot: Spot, pane: int = 0) -> None:
        """Move the mouse to a place of the picture."""
        box = self.stage(pane).bounding_box()
        assert box is not None
        self.page.mouse.move(box["x"] + spot.x * box["width"], box["y"] + spot.y * box["height"])

    def tap(self, spot: Spot, pane: int = 0) -> None:
        """Touch a place of the picture."""
        box = self.stage(pane).bounding_box()
        assert box is not None
        self.page.touchscreen.tap(box["x"] + spot.x * box["width"], box["y"] + spot.y * box["height"])

    def free_spots(self, pane: int = 0) -> list[Spot]:
        """Places a hand's breadth from the walls that lie away from the block, the farthest first."""
        block = self.block(pane)
        spots = [Spot(0.2, 0.2), Spot(0.8, 0.2), Spot(0.8, 0.8), Spot(0.2, 0.8)]
        return spots if block is None else sorted(spots, key=lambda spot: -spot.px_to(block))

    # Waiting

    def until(self, holds: Callable[[], bool], within_s: float, otherwise: str) -> float:
        """Wait until something holds; return the seconds it took, or fail with `otherwise`."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > within_s:
                told = self.page.locator("#toast").text_content() if self.page.locator("#toast").count() else ""
                raise AssertionError(f"{otherwise} (waited {within_s} s; the page says {self.link()!r} {told!r})")
            self.page.wait_for_timeout(40)
        return time.monotonic() - began

    def arrives(self, spot: Spot, within_s: float, pane: int = 0, within_px: float = 3.0) -> float:
        """Wait until the agent is within `within_px` of a place; return the seconds it took or fail."""
        began = time.monotonic()
        while True:
            seen = self.look(pane)["agent"]
            away = None if seen is None else spot_of(seen).px_to(spot)
            if away is not None and away <= within_px:
                break
            place = "nowhere in the picture" if away is None else f"{away:.1f} px from the pointer"
            assert time.monotonic() - began < within_s, f"the agent is {place} after {within_s} s"
            self.page.wait_for_timeout(40)
        return time.monotonic() - began

    def rest(self, pane: int = 0, within_s: float = 5.0) -> Spot:
        """Wait until the agent stands still for half a second; return where."""
        began = time.monotonic()
        before = self.agent(pane)
        while True:
            self.page.wait_for_timeout(500)
            now = self.agent(pane)
            if now.px_to(before) < 0.7:
                return now
            assert time.monotonic() - began < within_s, "the agent does not come to rest"
            before = now


def spot_of(seen: dict[str, float]) -> Spot:
    return Spot(seen["x"], seen["y"])
