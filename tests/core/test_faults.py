"""Faults that other engines shipped, each by its public report; here each kind is impossible, and this is the proof.

(VO = vllm-project/vllm-omni, SG = sgl-project/sglang, FD = NVIDIA/flashdreams; see docs/engine.md.)
"""

from __future__ import annotations

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.actions import MAX_LISTED_IDS
from physis_stream.core.commands import Pace
from physis_stream.core.errors import InvalidState, NotFound, SessionEnded
from physis_stream.core.events import ChunkReady, ControlIgnored, RequestDropped, SessionClosed, SessionFailed
from physis_stream.core.frame_queue import FrameQueue
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.core.kv_pages import Retention
from physis_stream.core.limits import Limits
from physis_stream.core.plan import CloneState, DropState, StartState
from physis_stream.core.roster import MAX_REMEMBERED_ENDS
from physis_stream.testing.fake_executor import FakeCosts
from tests.core.stage import DISCIPLINES

A = SessionId("a")


def test_vo5295_the_thousandth_session_finds_as_much_room_as_the_first(stage_of):
    """There: every session kept blocks that were never freed; the fifth client failed for ever."""
    stage = stage_of(limits=Limits(max_sessions=2))
    for index in range(1000):
        name = f"s{index}"
        stage.open(name)
        stage.step(name, 0.1, 0.2)
        for _ in range(index % 6):
            stage.tick()
        stage.close(name)
    stage.check_empty()


@pytest.mark.parametrize("ended", [True, False])
def test_vo5388_no_command_brings_a_closed_or_unknown_session_to_life(stage, ended):
    """There: an update for a closed session brought it back."""
    if ended:
        stage.open("a")
        stage.run_idle()
        stage.close("a")
        stage.run_idle()
    commands = [
        cmd.SubmitControl(A, EventId(1), (0.1,)),
        cmd.StepChunk(A, EventId(1), (0.1,)),
        cmd.ResetSession(A, 1),
        cmd.PauseSession(A),
        cmd.SuspendSession(A),
        cmd.ResumeSession(A),
        cmd.ForkSession(A, (SessionId("b"),)),
        cmd.TakeSnapshot(A, SnapshotId("m")),
        cmd.RestoreSnapshot(A, SnapshotId("m")),
        cmd.ReportPlayout(A, 5),
    ]
    for command in commands:
        with pytest.raises(SessionEnded if ended else NotFound):
            stage.submit(command)
    assert stage.core.stats().sessions == 0
    assert stage.run_idle() == 0


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_sg36475_work_of_a_client_that_left_in_mid_chunk_is_not_committed(stage_of, discipline):
    """There: the aborted work was committed all the same, KV leaked, and the scheduler died."""
    stage = stage_of(discipline)
    for name in "ab":
        stage.open(name)
        stage.step(name, *[0.1] * 6)
    for _ in range(4):
        stage.tick()
    stage.start_tick()
    made = len(stage.chunks("a"))
    stage.close("a")
    stage.run_idle()
    assert len(stage.chunks("a")) == made
    assert len(stage.chunks("b")) == 7
    retention = Retention.of(stage.core.specs[0])
    assert stage.core.stats().pages_used <= retention.pages_at_boundary


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("sink", [0, 1, 2])
def test_fd520_the_window_never_shows_a_chunk_twice_or_leaves_one_out(stage_of, discipline, sink):
    """There: the count saturated and the rolled window showed the previous chunk twice; finite, silent, wrong."""
    stage = stage_of(discipline, window=3, sink=sink)
    stage.open("a")
    stage.walk("a", *[0.1] * 30)
    for plan in stage.plans:
        for row in plan.rows:
            seen = [chunk.chunk for chunk in row.context]
            window = list(range(max(0, row.chunk - 3), row.chunk))
            sinks = [chunk for chunk in range(min(sink, row.chunk)) if chunk < row.chunk - 3]
            assert seen == sinks + window
            assert [chunk.position for chunk in row.context] == list(range(len(seen)))
            assert len({page for chunk in row.context for page in chunk.pages}) == 2 * len(seen)


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_fd318_vo6838_positions_stay_small_however_long_a_session_lives(stage_of, discipline):
    """There: a table of 1,024 positions overflowed at chunk 341, or positions followed the buffer slot."""
    stage = stage_of(discipline, window=2, sink=1)
    stage.open("a")
    for _ in range(20):
        stage.walk("a", *[0.1] * 50)
    last = [row for plan in stage.plans for row in plan.rows if row.chunk == 1000]
    assert last
    assert {row.position for row in last} == {3}


