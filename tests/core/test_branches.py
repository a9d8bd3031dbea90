"""Forks, snapshots, restores: other lives of the same past."""

from __future__ import annotations

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.context_rule import Discipline
from physis_stream.core.errors import Capacity, InvalidState, NotFound
from physis_stream.core.events import (
    RequestDropped,
    SessionClosed,
    SessionFailed,
    SessionForked,
    SnapshotRestored,
    SnapshotTaken,
    StateChanged,
)
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.core.kv_pages import Retention
from physis_stream.core.limits import Limits
from physis_stream.core.plan import CloneState
from tests.core.stage import DISCIPLINES

PAST = (0.1, -0.2, 0.3, -0.4, 0.5, -0.6, 0.7)
FUTURE = (0.9, 0.1, -0.9, 0.2, 0.8, -0.3)


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("past", [0, 1, 3, 7])
def test_a_child_given_the_parents_actions_makes_the_parents_frames(stage_of, discipline, past):
    stage = stage_of(discipline, window=3, sink=1)
    stage.open("a", seed=4)
    stage.walk("a", *PAST[:past])
    stage.fork("a", "b", "c")
    for name, actions in (("a", FUTURE), ("b", FUTURE), ("c", FUTURE[::-1])):
        stage.step(name, *actions)
    stage.run_idle()
    assert stage.frames("b") == stage.frames("a")[past + 1 :]
    assert stage.frames("c") != stage.frames("b")
    stage.close_all_and_check()


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_fork_is_the_same_as_a_replay_from_the_seed(stage_of, discipline):
    stage = stage_of(discipline)
    stage.open("a", seed=4)
    stage.walk("a", *PAST)
    stage.fork("a", "b")
    stage.walk("b", *FUTURE)
    stage.open("again", seed=4)
    stage.walk("again", *PAST, *FUTURE)
    assert stage.frames("b") == stage.frames("again")[len(PAST) + 1 :]


def test_children_stand_where_the_parent_stands(stage):
    stage.open("a")
    stage.walk("a", *PAST)
    facts = stage.fork("a", "b")
    assert facts[0] == SessionForked(SessionId("a"), (SessionId("b"),), len(PAST))
    stage.walk("b", 0.5)
    (chunk,) = stage.chunks("b")
    assert (chunk.chunk, chunk.index_in_life) == (len(PAST) + 1, len(PAST) + 1)


def test_an_idle_session_is_forked_at_once_and_a_busy_one_when_its_earlier_steps_are_done(stage):
    stage.open("a")
    stage.run_idle()
    assert stage.fork("a", "b")
    stage.step("a", 0.1, 0.2)
    stage.tick()
    assert not stage.fork("a", "c")
    stage.step("a", 0.3)
    stage.run_idle()
    (forked,) = [fact for fact in stage.told(SessionForked) if SessionId("c") in fact.children]
    assert forked.chunk == 2
    assert len(stage.chunks("a")) == 4


def test_a_fork_while_starting_happens_after_the_first_picture(stage):
    stage.open("a")
    stage.fork("a", "b")
    stage.run_idle()
    assert stage.told(SessionForked)[0].chunk == 0
    assert [fact.state for fact in stage.told(StateChanged, "b")] == ["ready"]


def test_sixty_four_branches_cost_one_world_and_what_differs(stage_of):
    stage = stage_of(limits=Limits(max_sessions=65))
    stage.open("a")
    stage.walk("a", *PAST)
    alone = stage.core.stats().pages_used
    stage.fork("a", *[f"b{index}" for index in range(64)])
    assert stage.core.stats().pages_used == alone
    assert stage.core.stats().pages_promised == 65 * Retention.of(stage.core.specs[0]).pages_per_session
    stage.walk("b0", 0.5)
    assert alone < stage.core.stats().pages_used <= 2 * alone


