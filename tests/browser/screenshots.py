"""Take the pictures of docs/playground.md: `python -m tests.browser.screenshots URL docs/images`.

Drives a running server's world for as long as the plots are wide, then looks at it light, branched and on a phone.
"""

from __future__ import annotations

import argparse
import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from physis_stream.bench.latency_browser import FLAGS, chromium_path
from tests.browser.screen import Screen, Spot

MAX_BYTES = 150_000
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "has_touch": True,
    "is_mobile": True,
}
LAPTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}


def save(picture: bytes, path: Path) -> None:
    """Write a PNG of at most MAX_BYTES: as it is, or smaller, or at last with a palette (which loses rare colours)."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for scale, colours in ((1.0, 0), (0.75, 0), (0.75, 256), (0.5, 256)):
        small = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        shown = small.quantize(colours, method=Image.Quantize.MAXCOVERAGE) if colours else small
        shown.save(buffer, "PNG", optimize=True)
        if buffer.tell() <= MAX_BYTES:
            break
    path.write_bytes(buffer.getvalue())


def stroll(screen: Screen, seconds: float, pane: int = 0, phase: float = 0.0) -> None:
    """Move the pointer along a slow figure of eight."""
    for step in range(round(seconds / 0.08)):
        turn = phase + step * 0.045
        screen.point(Spot(0.5 + 0.3 * math.sin(turn), 0.52 + 0.27 * math.sin(2 * turn + 0.6)), pane)
        screen.page.wait_for_timeout(80)


@contextmanager
def page_of(browser: Browser, url: str, **options: Any) -> Iterator[Screen]:
    context = browser.new_context(**options)
    try:
        yield Screen(context.new_page(), url)
    finally:
        context.pages[0].goto("about:blank")
        context.close()


def take(url: str, folder: Path, seconds: float) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS), headless=True)
        with page_of(browser, url, color_scheme="light", **LAPTOP) as screen:
            screen.open_live("?seed=3")
            stroll(screen, seconds)
            save(screen.page.screenshot(), folder / "playground-light.png")
        with page_of(browser, url, color_scheme="dark", **LAPTOP) as screen:
            screen.open_live("?seed=8")
            stroll(screen, seconds / 2)
            screen.page.keyboard.press("f")
            screen.until(lambda: screen.panes() == 2, 10, "no second pane")
            screen.wait_live(1)
            stroll(screen, seconds / 2, pane=1, phase=math.pi)
            save(screen.page.screenshot(), folder / "playground-fork.png")
        with page_of(browser, url, color_scheme="light", **PHONE) as screen:
            screen.open_live("?seed=5")
            screen.tap(Spot(0.62, 0.4))
            screen.page.wait_for_timeout(1500)
            save(screen.page.screenshot(), folder / "playground-phone.png")
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=26.0, help="how long to drive before a picture")
    asked = parser.parse_args()
    take(asked.url, asked.folder, asked.seconds)


if __name__ == "__main__":
    main()