def test_vo6132_what_was_acknowledged_is_applied_or_said_to_be_dropped(stage):
    """There: an update was acknowledged and never applied."""
    stage.open("a", pace=Pace.REALTIME)
    stage.open("b")
    stage.run_for(0.3)
    prompt = stage.control("a", prompt="rain")
    move = stage.control("a", 0.5)
    steps = stage.step("b", *[0.1] * 5)
    stage.run_until(stage.now_ns + 1)
    stage.reset("b")
    stage.run_for(0.5)
    applied = {event for fact in stage.told(ChunkReady) for event in fact.applied}
    dropped = {int(fact.key) for fact in stage.told(RequestDropped, "b")}
    assert {prompt, move} <= applied
    assert set(steps) <= applied | dropped


def test_vo6443_a_step_that_is_sent_again_does_not_make_a_second_chunk(stage):
    """There: a client retried a tick whose state was gone."""
    stage.open("a")
    stage.submit(cmd.StepChunk(A, EventId(7), (0.5,)))
    assert stage.submit(cmd.StepChunk(A, EventId(7), (0.5,))) == (ControlIgnored(A, EventId(7), EventId(7)),)
    stage.run_idle()
    assert stage.submit(cmd.StepChunk(A, EventId(7), (0.5,))) == (ControlIgnored(A, EventId(7), EventId(7)),)
    stage.run_idle()
    assert [chunk.applied for chunk in stage.chunks("a")] == [(), (7,)]


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_vo6646_fd84_the_engine_never_runs_ahead_so_control_is_fresh(stage_of, discipline):
    """There: the engine ran ahead as fast as it could, and input showed seconds late."""
    costs = FakeCosts(base_ns=1_000_000, row_ns=1_000_000)
    stage = stage_of(discipline, costs=costs)
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(10.0)
    chunks = [chunk for chunk in stage.chunks("a") if chunk.due_ns is not None]
    assert 98 <= len(chunks) <= 101
    for chunk in chunks[3:]:
        assert chunk.due_ns - chunk.opened_ns <= 30_000_000, "a chunk that takes 8 ms opens at most 30 ms early"
    assert stage.core.stats().late_chunks == 0


def test_vo6646_control_that_comes_just_before_a_chunk_opens_is_in_it(stage_of):
    stage = stage_of(costs=FakeCosts(base_ns=1_000_000, row_ns=1_000_000))
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(1.0)
    for _ in range(20):
        wake = stage.core.next_wake_ns(stage.now_ns)
        stage.clock.advance_to(wake - 1)
        event = stage.control("a", 0.5)
        made = len(stage.chunks("a"))
        stage.run_for(0.1)
        assert event in stage.chunks("a")[made].applied


def test_vllm50860_a_session_keeps_nothing_that_grows_with_its_age(stage):
    """There: a session kept its raw frames for ever."""
    stage.open("a")
    sizes = []
    for _ in range(4):
        stage.walk("a", *[0.1] * 60)
        session = stage.core._roster.find(A)
        parts = (session.agenda, session.in_flight, session.waiting, stage.core._flow._wakes)
        sizes.append((stage.core.stats().pages_used, *map(len, parts), session.inbox.num_waiting))
    assert len(set(sizes)) == 1


def test_vllm50860_ended_sessions_leave_a_bounded_memory_of_their_ids(stage):
    for index in range(3 * MAX_REMEMBERED_ENDS):
        stage.open(f"s{index}")
        stage.close(f"s{index}")
    roster = stage.core._roster
    assert len(roster._ends) == MAX_REMEMBERED_ENDS
    assert not roster.sessions
    assert not roster._families


def test_vllm50860_a_flood_of_control_to_a_paused_session_takes_bounded_memory(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.3)
    stage.pause("a")
    for _ in range(5000):
        stage.control("a", 0.1, "rain")
    assert stage.core._roster.find(A).inbox.num_waiting <= 2 * MAX_LISTED_IDS


