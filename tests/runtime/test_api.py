"""The engine in one's own process: what a script or a notebook sees."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import physis_stream
from physis_client import errors
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.runtime.clock import ManualClock

WORLD = tiny_random(window=3)


@pytest.fixture
def engine():
    with physis_stream.Engine(WORLD, max_sessions=8, deterministic=True, clock=ManualClock(tick_ns=1000)) as made:
        yield made


def test_a_session_steps_and_says_what_it_shows(engine):
    with engine.open_session(seed=0) as session:
        assert session.chunk.index == 0
        chunk = session.step([30.0, 40.0])
        assert chunk.frames.shape == (1, 96, 96, 3)
        assert chunk.frames.dtype == np.uint8
        assert (chunk.index, chunk.first_frame_id, chunk.action) == (1, 1, (30.0, 40.0))
        assert set(chunk.state) == set(WORLD.profile.readout.names)
        assert session.chunk.index == 1
        assert session.step(np.array([1, 2])).action == (1.0, 2.0)
    assert session.status().state == "ended"
    session.close()
    with pytest.raises(errors.SessionEnded):
        session.step([1.0, 1.0])


def test_forks_snapshots_and_resets_agree_with_each_other(engine):
    session = engine.open_session(seed=4)
    session.step([1.0, 2.0])
    twin, mark = session.fork(), session.snapshot()
    ahead = session.step([3.0, 4.0])
    assert np.array_equal(twin.step([3.0, 4.0]).frames, ahead.frames)
    session.restore(mark)
    assert np.array_equal(session.step([3.0, 4.0]).frames, ahead.frames)
    twin.restore(mark)
    assert np.array_equal(twin.step([3.0, 4.0]).frames, ahead.frames)
    first = session.reset(seed=4)
    assert (first.index, first.epoch) == (0, 2)
    session.step([1.0, 2.0])
    assert np.array_equal(session.step([3.0, 4.0]).frames, ahead.frames)
    several = session.fork(3)
    assert len({one.id for one in several}) == 3
    session.drop_snapshot(mark)
    with pytest.raises(errors.NotFound):
        session.restore(mark)


def test_one_batched_call_moves_many_sessions(engine):
    sessions = [engine.open_session(seed=seed) for seed in range(4)]
    chunks = engine.step_many(sessions, np.full((4, 2), 9.0))
    assert [chunk.index for chunk in chunks] == [1] * 4
    assert {chunk.timing["batch_rows"] for chunk in chunks} == {4.0}
    with pytest.raises(errors.InvalidAction):
        engine.step_many(sessions, [[1.0, 1.0]] * 3)
    with pytest.raises(errors.InvalidAction):
        engine.step_many(sessions, [[1.0, 1.0]] * 3 + [[1.0, float("nan")]])
    assert [session.chunk.index for session in sessions] == [1] * 4


@pytest.mark.parametrize("bad", [[1.0], [1.0, float("inf")], "ab", [[1.0, 2.0]], None, ["a", "b"]])
def test_a_wrong_action_is_refused_before_anything_changes(engine, bad):
    session = engine.open_session()
    with pytest.raises(errors.InvalidAction):
        session.step(bad)
    assert session.step([1.0, 1.0]).index == 1


def test_errors_are_the_clients_families(engine):
    session = engine.open_session()
    with pytest.raises(errors.InvalidState):
        engine.open_session(mode="sometimes")
    with pytest.raises(errors.InvalidState):
        session.act([1.0, 1.0])
    with pytest.raises(errors.NotFound):
        session.restore("0" * 32)
    with pytest.raises(errors.Capacity) as full:
        session.fork(40)
    assert full.value.code == "capacity"
    assert full.value.retry_after_s is not None
    for _ in range(7):
        engine.open_session()
    with pytest.raises(errors.Capacity):
        engine.open_session()
    assert engine.stats().sessions == 8
    with pytest.raises(ValueError, match="no world"):
        physis_stream.Engine("/nowhere")


def test_an_image_is_the_first_frame(engine):
    image = np.full((96, 96, 3), 90, np.uint8)
    with engine.open_session(image=image) as one, engine.open_session(image=image, seed=9) as other:
        assert np.array_equal(one.chunk.frames, other.chunk.frames)
    with pytest.raises(errors.InvalidAction):
        engine.open_session(image=image[:50])
    assert engine.stats().sessions == 0


def test_realtime_frames_come_one_chunk_time_apart_and_end_with_the_session(engine):
    session = engine.open_session(mode="realtime")
    notices = []
    session.on("ended", notices.append)
    event, seen, times = session.act([100.0, 100.0]), [], []
    for frame in session.frames():
        seen.append(frame)
        times.append(engine._clock.now_ns())
        if len(seen) == 6:
            session.close()
    assert [frame.frame_id for frame in seen[:6]] == list(range(6))
    assert seen[3].pts == pytest.approx(0.3)
    assert event in [applied for frame in seen for applied in frame.applied]
    assert np.diff(times)[2:5] == pytest.approx(1e8, rel=0.5)
    assert notices == [{"reason": "closed"}]


def test_pause_and_resume(engine):
    session = engine.open_session(mode="realtime")
    session.pause()
    assert session.status().state == "paused"
    session.resume()
    assert session.status().state == "streaming"
    assert next(session.frames()).frame_id == 0


def test_another_thread_may_steer_while_one_waits_for_frames():
    with physis_stream.Engine(WORLD, max_sessions=2) as engine, engine.open_session(mode="realtime") as session:
        session.pause()
        seen = []

        def watch():
            for frame in session.frames():
                seen.append(frame)
                if len(seen) == 4:
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        session.resume()
        event = session.act([9.0, 9.0])
        watcher.join(30)
        assert len(seen) == 4
        assert event in [applied for frame in seen for applied in frame.applied]


def test_threads_take_turns(engine):
    sessions = [engine.open_session(seed=seed) for seed in range(4)]
    done = []

    def play(session):
        done.append([session.step([5.0, 6.0]).index for _ in range(5)])

    threads = [threading.Thread(target=play, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [[1, 2, 3, 4, 5]] * 4


def test_the_package_imports_without_torch_until_the_engine_is_asked_for():
    import subprocess
    import sys

    code = (
        "import sys, physis_stream; assert 'torch' not in sys.modules; "
        "physis_stream.Engine; assert 'torch' in sys.modules"
    )
    root = physis_stream.__path__[0].rsplit("/", 1)[0]
    environment = {"PYTHONPATH": f"{root}:{root}/clients/python", "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
    with pytest.raises(AttributeError):
        _ = physis_stream.nothing
