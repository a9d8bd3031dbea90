"""`bench latency`: from a client's action to the first frame that obeys it, through the whole product on loopback.

Serves a world as a user does and drives it twice: from a real headless Chromium through `clients/web` (displayed
frames, by `requestVideoFrameCallback`), and from an aiortc client (decoded frames). The target moves at random times,
so that the wait for the next chunk is sampled evenly. Control-to-photon is action sent -> first displayed frame whose
chunk consumed it; a chunk interval is display of one chunk's first frame -> the next one's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

WARM_UP_S = 2.0
MEAN_GAP_S = 0.31
P50_BAR_MS = 60.0
P95_BAR_MS = 120.0


@dataclass(frozen=True, slots=True)
class Drive:
    """What a client is to do: after `warm_up_s`, an action after each gap; shares (0..1) of each number's range."""

    model: str
    warm_up_s: float
    gaps_s: tuple[float, ...]
    shares: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a client measured, in milliseconds, in order. `sent` counts actions; each should have its photon.

    `received` and `display` split a photon where the client can: action sent -> frame received -> frame displayed.
    """

    sent: int
    photons: tuple[float, ...]
    intervals: tuple[float, ...]
    received: tuple[float, ...] = ()
    display: tuple[float, ...] = ()
    note: str = ""


def plan_drive(model: str, dim: int, count: int, seed: int = 7) -> Drive:
    """Draw `count` random moves of a `dim`-number target; gaps spread around MEAN_GAP_S favour no phase."""
    rng = random.Random(seed)
    gaps = tuple(rng.uniform(0.4, 1.6) * MEAN_GAP_S for _ in range(count))
    shares = tuple(tuple(rng.uniform(0.15, 0.85) for _ in range(dim)) for _ in range(count))
    return Drive(model=model, warm_up_s=WARM_UP_S, gaps_s=gaps, shares=shares)


def quantile(values: Sequence[float], share: float) -> float:
    """The linearly interpolated quantile; ValueError for no values."""
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def quantiles(values: Sequence[float]) -> dict[str, float]:
    return {"p50": round(quantile(values, 0.5), 2), "p95": round(quantile(values, 0.95), 2)}


def summary(measured: Measured) -> dict[str, Any]:
    """A client's figures. `unanswered` are actions without a photon: overtaken by a later one before a chunk opened."""
    figures: dict[str, Any] = {
        "chunk_interval_ms": quantiles(measured.intervals),
        "control_to_photon_ms": quantiles(measured.photons),
        "actions": measured.sent,
        "unanswered": measured.sent - len(measured.photons),
    }
    if measured.received:
        figures["sent_to_received_ms"] = quantiles(measured.received)
        figures["received_to_displayed_ms"] = quantiles(measured.display)
    if measured.note:
        figures["note"] = measured.note
    return figures


def verdict(figures: Mapping[str, Any], chunk_ms: float) -> dict[str, Any]:
    """Hold control-to-photon against its bars: one chunk interval and 60 ms (p50), and 120 ms (p95)."""
    measured = figures["control_to_photon_ms"]
    bars = {"p50": chunk_ms + P50_BAR_MS, "p95": chunk_ms + P95_BAR_MS}
    return {"bar_ms": bars, "within_bar": all(measured[key] <= bars[key] for key in bars)}


def run(*, quick: bool = False, name: str = "pusht", url: str | None = None) -> dict[str, Any]:
    """Measure `name`, served on a free port (or by the server at `url`); return the keys of `bench latency`.

    The top-level figures are Chromium's. Both clients run in a thread of their own, so that this may be called where an
    event loop runs. ValueError if there is no Chromium, no such world, or nothing came.
    """
    from physis_stream.bench import latency_aiortc, latency_browser, serving

    with nullcontext(url) if url else serving.served(name) as base:
        world = latency_browser.world_of(base, name)
        count = 32 if quick else 160
        drive = plan_drive(world["name"], world["action"]["dim"], count)
        with ThreadPoolExecutor(1) as apart:
            browser = summary(apart.submit(latency_browser.measure, base, drive).result())
            headless = summary(apart.submit(lambda: asyncio.run(latency_aiortc.measure(base, drive))).result())
    chunk_ms = 1000.0 * world["chunk_frames"] / world["fps"]
    return {
        "world": world["name"],
        "chunk_ms": chunk_ms,
        "chunk_interval_ms": browser["chunk_interval_ms"],
        "control_to_photon_ms": browser["control_to_photon_ms"],
        **verdict(browser, chunk_ms),
        "client": {"chromium": browser, "aiortc": headless},
    }
