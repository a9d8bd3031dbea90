"""A recorded run replays: core decides the same again without a model, and the same plans give the same frames."""

from __future__ import annotations

import json

import numpy as np
import pytest

from physis_stream.core import commands
from physis_stream.core.commands import OpenSession, Pace
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.core.replay import Diverged
from physis_stream.models.tiny.weights import save_folder, tiny_random
from physis_stream.runtime.clock import RealClock
from physis_stream.runtime.engine_loop import build_engine
from physis_stream.runtime.messages import AskCommand
from physis_stream.runtime.trace import export_timeline, read_trace, recorded_config, replay_decisions, replay_trace
from physis_stream.worlds import load_world
from tests.oracles.player import Player, wander
from tests.oracles.reference import transparent


@pytest.fixture
def recording(tmp_path):
    """A run with everything in it: forks, a snapshot, a reset, an image, a session that leaves in the middle."""
    save_folder(tiny_random(window=3), tmp_path / "world")
    path = tmp_path / "run.trace"
    world = load_world(tmp_path / "world")
    player = Player(transparent(world), world=str(tmp_path / "world"), dtype="float32", threads=1, trace=str(path))
    player.open("a", seed=5)
    image = np.random.default_rng(0).integers(0, 255, (96, 96, 3), np.uint8)
    player.loop.ask(AskCommand(9000, OpenSession(SessionId("b"), 1, Pace.LOCKSTEP), image))
    player.listen("b")
    for action in wander(4):
        player.step(a=action, b=action)
    player.command(commands.ForkSession(SessionId("a"), (SessionId("c"),)))
    player.listen("c")
    player.command(commands.TakeSnapshot(SessionId("b"), SnapshotId("mark")))
    for action in wander(3, seed=1):
        player.queue("a", action)
        player.queue("c", action)
    player.run(turns=3)
    player.command(commands.CloseSession(SessionId("a")))
    player.command(commands.RestoreSnapshot(SessionId("b"), SnapshotId("mark")))
    player.command(commands.ResetSession(SessionId("c"), 8))
    for action in wander(2, seed=2):
        player.step(b=action, c=action)
    player.loop.close()
    return path


def test_core_decides_the_same_again_without_a_model(recording):
    replayed = replay_decisions(recording)
    assert replayed.num_plans > 10
    replayed.core.check_integrity()


def test_the_same_plans_give_the_same_frames(recording):
    report = replay_trace(recording, RealClock())
    assert report.agrees
    assert report.chunks > 15
    assert report.rows > report.chunks


def test_a_frame_that_differs_is_named(recording, tmp_path):
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    changed = next(line for line in lines if line["call"] == "chunk" and line["chunk"] == 3)
    changed["sha256"] = "0" * 64
    other = tmp_path / "other.trace"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = replay_trace(other, RealClock())
    assert report.differing == ((changed["session"], changed["epoch"], 3),)


def test_a_decision_that_differs_is_named(recording, tmp_path):
    lines = [json.loads(line) for line in recording.read_text().splitlines()]
    plan = next(line for line in lines if line["call"] == "schedule" and line["plan"]["rows"])
    plan["plan"]["rows"][0]["step"] += 1
    other = tmp_path / "other.trace"
    other.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(Diverged):
        replay_decisions(other)


def test_a_recording_that_was_cut_off_reads_up_to_the_cut(recording):
    whole = recording.read_text()
    recording.write_text(whole[: len(whole) // 2])
    assert 0 < len(list(read_trace(recording))) < len(whole.splitlines())


def test_what_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "no.trace"
    path.write_text('{"call": "submit"}\n')
    with pytest.raises(ValueError, match="no trace"):
        recorded_config(path)
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match="line 1 is not JSON"):
        recorded_config(path)


def test_the_timeline_shows_engine_and_sessions(recording, tmp_path):
    out = tmp_path / "timeline.json"
    count = export_timeline(recording, out)
    events = json.loads(out.read_text())["traceEvents"]
    assert len(events) == count
    names = {event["name"] for event in events}
    assert {"tick", "model", "decode", "chunk 1"} <= names
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")
    tracks = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"engine", "sessions", "a", "b", "c"} <= tracks


def test_recording_changes_nothing(recording):
    config = recorded_config(recording)
    assert config.trace is None
    build_engine(config, RealClock()).check_integrity()