def test_the_parent_may_leave_and_the_children_go_on(stage):
    stage.open("a")
    stage.walk("a", *PAST)
    stage.fork("a", "b")
    stage.close("a")
    stage.walk("b", *FUTURE)
    assert len(stage.chunks("b")) == len(FUTURE)
    stage.close_all_and_check()


def test_a_child_counts_its_clients_events_from_anew(stage):
    stage.open("a")
    stage.walk("a", *PAST)
    stage.fork("a", "b")
    stage.submit(cmd.StepChunk(SessionId("b"), 1, (0.5,)))
    stage.run_idle()
    assert stage.chunks("b")[0].applied == (1,)


def test_a_child_acts_under_the_control_that_its_parent_had(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.control("a", 0.7, "rain")
    stage.run_for(0.6)
    stage.fork("a", "b")
    stage.run_for(0.5)
    rows = [row for plan in stage.plans for row in plan.rows if row.session == "b"]
    assert {(row.control.action, row.control.prompt) for row in rows} == {((0.7,), "rain")}


def test_a_fork_is_refused_where_the_children_could_not_own_a_full_window(stage_of):
    spec_pages = Retention.of(stage_of().core.specs[0]).pages_per_session
    stage = stage_of(limits=Limits(num_pages=3 * spec_pages))
    stage.open("a")
    stage.walk("a", *PAST)
    before = stage.core.stats()
    with pytest.raises(Capacity, match="3 children") as refusal:
        stage.fork("a", "b", "c", "d")
    assert refusal.value.retry_after_s > 0
    assert stage.core.stats() == before
    stage.fork("a", "b", "c")


def test_a_fork_names_new_children_each_once(stage):
    stage.open("a")
    stage.open("b")
    stage.run_idle()
    for children in ((), ("c", "c"), ("b",), ("a",)):
        with pytest.raises(InvalidState):
            stage.fork("a", *children)


def test_ids_promised_to_children_are_taken(stage):
    stage.open("a")
    stage.step("a", 0.1)
    stage.tick()
    stage.fork("a", "b")
    with pytest.raises(InvalidState, match="already taken"):
        stage.open("b")
    with pytest.raises(NotFound):
        stage.step("b", 0.1)


@pytest.mark.parametrize("verb", ["close", "reset"])
def test_a_fork_that_will_not_happen_gives_its_room_back_and_is_said_to_be_off_where_the_parent_lives_on(stage, verb):
    stage.open("a")
    stage.step("a", 0.1)
    stage.tick()
    stage.fork("a", "b", "c")
    facts = getattr(stage, verb)("a")
    said = [fact.key for fact in facts if isinstance(fact, RequestDropped) and fact.kind == "fork"]
    assert said == {"close": [], "reset": ["b"]}[verb]
    stage.run_idle()
    stage.core.check_integrity()
    sessions = {"close": 0, "reset": 1}[verb]
    assert stage.core.stats().pages_promised == sessions * Retention.of(stage.core.specs[0]).pages_per_session
    stage.open("b")


def test_a_child_whose_copy_fails_is_failed_and_the_others_live(stage):
    stage.open("a")
    stage.walk("a", 0.1)
    stage.fork("a", "b", "c")
    stage.executor.fail_next(SessionId("b"), "out of memory")
    stage.step("a", 0.2)
    stage.step("c", 0.2)
    stage.run_idle()
    assert stage.told(SessionFailed) == [SessionFailed(SessionId("b"), "out of memory")]
    assert stage.frames("c") == stage.frames("a")[2:]
    stage.reset("b", seed=0)
    stage.run_idle()
    stage.close_all_and_check()


def test_a_child_of_a_paused_parent_is_paused(stage):
    stage.open("a")
    stage.walk("a", 0.1)
    stage.pause("a")
    stage.fork("a", "b")
    assert stage.told(StateChanged, "b")[0].state == "paused"
    stage.resume("b")
    stage.walk("b", 0.2)
    assert len(stage.chunks("b")) == 1


def test_realtime_children_run_by_a_clock_of_their_own(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(1.0)
    stage.fork("a", "b", "c")
    stage.run_for(2.0)
    for name in "abc":
        assert 19 <= len([chunk for chunk in stage.chunks(name) if chunk.opened_ns > 1_100_000_000]) <= 21
    assert stage.core.stats().late_chunks == 0


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_restore_goes_on_as_it_would_have_gone_on_then_in_a_new_epoch(stage_of, discipline):
    stage = stage_of(discipline, window=3, sink=1)
    stage.open("a", seed=4)
    stage.walk("a", *PAST)
    stage.snapshot("a", "mark")
    stage.walk("a", *FUTURE)
    first = stage.frames("a")[len(PAST) + 1 :]
    for turn in (1, 2):
        made = len(stage.chunks("a"))
        facts = stage.restore("a", "mark")
        assert SnapshotRestored(SessionId("a"), SnapshotId("mark"), turn, len(PAST)) in facts
        stage.walk("a", *FUTURE)
        assert stage.frames("a")[made:] == first
        assert {chunk.epoch for chunk in stage.chunks("a")[made:]} == {turn}
    indices = [chunk.index_in_life for chunk in stage.chunks("a")]
    assert indices == list(range(len(indices)))
    stage.close_all_and_check()


@pytest.mark.parametrize("ticks", range(6))
def test_a_restore_drops_the_work_in_flight_at_any_moment(stage_of, ticks):
    stage = stage_of()
    stage.open("a")
    stage.walk("a", *PAST)
    stage.snapshot("a", "mark")
    stage.step("a", *FUTURE)
    for _ in range(ticks):
        stage.tick()
    stage.start_tick()
    made = len(stage.chunks("a"))
    stage.restore("a", "mark")
    stage.run_idle()
    assert len(stage.chunks("a")) == made
    stage.walk("a", *FUTURE)
    again = stage.frames("a")[made:]
    stage.restore("a", "mark")
    stage.walk("a", *FUTURE)
    assert stage.frames("a")[made + len(FUTURE) :] == again
    stage.close_all_and_check()


def test_control_returns_to_what_it_was_then(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.control("a", 0.7, "rain")
    stage.run_for(0.6)
    stage.snapshot("a", "mark")
    stage.run_for(0.3)
    stage.control("a", -0.7, "sun")
    stage.run_for(0.3)
    planned = len(stage.plans)
    stage.restore("a", "mark")
    stage.run_for(0.5)
    controls = {(row.control.action, row.control.prompt) for plan in stage.plans[planned:] for row in plan.rows}
    assert controls == {((0.7,), "rain")}


def test_a_snapshot_is_taken_at_a_boundary_and_keeps_only_what_is_read(stage):
    stage.open("a")
    stage.step("a", *PAST)
    stage.tick()
    assert not stage.snapshot("a", "mark")
    stage.run_idle()
    (taken,) = stage.told(SnapshotTaken)
    assert taken.chunk == len(PAST)
    stats = stage.core.stats()
    assert stats.snapshots == 1
    assert stats.pages_promised < 2 * Retention.of(stage.core.specs[0]).pages_per_session


def test_a_snapshot_outlives_its_owner_while_the_family_lives_and_not_longer(stage):
    stage.open("a", seed=3)
    stage.walk("a", *PAST)
    stage.snapshot("a", "mark")
    stage.fork("a", "b")
    stage.walk("a", *FUTURE)
    expected = stage.frames("a")[len(PAST) + 1 :]
    stage.close("a")
    stage.walk("b", 0.5)
    made = len(stage.chunks("b"))
    stage.restore("b", "mark")
    stage.walk("b", *FUTURE)
    assert stage.frames("b")[made:] == expected
    stage.close("b")
    stage.check_empty()


def test_a_strangers_snapshot_is_not_found(stage):
    stage.open("a")
    stage.open("b")
    stage.run_idle()
    stage.snapshot("a", "mark")
    with pytest.raises(NotFound):
        stage.restore("b", "mark")
    with pytest.raises(NotFound):
        stage.restore("a", "other mark")


def test_a_dropped_snapshot_frees_what_only_it_held(stage):
    stage.open("a")
    stage.walk("a", *PAST)
    stage.snapshot("a", "mark")
    stage.walk("a", *FUTURE)
    held = stage.core.stats().pages_used
    stage.submit(cmd.DropSnapshot(SnapshotId("mark")))
    assert stage.core.stats().pages_used < held
    with pytest.raises(NotFound):
        stage.submit(cmd.DropSnapshot(SnapshotId("mark")))


def test_snapshots_are_limited_in_number_and_ids_are_used_once(stage_of):
    stage = stage_of(limits=Limits(max_snapshots=2))
    stage.open("a")
    stage.run_idle()
    stage.snapshot("a", "m1")
    with pytest.raises(InvalidState, match="already taken"):
        stage.snapshot("a", "m1")
    stage.snapshot("a", "m2")
    with pytest.raises(Capacity, match="all 2 snapshots"):
        stage.snapshot("a", "m3")


def test_a_snapshot_that_could_not_be_copied_is_gone_and_said_to_be(stage):
    stage.open("a")
    stage.run_idle()
    stage.snapshot("a", "mark")
    stage.executor.fail_next(SnapshotId("mark"), "out of memory")
    stage.run_idle()
    assert RequestDropped(SessionId("a"), "snapshot", "mark", "out of memory") in stage.facts
    with pytest.raises(NotFound):
        stage.restore("a", "mark")
    assert stage.core.stats().snapshots == 0


def test_copies_come_before_anything_else_that_the_copy_or_its_source_does(stage):
    stage.open("a")
    stage.run_idle()
    stage.fork("a", "b")
    stage.step("a", 0.1)
    stage.step("b", 0.1)
    plan = stage.start_tick()
    assert plan.ops == (CloneState(SessionId("a"), SessionId("b")),)
    assert {row.session for row in plan.rows} == {"a", "b"}


def test_a_restore_of_a_paused_session_stays_paused(stage):
    stage.open("a")
    stage.walk("a", 0.1)
    stage.snapshot("a", "mark")
    stage.pause("a")
    stage.restore("a", "mark")
    assert stage.told(StateChanged, "a")[-1].state == "paused"


def test_resetting_away_from_a_pending_snapshot_gives_its_room_back(stage):
    stage.open("a")
    stage.step("a", 0.1)
    stage.tick()
    stage.snapshot("a", "mark")
    facts = stage.reset("a")
    assert any(isinstance(fact, RequestDropped) and fact.kind == "snapshot" for fact in facts)
    stage.run_idle()
    stage.core.check_integrity()
    assert stage.close("a")[-1] == SessionClosed(SessionId("a"), "closed")


def test_clean_worlds_share_too(stage_of):
    stage = stage_of(Discipline.CLEAN, window=2)
    stage.open("a")
    stage.walk("a", *PAST)
    used = stage.core.stats().pages_used
    stage.fork("a", "b")
    stage.snapshot("a", "mark")
    assert stage.core.stats().pages_used == used


def test_a_promised_snapshot_counts_towards_the_limit_before_it_is_taken(stage_of):
    stage = stage_of(limits=Limits(max_snapshots=1))
    stage.open("a")
    stage.step("a", 0.1)
    stage.tick()
    stage.snapshot("a", "m1")
    with pytest.raises(InvalidState, match="already taken"):
        stage.snapshot("a", "m1")
    with pytest.raises(Capacity, match="all 1 snapshots"):
        stage.snapshot("a", "m2")
    stage.run_idle()
    assert [fact.snapshot for fact in stage.told(SnapshotTaken)] == ["m1"]
