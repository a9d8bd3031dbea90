"""`physis-stream doctor`: what works on this machine, one line each, and what to do about what does not."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One check: `ok` None means that it works but slower or with less."""

    name: str
    ok: bool | None
    detail: str


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="pusht", help="the world to load (default: pusht)")
    parser.add_argument("--port", type=int, default=8080, help="the port that serve would use (default: 8080)")
    parser.add_argument("--json", action="store_true", help="for a machine to read")


def run(args: argparse.Namespace) -> int:
    findings = []
    for finding in _checks(args.model, args.port):
        findings.append(finding)
        if not args.json:
            mark = {True: "ok  ", None: "slow", False: "FAIL"}[finding.ok]
            print(f"{mark}  {finding.name:<18} {finding.detail}", flush=True)
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return 1 if any(finding.ok is False for finding in findings) else 0


def _checks(model: str, port: int) -> Iterator[Finding]:
    checks: tuple[tuple[str, Callable[[], tuple[bool | None, str]]], ...] = (
        ("processor", _processor),
        ("matrix products", _matrix_products),
        ("codecs", _codecs),
        (f"port {port}", lambda: _port(port)),
        ("WebRTC on loopback", lambda: asyncio.run(asyncio.wait_for(_webrtc(), 20))),
        (f"world {model}", lambda: _world(model)),
    )
    for name, check in checks:
        try:
            ok, detail = check()
        except Exception as failure:
            ok, detail = False, f"{type(failure).__name__}: {failure}"
        yield Finding(name, ok, detail)


def _processor() -> tuple[bool | None, str]:
    from physis_stream.bench.machine import machine

    facts = machine()
    cores = facts["cores"] or 1
    return (True if cores >= 2 else None), f"{facts['cpu']}, {cores} cores, torch {facts['torch']}"


def _matrix_products() -> tuple[bool | None, str]:
    from time import perf_counter

    import torch

    speeds = {}
    for dtype in (torch.float32, torch.bfloat16):
        a, b = (torch.ones(512, 512, dtype=dtype) for _ in range(2))
        _ = a @ b
        began = perf_counter()
        for _ in range(20):
            _ = a @ b
        speeds[dtype] = 20 * 2 * 512**3 / (perf_counter() - began) / 1e9
    fast = speeds[torch.bfloat16] > speeds[torch.float32]
    detail = ", ".join(f"{str(dtype).split('.')[1]} {speed:.0f} GFLOP/s" for dtype, speed in speeds.items())
    return (True if fast else None), detail + ("" if fast else ": no fast bf16 here, fp32 is used")


def _codecs() -> tuple[bool | None, str]:
    import av

    missing = [name for name in ("libvpx", "libx264") if name not in av.codecs_available]
    if "libvpx" in missing:
        return False, "VP8 (libvpx) is missing from PyAV: reinstall the `av` wheel"
    return (None if missing else True), "VP8" + ("" if missing else " and H.264")


def _port(port: int) -> tuple[bool | None, str]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as refused:
            return False, f"{os.strerror(refused.errno or 0)}: choose another with `serve --port`"
    return True, "free on 127.0.0.1"


async def _webrtc() -> tuple[bool | None, str]:
    from aiortc import RTCPeerConnection

    here, there = RTCPeerConnection(), RTCPeerConnection()
    opened = asyncio.Event()
    channel = here.createDataChannel("doctor")
    channel.on("open", opened.set)
    try:
        await here.setLocalDescription(await here.createOffer())
        await there.setRemoteDescription(here.localDescription)
        await there.setLocalDescription(await there.createAnswer())
        await here.setRemoteDescription(there.localDescription)
        await opened.wait()
    finally:
        await asyncio.gather(here.close(), there.close())
    return True, "two peers connect, a data channel opens"


def _world(model: str) -> tuple[bool | None, str]:
    from time import perf_counter

    import physis_stream

    with physis_stream.Engine(model) as engine, engine.open_session(seed=0) as session:
        action = list(engine.world.action["initial"])
        session.step(action)
        began = perf_counter()
        for _ in range(10):
            session.step(action)
        took_ms = (perf_counter() - began) * 100
        budget_ms = 1e3 * engine.world.chunk_frames / engine.world.fps
    live = took_ms < budget_ms
    return (True if live else None), f"{took_ms:.1f} ms a chunk; {budget_ms:.0f} ms is real time"
