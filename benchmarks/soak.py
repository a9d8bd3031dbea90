"""Sessions join and leave at random for minutes on end; then nothing may be left, and nothing may have grown or mixed.

    python -m benchmarks.soak --minutes 30 [--sessions 4] [--json FILE]

Starts `physis-stream serve` on a free loopback port and stops it at the end. Every visitor draws a corner of the world
of its own and checks that the world follows *its* pointer (by the state readout) and that frame ids strictly rise.
Memory is the proportional set size of the server and its children. Exit code 1 if memory grew by 2% or more after
warm-up, a page or session leaked, or a visitor saw something wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from physis_client import AsyncClient, AsyncSession, PhysisError
from physis_stream.bench.serving import ServeProcess

GROWTH_ALLOWED = 0.02
SETTLE_S = 30.0


@dataclass
class Findings:
    """What the visitors saw, and the samples of memory as (seconds, bytes)."""

    visits: int = 0
    frames: int = 0
    resets: int = 0
    forks: int = 0
    abrupt: int = 0
    wrong: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)

    def growth(self, warm_up_s: float) -> float:
        """Relative growth of memory from the first third after warm-up to the last; medians, so a spike is no leak."""
        sizes = [size for at, size in self.memory if at >= warm_up_s]
        third = max(1, len(sizes) // 3)
        early, late = statistics.median(sizes[:third]), statistics.median(sizes[-third:])
        return (late - early) / early


def memory_of(pid: int) -> int:
    """Proportional set size in bytes of a process and its children."""
    root = psutil.Process(pid)
    total = 0
    for one in [root, *root.children(recursive=True)]:
        try:
            total += one.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


async def visit(client: AsyncClient, chance: random.Random, found: Findings, ends: float) -> None:
    """One stay: open, drive around a corner of one's own, perhaps reset, fork or pause, leave politely or not."""
    world = (await client.models())[0]
    low, high = world.action["low"], world.action["high"]
    corner = [lo + (hi - lo) * chance.choice((0.2, 0.8)) for lo, hi in zip(low, high, strict=True)]
    session = await client.open_session(world.name, seed=chance.randrange(2**31), mode="realtime")
    found.visits += 1
    try:
        await session.act(corner)
        leaves = min(ends, time.monotonic() + chance.uniform(3, 20))
        await _watch(session, corner, leaves, chance, found)
        if chance.random() < 0.3:
            child = await session.fork()
            found.forks += 1
            await child.close()
    finally:
        if chance.random() < 0.25:
            found.abrupt += 1
            await session.abandon()
        else:
            await session.close()


async def _watch(
    session: AsyncSession, corner: list[float], leaves: float, chance: random.Random, found: Findings
) -> None:
    last_id, seen_since_act = -1, 0
    async for frame in session.frames(timeout=10):
        found.frames += 1
        seen_since_act += 1
        if frame.frame_id <= last_id:
            found.wrong.append(f"frame {frame.frame_id} after {last_id} in {session.id}")
        last_id = frame.frame_id
        if seen_since_act == 40 and (away := _distance(frame.state, corner)) > 60:
            found.wrong.append(f"after 4 s the agent is {away:.0f} units from its pointer in {session.id}")
        if seen_since_act > 40 and chance.random() < 0.02:
            await session.reset(seed=chance.randrange(2**31))
            await session.act(corner)
            found.resets += 1
            seen_since_act = 0
        if chance.random() < 0.01:
            await session.pause()
            await asyncio.sleep(0.3)
            await session.resume()
        if time.monotonic() >= leaves:
            return


def _distance(state: Any, target: list[float]) -> float:
    at = [state["agent_x"], state["agent_y"]]
    return float(sum((a - b) ** 2 for a, b in zip(at, target, strict=True)) ** 0.5)


async def _visitor(url: str, seed: int, found: Findings, ends: float) -> None:
    chance = random.Random(seed)
    while time.monotonic() < ends:
        async with AsyncClient(url) as client:
            try:
                await visit(client, chance, found, ends)
            except PhysisError as error:
                found.wrong.append(f"{type(error).__name__}: {error}")
        await asyncio.sleep(chance.uniform(0, 2))


async def _sample(pid: int, found: Findings, began: float, ends: float) -> None:
    with tqdm(total=round(ends - began), unit="s", desc="soak", mininterval=5) as bar:
        while (now := time.monotonic()) < ends:
            found.memory.append((now - began, await asyncio.to_thread(memory_of, pid)))
            bar.update(min(bar.total, round(now - began)) - bar.n)
            bar.set_postfix(visits=found.visits, frames=found.frames, wrong=len(found.wrong))
            await asyncio.sleep(2)


async def _left_over(client: AsyncClient) -> dict[str, int]:
    """Sessions and pages in use once every grace period is over."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        stats = await client.stats()
        left = {name: int(stats[name]) for name in ("sessions", "queued", "pages_used")}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


async def soak(minutes: float, sessions: int, seed: int, warm_up: float) -> dict[str, Any]:
    """Run the soak and return what was found; `warm_up` is the share of the time before memory counts."""
    found = Findings()
    server = ServeProcess("pusht")
    try:
        began = time.monotonic()
        ends = began + minutes * 60
        visitors = [_visitor(server.url, seed + k, found, ends) for k in range(sessions)]
        await asyncio.gather(*visitors, _sample(server.pid, found, began, ends))
        async with AsyncClient(server.url) as client:
            left = await _left_over(client)
    finally:
        server.stop()
    growth = found.growth(warm_up * minutes * 60)
    return {
        "minutes": minutes,
        "sessions": sessions,
        "visits": found.visits,
        "frames": found.frames,
        "resets": found.resets,
        "forks": found.forks,
        "abrupt_leaves": found.abrupt,
        "memory_mb": round(found.memory[-1][1] / 1e6, 1),
        "memory_growth": round(growth, 5),
        "left_over": left,
        "wrong": found.wrong[:20],
        "wrong_count": len(found.wrong),
        "ok": growth < GROWTH_ALLOWED and not any(left.values()) and not found.wrong,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--sessions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the time before memory counts")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    result = asyncio.run(soak(args.minutes, args.sessions, args.seed, args.warm_up))
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
