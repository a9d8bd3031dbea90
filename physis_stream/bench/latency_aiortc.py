"""The aiortc side of `bench latency`: the wire protocol spoken from Python, frames counted when they are decoded.

aiortc hands out a frame only when a packet of the *next* one has come, so its figures hold one frame interval more than
a browser's; `note` says so beside them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Sequence
from typing import Any

import httpx
from aiortc import RTCDataChannel, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from physis_stream.bench.latency import Drive, Measured

NOTE = "aiortc releases a frame when the next one begins: one frame interval is its own"
ANSWER_S = 15.0
WRAP = 2**32


def covers(chunk_rtp: int, frame_rtp: int, span: int) -> bool:
    """Whether a frame is not older than a chunk's first and less than `span` ticks younger, across the wrap."""
    return (frame_rtp - chunk_rtp) % WRAP < span


class Ledger:
    """Joins actions sent, chunks told of and frames decoded; times in seconds of one clock."""

    def __init__(self, span: int) -> None:
        self._span = span
        self.sent: dict[int, float] = {}
        self.chunks: list[dict[str, Any]] = []
        self.frames: list[tuple[int, float]] = []

    def firsts(self) -> list[tuple[dict[str, Any], float]]:
        """Each chunk with the time of the first frame that shows it, in the order of the chunks."""
        found = []
        for chunk in sorted(self.chunks, key=lambda one: int(one["chunk"])):
            if chunk["rtp_ts"] is None:
                continue
            times = (at for rtp, at in self.frames if covers(chunk["rtp_ts"], rtp, self._span))
            if (first := next(times, None)) is not None:
                found.append((chunk, first))
        return found

    def measured(self, since: float) -> Measured:
        """The figures of everything after `since`."""
        firsts = self.firsts()
        photons = [
            1000.0 * (at - self.sent[seq]) for chunk, at in firsts for seq in chunk["applied"] if seq in self.sent
        ]
        intervals = [
            1000.0 * (later - earlier)
            for (one, earlier), (two, later) in itertools.pairwise(firsts)
            if two["chunk"] == one["chunk"] + 1 and earlier >= since
        ]
        return Measured(len(self.sent), tuple(photons), tuple(intervals), note=NOTE)


async def measure(base: str, drive: Drive) -> Measured:
    """Drive the world from an aiortc client. ValueError if no connection comes about or nothing was decoded."""
    async with httpx.AsyncClient(base_url=base, timeout=ANSWER_S) as http:
        answer = await http.post("/v1/sessions", json={"model": drive.model, "seed": 0, "mode": "realtime"})
        if answer.status_code >= 400:
            raise ValueError(f"the server refused a session: {answer.text[:200]}")
        session = answer.json()
        http.headers["Authorization"] = f"Bearer {session['token']}"
        path = f"/v1/sessions/{session['id']}"
        connection = RTCPeerConnection()
        try:
            world = next(one for one in (await http.get("/v1/models")).json()["models"] if one["name"] == drive.model)
            return await _drive(http, path, connection, world, drive)
        except TimeoutError as error:
            raise ValueError("the aiortc client got no connection") from error
        finally:
            await connection.close()
            await http.delete(path)


async def _drive(
    http: httpx.AsyncClient, path: str, connection: RTCPeerConnection, world: dict[str, Any], drive: Drive
) -> Measured:
    clock = asyncio.get_running_loop().time
    ledger = Ledger(span=round(8 * 90_000 * world["chunk_frames"] / world["fps"]))
    connection.addTransceiver("video", direction="recvonly")
    control = connection.createDataChannel("control")
    actions = connection.createDataChannel("actions", ordered=False, maxRetransmits=0)
    telemetry = connection.createDataChannel("telemetry", ordered=False)
    telemetry.on("message", lambda text: ledger.chunks.append(json.loads(text)))
    watching: list[asyncio.Task[None]] = []
    connection.on("track", lambda track: watching.append(asyncio.create_task(_watch(connection, track, ledger))))
    await _connect(http, path, connection, control)
    await asyncio.sleep(drive.warm_up_s)
    since = clock()
    for seq, (gap, shares) in enumerate(zip(drive.gaps_s, drive.shares, strict=True), start=1):
        await asyncio.sleep(gap)
        ledger.sent[seq] = clock()
        actions.send(json.dumps({"seq": seq, "t_client": 1000 * clock(), "action": _action(world, shares)}))
    await asyncio.sleep(1.5)
    for task in watching:
        task.cancel()
    return ledger.measured(since)


async def _connect(http: httpx.AsyncClient, path: str, connection: RTCPeerConnection, control: RTCDataChannel) -> None:
    opened = asyncio.Event()
    control.on("open", opened.set)
    await connection.setLocalDescription(await connection.createOffer())
    offer = {"sdp": connection.localDescription.sdp, "type": "offer"}
    answer = (await http.post(f"{path}/webrtc", json=offer)).raise_for_status().json()
    await connection.setRemoteDescription(RTCSessionDescription(answer["sdp"], answer["type"]))
    async with asyncio.timeout(ANSWER_S):
        await opened.wait()
    control.send(json.dumps({"id": 1, "type": "hello", "version": 1}))


async def _watch(connection: RTCPeerConnection, track: Any, ledger: Ledger) -> None:
    """Note each decoded frame. aiortc counts pts from the first timestamp that it saw; the receiver knows which."""
    clock = asyncio.get_running_loop().time
    (receiver,) = (one for one in connection.getReceivers() if one.track is track)
    while True:
        try:
            frame = await track.recv()
        except MediaStreamError:
            return
        origin: int = receiver._RTCRtpReceiver__timestamp_mapper._origin
        ledger.frames.append(((frame.pts + origin) % WRAP, clock()))


def _action(world: dict[str, Any], shares: Sequence[float]) -> list[float]:
    bounds = zip(world["action"]["low"], world["action"]["high"], shares, strict=True)
    return [low + share * (high - low) for low, high, share in bounds]
