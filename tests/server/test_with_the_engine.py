"""The whole path with a real engine of random weights behind it: what the fake promises, the engine keeps."""

from __future__ import annotations

import asyncio
import itertools
import time

import numpy as np
import pytest
import torch

from physis_client import AsyncClient, Client, InvalidAction, InvalidState
from physis_client.webrtc import WebRtcPeer
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_loop import EngineLoop
from physis_stream.runtime.engine_thread import ThreadEngine
from physis_stream.runtime.served_model import serve
from physis_stream.testing.serving import serving, serving_in_thread

MIDDLE = [256.0, 256.0]
CORNER = [10.0, 500.0]


def build(config, clock):
    """A small world of random weights, on one thread."""
    torch.set_num_threads(1)
    return EngineLoop(serve(tiny_random(size=48, width=32, num_heads=2)), config, clock)


def engine():
    return ThreadEngine(EngineConfig(threads=1, max_sessions=8), build=build)


@pytest.fixture(scope="module")
def client():
    with serving_in_thread(engine()) as server, Client(server.url, timeout=20.0) as made:
        yield made


@pytest.fixture
def world(client):
    return client.models()[0].name


def gone(client):
    """Wait until the engine holds nothing any more."""
    deadline = time.monotonic() + 5.0
    while (left := {k: client.stats()[k] for k in ("sessions", "queued", "pages_used")}) and any(left.values()):
        assert time.monotonic() < deadline, left
        time.sleep(0.02)


def test_lockstep_is_deterministic_and_retries_bring_the_same_chunk(client, world):
    with client.open_session(world, seed=1) as a, client.open_session(world, seed=1) as b:
        assert (a.chunk.index, a.chunk.frames.shape) == (0, (1, 48, 48, 3))
        for index in range(1, 9):
            one, other = a.step(CORNER), b.step(CORNER)
            assert one.index == other.index == index
            assert (one.frames == other.frames).all()
            assert one.applied == (index,)
        assert not (a.step(MIDDLE).frames == b.step(CORNER).frames).all()
        again = a._ask("step", {"event": 9, "action": MIDDLE})["chunk"]
        assert (again["frames"] == a.chunk.frames).all()
    gone(client)


def test_forks_snapshots_and_resets_over_the_wire(client, world):
    with client.open_session(world, seed=2) as session:
        session.step(CORNER)
        twin = session.fork()
        mark = session.snapshot()
        one = session.step(CORNER)
        assert (twin.step(CORNER).frames == one.frames).all()
        session.step(MIDDLE)
        session.restore(mark)
        assert (session.step(CORNER).frames == one.frames).all()
        first = session.reset(seed=2)
        assert (first.index, first.epoch) == (0, 2)
        assert (session.step(CORNER).index, session.chunk.epoch) == (1, 2)
        twin.close()
    gone(client)


def test_many_step_in_one_call_as_each_would_alone(client, world):
    sessions = [client.open_session(world, seed=n) for n in range(4)]
    alone = [client.open_session(world, seed=n) for n in range(4)]
    for actions in ([CORNER] * 4, [MIDDLE, CORNER, MIDDLE, CORNER]):
        together = client.step_many(sessions, actions)
        for chunk, session, action in zip(together, alone, actions, strict=True):
            difference = np.abs(chunk.frames.astype(int) - session.step(action).frames.astype(int))
            assert difference.max() <= 2, "batches may round differently"
    with pytest.raises(InvalidAction):
        client.step_many(sessions, [MIDDLE] * 3 + [[float("nan"), 0.0]])
    assert [s.step(MIDDLE).index for s in sessions] == [3] * 4
    for session in sessions + alone:
        session.close()
    gone(client)


def test_a_realtime_session_streams_applies_pauses_and_ends(client, world):
    with client.open_session(world, seed=3, mode="realtime") as session:
        coming = session.frames()
        event = session.act(CORNER)
        seen = [next(coming) for _ in range(8)]
        assert [b.frame_id - a.frame_id for a, b in itertools.pairwise(seen)] == [1] * 7
        assert sum(event in frame.applied for frame in seen) == 1
        session.pause()
        with pytest.raises(InvalidState):
            session.step(MIDDLE)
        session.resume()
        next(coming)
    gone(client)


async def test_a_peer_sees_the_world_and_a_reset_flushes_it():
    async with serving(engine()) as server, AsyncClient(server.url, timeout=20.0) as client:
        name = (await client.models())[0].name
        session = await client.open_session(name, seed=4, mode="realtime")
        async with await WebRtcPeer.connect(server.url, session.id, session.token) as peer:
            coming = peer.frames()
            frame = await anext(coming)
            assert frame.rgb.shape == (96, 96, 3)
            peer.act(1, CORNER)
            await peer.wait(lambda: any(1 in t["applied"] for t in peer.telemetry))
            assert (await peer.request("reset", seed=5))["session"]["epoch"] == 1
            peer.telemetry.clear()
            await peer.wait(lambda: len(peer.telemetry) > 2)
            assert {t["epoch"] for t in peer.telemetry} == {1}
            ids = [t["frame_id"] for t in peer.telemetry]
            assert ids == sorted(set(ids))
        await session.close()
        async with asyncio.timeout(5.0):
            while (await client.stats())["pages_used"]:
                await asyncio.sleep(0.02)
                continue