def test_vo3592_many_streams_do_not_make_everybody_stutter(stage_of):
    """There: too many active streams were let in, and all of them stuttered."""
    costs = FakeCosts(base_ns=2_000_000, row_ns=1_000_000, decode_ns=300_000)
    stage = stage_of(limits=Limits(max_sessions=100, max_queued=100), costs=costs)
    for index in range(60):
        stage.open(f"s{index}", pace=Pace.REALTIME)
        stage.run_for(0.05)
    stage.run_for(20.0)
    stats = stage.core.stats()
    assert stats.queued > 0
    assert stats.late_chunks <= 0.01 * stats.chunks


def test_vo3860_the_batch_width_follows_the_device_and_not_a_constant(stage_of):
    """There: a batch size that was right on one device was fixed for all."""
    widths = {}
    for row_ns in (100_000, 4_000_000):
        stage = stage_of(limits=Limits(max_rows=64), costs=FakeCosts(base_ns=1_000_000, row_ns=row_ns))
        stage.open("live", pace=Pace.REALTIME)
        for index in range(40):
            stage.open(f"s{index}")
        stage.run_for(1.0)
        for index in range(40):
            stage.step(f"s{index}", *[0.1] * 6)
        begun = len(stage.plans)
        stage.run_for(0.5)
        widths[row_ns] = max(len(plan.rows) for plan in stage.plans[begun:])
        assert stage.core.stats().late_chunks <= 2
    assert widths[100_000] > 4 * widths[4_000_000]


def test_sdv2_nothing_of_a_session_survives_its_reset(stage_of):
    """There: eviction order lived on the attention module and the first-frame flag on the VAE, over resets."""
    stage, fresh = stage_of(sink=1), stage_of(sink=1)
    stage.open("a", seed=1)
    stage.walk("a", *[0.4] * 9)
    stage.reset("a", seed=6)
    fresh.open("a", seed=6)
    stage.run_idle()
    stage.walk("a", *[0.2] * 9)
    fresh.walk("a", *[0.2] * 9)
    assert stage.frames("a")[10:] == fresh.frames("a")
    firsts = [decode.chunk for plan in stage.plans for decode in plan.decodes if decode.first]
    assert firsts == [0, 0]


def test_scope559_a_slow_reader_has_a_bounded_queue_and_a_reset_empties_it():
    """There: a queue of 64 meant ten seconds of delay, and a reset left old frames in it."""
    queue: FrameQueue[tuple[int, int]] = FrameQueue(2)
    for frame in range(100):
        queue.put(0, (0, frame))
    assert len(queue) == 2
    queue.begin_epoch(1)
    queue.put(0, (0, 100))
    queue.put(1, (1, 0))
    assert queue.get() == (1, 0)
    assert queue.get() is None


def test_a_failed_tick_never_half_advances_a_session(stage_of):
    """Whatever rows of it the tick had, afterwards the session owns nothing and its next epoch is like any other."""
    for discipline in DISCIPLINES:
        for ticks in range(1, 9):
            stage = stage_of(discipline)
            stage.open("a")
            stage.step("a", *[0.1] * 6)
            for _ in range(ticks):
                stage.tick()
            stage.executor.fail_next(A)
            made = len(stage.chunks("a"))
            stage.tick()
            assert len(stage.chunks("a")) == made
            assert stage.told(SessionFailed, "a")
            assert stage.core.stats().pages_used == 0
            with pytest.raises(InvalidState):
                stage.step("a", 0.1)


def test_state_is_made_copied_and_dropped_exactly_once_each(stage):
    stage.open("a")
    stage.walk("a", 0.1)
    stage.snapshot("a", "mark")
    stage.fork("a", "b")
    stage.walk("b", 0.2)
    for name in "ab":
        stage.close(name)
    stage.run_idle()
    made, dropped = [], []
    for plan in stage.plans:
        for op in plan.ops:
            if isinstance(op, DropState):
                dropped.append(op.target)
            else:
                made.append(op.session if isinstance(op, StartState) else op.target)
                assert not isinstance(op, CloneState) or op.source == "a"
    assert sorted(made) == sorted(dropped) == ["a", "b", "mark"]
    assert [fact.session for fact in stage.told(SessionClosed)] == ["a", "b"]
