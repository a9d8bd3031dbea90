"""The asyncio client against the real server in the same loop: the twin of the blocking one."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import socket

import numpy as np
import pytest

import physis_client
from physis_client import (
    AsyncClient,
    AsyncSession,
    Capacity,
    Client,
    InvalidAction,
    InvalidState,
    NotFound,
    PhysisError,
    Session,
    SessionEnded,
    Timeout,
    Transport,
    Unauthorized,
)
from physis_stream.core.ids import SessionId
from physis_stream.testing.fake_service import FakeEngineService, start_of
from physis_stream.testing.serving import serving

from .conftest import WORLD


@pytest.fixture
async def here():
    """The engine and a client of the server over it."""
    engine = FakeEngineService(pace=0.2, max_sessions=8)
    async with serving(engine) as server, AsyncClient(server.url, timeout=5.0) as client:
        client.server = server
        yield engine, client


async def test_lockstep_steps_forks_snapshots_and_resets(here):
    _, client = here
    assert [world.name for world in await client.models()] == [WORLD]
    async with await client.open_session(WORLD, seed=3) as session:
        assert (await session.observe()).index == 0
        chunk = await session.step([0.5, 0.5])
        assert (chunk.index, chunk.frames.shape, chunk.applied) == (1, (3, 96, 96, 3), (1,))
        mark = await session.snapshot()
        one = await session.step([1.0, 1.0])
        twin, two = await session.fork(), await session.fork(2)
        assert len(two) == 2
        assert (await twin.step([-1.0, -1.0])).state["x"] < (await session.step([1.0, 1.0])).state["x"]
        await session.restore(mark)
        assert ((await session.step([1.0, 1.0])).frames == one.frames).all()
        first = await session.reset(seed=9)
        assert session.chunk is first
        assert (first.index, first.state["x"]) == (0, pytest.approx(start_of(9)[0]))


async def test_a_wrong_action_is_refused_before_anything_moves(here):
    engine, client = here
    session = await client.open_session(WORLD)
    place = engine.place_of(SessionId(session.id))
    for action in ([float("nan"), 0.0], [1.0], "ab", None, np.zeros((2, 2))):
        with pytest.raises(InvalidAction):
            await session.step(action)
    assert engine.place_of(SessionId(session.id)) == place


async def test_step_many_is_one_call(here):
    engine, client = here
    sessions = [await client.open_session(WORLD) for _ in range(3)]
    engine.calls.clear()
    chunks = await client.step_many(sessions, [[0.1, 0.0], [0.2, 0.0], [0.3, 0.0]])
    assert engine.calls.count("step_many") == 1
    assert [chunk.action[0] for chunk in chunks] == [0.1, 0.2, 0.3]
    with pytest.raises(InvalidState):
        await client.step_many(sessions, [[0.0, 0.0]])


async def test_many_sessions_step_side_by_side(here):
    _, client = here
    sessions = await asyncio.gather(*(client.open_session(WORLD) for _ in range(6)))
    chunks = await asyncio.gather(*(s.step([0.0, 0.0]) for s in sessions))
    assert [chunk.index for chunk in chunks] == [1] * 6


async def test_frames_stream_and_name_their_action(here):
    _, client = here
    async with await client.open_session(WORLD, mode="realtime") as session:
        coming = session.frames()
        await anext(coming)
        event = await session.act([1.0, 1.0])
        seen = [await anext(coming) for _ in range(12)]
        assert all(a.pts < b.pts for a, b in itertools.pairwise(seen))
        assert sum(event in frame.applied for frame in seen) == 3
        await session.interrupt()
        await session.set_prompt("a red square")


async def test_pause_is_patient_and_silence_is_a_timeout(here):
    engine, client = here
    async with await client.open_session(WORLD, mode="realtime") as session:
        coming = session.frames(timeout=0.3)
        await anext(coming)
        await session.pause()
        assert session.state == "paused"
        asyncio.get_running_loop().call_later(0.6, lambda: asyncio.ensure_future(session.resume()))
        [await anext(coming) for _ in range(9)]
        engine.crash()
        with pytest.raises(Timeout):
            [frame async for frame in coming]
        engine.alive = True


async def test_callbacks_are_awaited_one_after_the_other_and_may_use_the_session(here):
    _, client = here
    heard = []

    async def slowly(body):
        heard.append(("begin", body["state"]))
        await session.status()
        await asyncio.sleep(0.02)
        heard.append(("end", body["state"]))

    async with await client.open_session(WORLD, mode="realtime") as session:
        session.on("status", slowly)
        await session.pause()
        await session.resume()
        async with asyncio.timeout(3):
            while len(heard) < 4:
                await asyncio.sleep(0.01)
                continue
        assert heard == [("begin", "paused"), ("end", "paused"), ("begin", "streaming"), ("end", "streaming")]


async def test_the_end_is_told_to_callbacks_and_ends_the_loop(here):
    engine, client = here
    ended = asyncio.get_running_loop().create_future()
    session = await client.open_session(WORLD, mode="realtime")
    session.on("ended", lambda body: ended.set_result(body["reason"]))
    coming = session.frames()
    await anext(coming)
    await engine.close_session(SessionId(session.id), "evicted")
    assert await asyncio.wait_for(ended, 3.0) == "evicted"
    with pytest.raises(SessionEnded) as caught:
        [frame async for frame in coming]
    assert caught.value.reason == "evicted"
    with pytest.raises(SessionEnded):
        await session.act([0.0, 0.0])


async def test_close_is_idempotent_and_ends_the_loop(here):
    engine, client = here
    session = await client.open_session(WORLD, mode="realtime")
    coming = session.frames()
    await anext(coming)
    await session.close()
    await session.close()
    assert engine.live_sessions() == []
    assert len([frame async for frame in coming]) <= 2


async def test_the_queue_is_waited_for(here):
    engine, client = here
    engine.max_sessions = 1
    first = await client.open_session(WORLD)
    with pytest.raises(Capacity):
        await client.open_session(WORLD, wait=False)
    waiting = asyncio.create_task(client.open_session(WORLD))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await first.close()
    second = await asyncio.wait_for(waiting, 3.0)
    with pytest.raises(Timeout):
        await client.open_session(WORLD, queue_timeout=0.2)
    assert engine.live_sessions() == [second.id]


async def test_a_session_is_taken_up_by_id_and_token(here):
    _, client = here
    session = await client.open_session(WORLD)
    assert await client.session(session.id) is session
    async with AsyncClient(client.server.url) as other:
        again = await other.session(session.id, session.token)
        assert (await again.step([0.0, 0.0])).index == 1
        with pytest.raises(Unauthorized):
            await other.session(session.id, "wrong")
        with pytest.raises(NotFound):
            await other.session("0" * 32, "x")


async def test_an_abandoned_session_can_be_taken_up_again(here):
    _, client = here
    session = await client.open_session(WORLD)
    await session.abandon()
    again = await client.session(session.id, session.token)
    assert (await again.step([0.0, 0.0])).index == 1
    assert (await client.stats())["sessions"] == 1


async def test_a_slow_call_is_a_timeout_and_the_session_goes_on(here):
    engine, client = here
    session = await client.open_session(WORLD)
    engine.delay_s["step_many"] = 0.4
    with pytest.raises(Timeout):
        await session.step([0.0, 0.0], timeout=0.1)
    del engine.delay_s["step_many"]
    assert (await session.step([0.0, 0.0])).index == 2


async def test_a_cut_connection_is_transport_and_the_next_call_reconnects(here):
    engine, client = here
    session = await client.open_session(WORLD)
    engine.delay_s["step_many"] = 0.3
    asyncio.get_running_loop().call_later(0.1, lambda: session._link._socket.transport.abort())
    with pytest.raises(Transport):
        await session.step([0.0, 0.0], timeout=3.0)
    del engine.delay_s["step_many"]
    assert (await session.step([0.0, 0.0])).index >= 1


async def test_a_server_that_stops_ends_every_call_with_a_typed_error():
    engine = FakeEngineService(pace=0.2)
    async with serving(engine) as server:
        client = AsyncClient(server.url, timeout=3.0)
        session = await client.open_session(WORLD, mode="realtime")

        async def loop():
            async for _ in session.frames():
                pass

        looping = asyncio.create_task(loop())
        await session.observe()
    with pytest.raises((SessionEnded, Transport)):
        await asyncio.wait_for(looping, 3.0)
    with pytest.raises(Transport):
        await client.models()
    await client.close()


async def test_a_wrong_host_fails_within_the_timeout():
    clock = asyncio.get_running_loop().time
    began = clock()
    async with AsyncClient("http://127.0.0.1:1", timeout=2.0) as nowhere:
        with pytest.raises(Transport):
            await nowhere.models()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        async with AsyncClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3) as waiting:
            with pytest.raises(Timeout):
                await waiting.models()
    assert clock() - began < 3.0


async def test_cancelling_a_call_leaves_the_session_usable(here):
    engine, client = here
    session = await client.open_session(WORLD)
    engine.delay_s["step_many"] = 0.3
    step = asyncio.create_task(session.step([0.0, 0.0]))
    await asyncio.sleep(0.1)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    del engine.delay_s["step_many"]
    assert (await session.step([0.0, 0.0])).index == 2


# The twins


def public(cls):
    return {name for name, _ in inspect.getmembers(cls) if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "asynchronous"), [(Client, AsyncClient), (Session, AsyncSession)])
def test_the_two_clients_have_the_same_names_and_arguments(blocking, asynchronous):
    assert public(blocking) == public(asynchronous)
    for name in public(blocking):
        one, other = getattr(blocking, name), getattr(asynchronous, name)
        if callable(one) and callable(other):
            assert list(inspect.signature(one).parameters) == list(inspect.signature(other).parameters), name


def test_the_public_names_are_these():
    assert set(physis_client.__all__) == {
        "AsyncClient", "AsyncSession", "Capacity", "Chunk", "Client", "Frame", "InvalidAction", "InvalidState",
        "NotFound", "PhysisError", "Session", "SessionEnded", "SessionStatus", "Timeout", "TooLarge", "Transport",
        "Unauthorized",
        "VersionMismatch", "World",
    }  # fmt: skip
    families = [getattr(physis_client, name) for name in physis_client.__all__]
    assert sum(isinstance(f, type) and issubclass(f, PhysisError) for f in families) == 11


def test_the_client_comes_without_the_server_and_without_torch():
    import subprocess
    import sys

    code = (
        "import sys, physis_client; from physis_client import wire;"
        "print([m for m in ('torch', 'aiortc', 'av', 'starlette', 'physis_stream') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
