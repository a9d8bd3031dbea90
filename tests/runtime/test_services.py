"""Both engines behind the service: the same calls, the same answers; and what each does when its engine dies."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import numpy as np
import psutil
import pytest
import pytest_asyncio

from physis_stream.core.commands import Pace
from physis_stream.core.errors import (
    Capacity,
    EngineDown,
    InvalidAction,
    InvalidState,
    NotFound,
    SessionEnded,
)
from physis_stream.models.tiny.weights import save_folder, tiny_random
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_process import ProcessEngine
from physis_stream.runtime.engine_thread import ThreadEngine
from physis_stream.runtime.service import ChunkOut, Notice, OpenRequest

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("worlds") / "tiny"
    save_folder(tiny_random(window=3), folder)
    return str(folder)


def config(world: str, **options) -> EngineConfig:
    return EngineConfig(world=world, threads=1, dtype="float32", **options)


@pytest_asyncio.fixture(
    params=[ThreadEngine, ProcessEngine], ids=["thread", "process"], scope="module", loop_scope="module"
)
async def service(request, world):
    """One engine of each kind serves all tests here, as one engine serves all users."""
    made = request.param(config(world, max_sessions=40))
    await made.start()
    yield made
    await made.stop()


@pytest_asyncio.fixture(loop_scope="module")
async def process(world):
    made = ProcessEngine(config(world))
    await made.start()
    yield made
    await made.stop()


async def until(fact, timeout_s: float = 60.0) -> None:
    """Wait for a fact that another process brings about."""
    async with asyncio.timeout(timeout_s):
        while not fact():  # noqa: ASYNC110 (nobody announces it)
            await asyncio.sleep(0.02)


async def open_session(service, pace: Pace = Pace.LOCKSTEP, seed: int = 0, **options) -> str:
    request = OpenRequest(world=service.worlds()[0].name, seed=seed, pace=pace, **options)
    return (await service.open_session(request)).session


async def test_one_story_through_every_call(service):
    before = (await service.stats()).sessions
    session = await open_session(service, seed=3)
    first = await service.step(session, 1, [10.0, 20.0])
    assert (first.chunk, first.applied, first.action) == (1, (1,), (10.0, 20.0))
    assert first.frames.shape == (1, 96, 96, 3)
    mark = await service.snapshot(session)
    (twin,) = await service.fork(session, 1)
    ahead, copied = await service.step_many([session, twin.session], [2, 1], [[5.0, 5.0], [5.0, 5.0]])
    assert np.array_equal(ahead.frames, copied.frames)
    restored = await service.restore(session, mark)
    assert restored.epoch == 1
    assert np.array_equal((await service.step(session, 3, [5.0, 5.0])).frames, ahead.frames)
    assert (await service.reset(session, 3)).epoch == 2
    assert np.array_equal((await service.step(session, 4, [10.0, 20.0])).frames, first.frames)
    assert (await service.status(session)).state == "streaming"
    await service.close_session(session, "enough")
    await service.close_session(session)
    assert (await service.status(session)).ended_reason == "enough"
    with pytest.raises(SessionEnded):
        await service.step(session, 5, [1.0, 1.0])
    stats = await service.stats()
    assert stats.alive
    assert stats.sessions == before + 1
    assert stats.heartbeat_age_s < 5


async def test_refusals_have_their_types_and_change_nothing(service):
    session = await open_session(service)
    for bad in ([1.0], [1.0, float("nan")], ["x", "y"], [[1.0, 2.0]]):
        with pytest.raises(InvalidAction):
            await service.step(session, 1, bad)
    with pytest.raises(InvalidState):
        await service.control(session, 1, [1.0, 1.0])
    with pytest.raises(NotFound):
        await service.status("0" * 32)
    with pytest.raises(NotFound):
        await service.open_session(OpenRequest(world="elsewhere", seed=0, pace=Pace.LOCKSTEP))
    with pytest.raises(NotFound):
        await service.subscribe("0" * 32).__anext__()
    with pytest.raises(Capacity):
        await service.fork(session, 50)
    assert (await service.step(session, 1, [1.0, 1.0])).chunk == 1


async def test_a_subscriber_begins_with_the_newest_chunk_and_ends_with_the_end(service):
    session = await open_session(service)
    await service.step(session, 1, [1.0, 1.0])
    outputs = service.subscribe(session)
    newest = await anext(outputs)
    assert isinstance(newest, ChunkOut)
    assert newest.chunk == 1
    second = service.subscribe(session)
    assert (await anext(second)).chunk == 1
    await service.close_session(session, "done")
    rest = [item async for item in outputs]
    assert isinstance(rest[-1], Notice)
    assert (rest[-1].kind, rest[-1].detail["reason"]) == ("ended", "done")
    assert [item async for item in second][-1].kind == "ended"
    late = [item async for item in service.subscribe(session)]
    assert [item.kind for item in late] == ["ended"]


async def test_a_slow_subscriber_loses_the_oldest_chunks_and_no_notice(service):
    session = await open_session(service)
    outputs = service.subscribe(session, max_chunks=2)
    await anext(outputs)
    for event in range(1, 8):
        await service.step(session, event, [1.0, 1.0])
    await service.close_session(session)
    rest = [item async for item in outputs]
    assert [item.chunk for item in rest if isinstance(item, ChunkOut)] == [6, 7]
    assert {item.kind for item in rest if isinstance(item, Notice)} >= {"status", "ended"}


async def test_after_a_reset_is_answered_no_older_chunk_is_handed_out(service):
    session = await open_session(service, Pace.REALTIME)
    outputs = service.subscribe(session, max_chunks=8)
    while not (isinstance(item := await anext(outputs), ChunkOut) and item.chunk >= 2):
        pass
    await service.reset(session, 1)
    while not isinstance(item := await anext(outputs), ChunkOut):
        pass
    assert item.epoch == 1


async def test_a_realtime_session_keeps_time_and_applies_controls(service):
    session = await open_session(service, Pace.REALTIME)
    await service.control(session, 1, [500.0, 500.0])
    outputs, applied, chunks = service.subscribe(session), [], 0
    while chunks < 5:
        item = await anext(outputs)
        if isinstance(item, ChunkOut):
            chunks += 1
            applied += item.applied
    assert applied == [1]
    assert (await service.pause(session)).state == "paused"
    assert (await service.resume(session)).state == "streaming"


async def test_what_cannot_be_served_is_said_when_starting(world, tmp_path):
    for kind in (ThreadEngine, ProcessEngine):
        missing = kind(config(str(tmp_path / "nowhere")))
        with pytest.raises(ValueError, match="nowhere"):
            await missing.start()
        await missing.stop()
        with pytest.raises(EngineDown):
            await open_session_of(missing)


async def open_session_of(service) -> None:
    await service.open_session(OpenRequest(world="x", seed=0, pace=Pace.LOCKSTEP))


async def test_a_loop_that_breaks_ends_every_session_with_a_notice(world):
    from physis_stream.runtime.engine_loop import build_engine

    engines = []

    def build(config, clock):
        engines.append(build_engine(config, clock))
        return engines[0]

    service = ThreadEngine(config(world), build=build)
    await service.start()
    session = await open_session(service)
    outputs = service.subscribe(session)
    await anext(outputs)

    def break_down():
        raise AssertionError("an invariant does not hold")

    engines[0].turn = break_down
    with pytest.raises(EngineDown):
        await service.step(session, 1, [1.0, 1.0])
    assert [item async for item in outputs][-1].kind == "ended"
    with pytest.raises(SessionEnded):
        await service.step(session, 2, [1.0, 1.0])
    assert not (await service.stats()).alive
    await service.stop()


# The process of its own


async def test_a_killed_child_is_noticed_within_a_second_and_replaced(process):
    session = await open_session(process)
    outputs = process.subscribe(session)
    await anext(outputs)
    first = process.process_id
    stopped = psutil.Process(first)
    stopped.suspend()
    under_way = asyncio.create_task(process.step(session, 1, [1.0, 1.0]))
    await asyncio.sleep(0)
    began = time.monotonic()
    os.kill(first, signal.SIGKILL)
    with pytest.raises(EngineDown):
        await under_way
    rest = [item async for item in outputs]
    assert time.monotonic() - began < 1.0
    assert [item.kind for item in rest if isinstance(item, Notice)][-2:] == ["error", "ended"]
    with pytest.raises(EngineDown):
        await open_session(process)
    with pytest.raises(SessionEnded):
        await process.step(session, 2, [1.0, 1.0])
    assert not (await process.stats()).alive
    await until(lambda: process.process_id not in (None, first))
    again = await open_session(process)
    assert (await process.step(again, 1, [1.0, 1.0])).chunk == 1
    assert (await process.stats()).sessions == 1


async def test_a_child_that_keeps_dying_is_not_restarted_for_ever(world, monkeypatch):
    from physis_stream.runtime import engine_process

    monkeypatch.setattr(engine_process, "MAX_RESTARTS", 1)
    service = ProcessEngine(config(world))
    await service.start()
    os.kill(service.process_id, signal.SIGKILL)
    await until(lambda: "stays down" in service._down)
    with pytest.raises(EngineDown, match="stays down"):
        await open_session(service)
    await service.stop()


async def test_stopping_leaves_no_process_and_no_shared_memory(world):
    service = ProcessEngine(config(world))
    await service.start()
    child, ring = psutil.Process(service.process_id), service._child.ring.name
    assert ring in os.listdir("/dev/shm")
    session = await open_session(service, Pace.REALTIME)
    await anext(service.subscribe(session))
    await service.stop()
    await service.stop()
    assert not child.is_running()
    assert ring not in os.listdir("/dev/shm")
    with pytest.raises(EngineDown):
        await open_session(service)


async def test_a_child_that_hangs_is_killed_and_replaced(world, monkeypatch):
    from physis_stream.runtime import engine_process

    monkeypatch.setattr(engine_process, "HANG_S", 1.0)
    service = ProcessEngine(config(world))
    await service.start()
    session = await open_session(service)
    hung = service.process_id
    psutil.Process(hung).suspend()
    with pytest.raises(EngineDown):
        await service.step(session, 1, [1.0, 1.0])
    await until(lambda: service.process_id not in (None, hung))
    assert (await service.step(await open_session(service), 1, [1.0, 1.0])).chunk == 1
    await service.stop()
