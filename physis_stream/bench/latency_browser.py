"""The Chromium side of `bench latency`: a blank page of the server's own origin, `physis.js`, one large video."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from typing import Any

from physis_stream.bench.latency import Drive, Measured

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DRIVE_JS = """
async ({ model, warm_up_s, gaps_s, shares }) => {
  const { PhysisClient } = await import("/client/physis.js");
  const video = Object.assign(document.createElement("video"), { muted: true, playsInline: true });
  video.style.cssText = "width: 540px; height: 540px; image-rendering: pixelated";
  document.body.replaceChildren(video);
  const session = await new PhysisClient().openSession({ model, seed: 0 });
  const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
  const photons = [], received = [], display = [], intervals = [];
  let sent = 0, last = null, counting = false;
  session.addEventListener("sent", () => { sent += 1; });
  session.addEventListener("photon", ({ detail }) => photons.push(detail.ms));
  session.addEventListener("frame", ({ detail }) => {
    for (const photon of detail.photons) {
      if (detail.receivedMs === null) continue;
      received.push(detail.receivedMs - photon.sentMs);
      display.push(detail.shownMs - detail.receivedMs);
    }
    const chunk = detail.telemetry?.chunk;
    if (chunk === undefined || chunk === last?.chunk) return;
    if (counting && chunk === last?.chunk + 1) intervals.push(detail.shownMs - last.shownMs);
    last = { chunk, shownMs: detail.shownMs };
  });
  await session.attach(video);
  await sleep(warm_up_s);
  counting = true;
  const { low, high } = session.world.action;
  for (const [turn, gap] of gaps_s.entries()) {
    await sleep(gap);
    session.act(shares[turn].map((share, axis) => low[axis] + share * (high[axis] - low[axis])));
  }
  await sleep(1.5);
  const inbound = [...(await session.peerConnection.getStats()).values()].find((entry) => entry.type === "inbound-rtp");
  await session.close();
  return { sent, photons, received, display, intervals, inbound };
}
"""


def chromium_path() -> str | None:
    """The system's Chromium; None lets playwright look for its own."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def world_of(base: str, name: str) -> dict[str, Any]:
    """The server's entry for a world: the one of that name, or its only one. ValueError if there is none."""
    try:
        with urllib.request.urlopen(f"{base}/v1/models", timeout=10) as answer:
            worlds = json.load(answer)["models"]
    except (urllib.error.URLError, TimeoutError) as error:
        raise ValueError(f"no server answers at {base}: {error}") from error
    found = [world for world in worlds if world["name"] == name] or (worlds if len(worlds) == 1 else [])
    if not found:
        raise ValueError(f"the server at {base} has no world named {name!r}")
    world: dict[str, Any] = found[0]
    return world


def measure(base: str, drive: Drive) -> Measured:
    """Drive the world from a fresh headless Chromium. ValueError if there is none, or if nothing was displayed."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        raise ValueError("bench latency needs playwright: pip install playwright") from error
    order = {
        "model": drive.model,
        "warm_up_s": drive.warm_up_s,
        "gaps_s": list(drive.gaps_s),
        "shares": [list(share) for share in drive.shares],
    }
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(FLAGS), headless=True)
            page = browser.new_context(viewport={"width": 800, "height": 640}).new_page()
            page.goto(f"{base}/healthz")
            seen = page.evaluate(DRIVE_JS, order)
            browser.close()
    except Error as error:
        raise ValueError(f"Chromium could not drive the world: {error.message.splitlines()[0]}") from error
    return Measured(
        sent=seen["sent"],
        photons=tuple(seen["photons"]),
        intervals=tuple(seen["intervals"]),
        received=tuple(seen["received"]),
        display=tuple(seen["display"]),
        note=_receiver_note(seen["inbound"]),
    )


def _receiver_note(inbound: dict[str, Any] | None) -> str:
    if not inbound or not inbound.get("jitterBufferEmittedCount"):
        return ""
    emitted = inbound["jitterBufferEmittedCount"]
    waited = 1000.0 * inbound["jitterBufferDelay"] / emitted
    decoded = 1000.0 * inbound.get("totalDecodeTime", 0.0) / max(1, inbound.get("framesDecoded", 0))
    return (
        f"jitter buffer {waited:.1f} ms a frame, decoding {decoded:.1f} ms, {inbound.get('framesDropped', 0)} dropped"
    )
