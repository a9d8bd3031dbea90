"""The facade: a session's life from open to close, in every discipline."""

from __future__ import annotations

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.context_rule import Discipline
from physis_stream.core.errors import Capacity, InvalidAction, InvalidState, NotFound, SessionEnded
from physis_stream.core.events import (
    ChunkReady,
    ControlIgnored,
    RequestDropped,
    SessionClosed,
    SessionFailed,
    SessionOpened,
    StateChanged,
)
from physis_stream.core.ids import EventId, SessionId, TickIndex
from physis_stream.core.limits import Limits
from physis_stream.core.plan import DropState, Result, Role, StartState
from physis_stream.testing.fake_executor import FakeCosts
from tests.core.stage import DISCIPLINES

A = SessionId("a")
UNHURRIED = Limits(max_rows=1, margin_ns=40_000_000)


def states(stage, name: str = "a") -> list[str]:
    return [fact.state for fact in stage.told(StateChanged, name)]


def rows_of(stage, name: str = "a") -> list[tuple[int, int]]:
    return [(row.chunk, row.step) for plan in stage.plans for row in plan.rows if row.session == name]


# -- opening and priming ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_opening_primes_the_first_chunk_and_hands_out_the_first_picture(stage_of, discipline):
    stage = stage_of(discipline)
    stage.open("a", seed=7)
    stage.run_idle()
    (plan,) = stage.plans
    assert plan.ops == (StartState(A, 0, 7),)
    (row,) = plan.rows
    assert (row.chunk, row.role, row.context, row.noise_key) == (0, Role.PRIME, (), None)
    assert row.step == stage.core.specs[0].rule.committed_version
    assert [(decode.chunk, decode.first) for decode in plan.decodes] == [(0, True)]
    (first,) = stage.chunks("a")
    assert (first.chunk, first.index_in_life, first.applied) == (0, 0, ())
    assert states(stage) == ["starting", "ready"]
    assert stage.told(SessionOpened, "a")


def test_equal_seeds_begin_alike_and_others_do_not(stage):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        stage.open(name, seed)
    stage.run_idle()
    assert stage.frames("a") == stage.frames("b") != stage.frames("c")


# -- steps and the wavefront --------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", DISCIPLINES)
def test_a_step_makes_exactly_one_chunk_and_applies_its_event(stage_of, discipline):
    stage = stage_of(discipline)
    stage.open("a")
    events = stage.step("a", 0.5, -0.5)
    stage.run_idle()
    assert [chunk.applied for chunk in stage.chunks("a")] == [(), (events[0],), (events[1],)]
    assert states(stage) == ["starting", "ready", "streaming"]


def test_clean_chunks_run_one_after_the_other(stage_of):
    stage = stage_of(Discipline.CLEAN)
    stage.open("a")
    stage.walk("a", 0.1, 0.2, 0.3)
    assert all(len(plan.rows) <= 1 for plan in stage.plans)
    assert rows_of(stage)[1:9] == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize(("discipline", "width"), [(Discipline.CASCADE, 4), (Discipline.SAME_STEP, 3)])
def test_queued_steps_pipeline_in_a_wavefront_one_clean_chunk_a_tick(stage_of, discipline, width):
    stage = stage_of(discipline)
    stage.open("a")
    stage.walk("a", *[0.1] * 12)
    full = [plan for plan in stage.plans if len(plan.rows) == width]
    assert len(full) >= 8
    for plan in full:
        assert sorted(row.step for row in plan.rows) == list(range(width))
        assert len(plan.decodes) == 1


def test_the_commit_row_is_not_on_the_critical_path(stage_of):
    stage = stage_of(Discipline.CASCADE)
    stage.open("a")
    stage.walk("a", *[0.1] * 6)
    ready_at = {chunk.chunk: index for index, chunk in enumerate(stage.chunks("a"))}
    for plan in stage.plans:
        commits = [row.chunk for row in plan.rows if row.role is Role.COMMIT]
        lasts = [decode.chunk for decode in plan.decodes]
        assert all(commit in ready_at for commit in commits)
        assert all(last > commit for commit in commits for last in lasts), "a commit rides beside a later chunk"


def test_every_row_runs_once_and_in_order(stage_of):
    for discipline in DISCIPLINES:
        stage = stage_of(discipline)
        stage.open("a")
        stage.walk("a", *[0.1] * 10)
        rows = rows_of(stage)
        assert len(set(rows)) == len(rows)
        for chunk in range(1, 11):
            steps = [step for at, step in rows if at == chunk]
            assert steps == sorted(steps) == list(range(stage.core.specs[0].rule.rows_per_chunk))


def test_older_requests_finish_first_and_commits_wait_behind_requests_that_came_before_them(stage_of):
    stage = stage_of(Discipline.CLEAN, limits=Limits(max_rows=1))
    for name in "ab":
        stage.open(name)
    stage.run_idle()
    begun = len(stage.plans)
    stage.step("a", 0.1)
    stage.clock.advance(1000)
    stage.step("b", 0.1)
    stage.run_idle()
    served = [(plan.rows[0].session, plan.rows[0].step) for plan in stage.plans[begun:]]
    assert served == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("b", 2), ("a", 3), ("b", 3)]


def test_sessions_share_batches_and_do_not_see_each_other(stage_of):
    together, alone = stage_of(), stage_of()
    alone.open("a", 3)
    alone.walk("a", 0.1, 0.2, 0.3, 0.4)
    for name in "abcde":
        together.open(name, 3)
    for name in "abcde":
        together.step(name, 0.1, 0.2, 0.3, 0.4)
    together.run_idle()
    assert max(len(plan.rows) for plan in together.plans) > 5
    for name in "abcde":
        assert together.frames(name) == alone.frames("a")


def test_a_rollout_goes_on_far_past_its_window(stage_of):
    for discipline in DISCIPLINES:
        stage = stage_of(discipline, window=3, sink=1)
        stage.open("a")
        for _ in range(5):
            stage.walk("a", *[0.1] * 60)
        assert len(stage.chunks("a")) == 301
        retention = stage.core._roster.find_world(None).retention
        assert stage.core.stats().pages_used <= retention.pages_at_boundary
        positions = [row.position for plan in stage.plans for row in plan.rows]
        assert max(positions) == 4, "positions stay within sink and window for ever"


# -- control ------------------------------------------------------------------------------------------------------


def test_a_chunks_control_is_fixed_once_it_is_open(stage_of):
    stage = stage_of(costs=FakeCosts(base_ns=30_000_000))
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.2)
    for index in range(200):
        stage.control("a", (index % 21 - 10) / 10)
        stage.run_for(0.01)
    by_chunk: dict[int, set] = {}
    for plan in stage.plans:
        for row in plan.rows:
            by_chunk.setdefault(row.chunk, set()).add(row.control)
    assert len(by_chunk) > 10
    assert all(len(controls) == 1 for controls in by_chunk.values())


def test_every_accepted_control_is_applied_once_by_the_first_chunk_that_opens_after_it(stage_of):
    stage = stage_of()
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.5)
    sent = []
    for index in range(30):
        sent.append(stage.control("a", index / 30))
        stage.run_for(0.037)
    stage.run_for(0.5)
    applied = [event for chunk in stage.chunks("a") for event in chunk.applied]
    assert applied == sent


def test_a_repeated_event_is_ignored_and_said_to_be(stage):
    stage.open("a")
    stage.walk("a", 0.5)
    again = stage.submit(cmd.StepChunk(A, EventId(1), (0.9,)))
    assert again == (ControlIgnored(A, EventId(1), EventId(1)),)
    assert stage.run_idle() == 0


def test_a_poisoned_action_is_refused_before_it_touches_anything(stage):
    stage.open("a")
    stage.run_idle()
    before = stage.core.stats()
    for action in ((float("nan"),), (0.1, 0.2), ()):
        with pytest.raises(InvalidAction):
            stage.submit(cmd.StepChunk(A, EventId(1), action))
    assert stage.core.stats() == before
    stage.submit(cmd.StepChunk(A, EventId(1), (0.5,)))


def test_actions_are_clipped_to_the_bounds(stage):
    stage.open("a")
    stage.walk("a", 99.0)
    assert {row.control.action for plan in stage.plans for row in plan.rows if row.chunk == 1} == {(1.0,)}


def test_each_pace_refuses_the_other_ones_way_to_act(stage):
    stage.open("a")
    stage.open("b", pace=Pace.REALTIME)
    stage.run_idle()
    with pytest.raises(InvalidState, match="by step"):
        stage.control("a", 0.5)
    with pytest.raises(InvalidState, match="by the clock"):
        stage.step("b", 0.5)
    stage.control("a", prompt="rain")


def test_only_so_many_steps_may_wait(stage_of):
    stage = stage_of(limits=Limits(max_queued_steps=3))
    stage.open("a")
    stage.step("a", 0.1, 0.2, 0.3)
    with pytest.raises(Capacity, match="3 steps"):
        stage.step("a", 0.4)
    stage.run_idle()
    assert len(stage.chunks("a")) == 4


# -- pause, suspend, resume ---------------------------------------------------------------------------------------


def test_a_paused_session_finishes_what_is_in_flight_and_opens_nothing(stage):
    stage.open("a")
    stage.run_idle()
    stage.step("a", 0.1, 0.2, 0.3)
    stage.tick()
    stage.pause("a")
    stage.run_idle()
    assert [chunk.chunk for chunk in stage.chunks("a")] == [0, 1]
    stage.resume("a")
    stage.run_idle()
    assert [chunk.chunk for chunk in stage.chunks("a")] == [0, 1, 2, 3]
    assert states(stage) == ["starting", "ready", "streaming", "paused", "streaming"]


def test_a_paused_realtime_session_goes_on_from_where_it_stopped_without_a_burst(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(1.0)
    stage.pause("a")
    stage.run_for(0.2)
    made = len(stage.chunks("a"))
    stage.run_for(5.0)
    assert len(stage.chunks("a")) == made
    stage.resume("a")
    stage.run_for(1.0)
    assert 9 <= len(stage.chunks("a")) - made <= 12
    assert stage.core.stats().late_chunks == 0


def test_a_suspended_session_waits_for_its_client(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.5)
    stage.submit(cmd.SuspendSession(A))
    assert states(stage)[-1] == "reconnecting"
    stage.run_for(0.2)
    made = len(stage.chunks("a"))
    stage.run_for(2.0)
    assert len(stage.chunks("a")) == made
    stage.resume("a")
    stage.run_for(0.5)
    assert len(stage.chunks("a")) > made


def test_resuming_a_session_that_runs_does_not_disturb_its_clock(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(1.0)
    due_before = [chunk.due_ns for chunk in stage.chunks("a")][-1]
    stage.resume("a")
    stage.run_for(1.0)
    dues = [chunk.due_ns for chunk in stage.chunks("a")]
    assert (dues[-1] - due_before) % 100_000_000 == 0


# -- realtime -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("discipline", "in_time"), [("clean", False), ("cascade", True), ("same_step", True)])
def test_a_realtime_session_that_cannot_keep_up_serially_overlaps_its_chunks_as_the_rule_allows(
    stage_of, discipline, in_time
):
    stage = stage_of(Discipline(discipline), costs=FakeCosts(base_ns=40_000_000, row_ns=2_000_000))
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(10.0)
    late, made = stage.core.stats().late_chunks, len(stage.chunks("a"))
    assert (late <= 2 and made >= 98) is in_time
    assert any(len({row.chunk for row in plan.rows}) > 1 for plan in stage.plans) is in_time


def test_a_rows_urgency_counts_the_rows_that_its_chunk_still_needs(stage_of):
    stage = stage_of(costs=FakeCosts(base_ns=5_000_000, row_ns=0, decode_ns=1_000_000, overhead_ns=0))
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(3.05)
    after = []
    for _ in range(2):
        stage.clock.advance_to(stage.core.next_wake_ns(stage.now_ns))
        stage.tick()
        (item,) = stage.core._roster.find(A).waiting.values()
        after.append((item.step, item.after_ns))
    tick_ns = stage.core.cost.tick_ns("toy")
    assert [step for step, _ in after] == [1, 2]
    assert after[0][1] == pytest.approx(tick_ns + 1_000_000, rel=0.1)
    assert after[1][1] == 0


def test_a_realtime_session_that_keeps_up_does_not_run_ahead(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(5.0)
    assert all(len({row.chunk for row in plan.rows}) <= 1 for plan in stage.plans)


def let_both_wait(stage) -> None:
    """Two realtime sessions that both want their next chunk now, one a little more urgently."""
    for name in "ab":
        stage.open(name, pace=Pace.REALTIME)
    stage.run_for(1.0)
    while stage.core.next_wake_ns(stage.now_ns) < stage.now_ns + 20_000_000:
        stage.run_for(0.005)
    stage.clock.advance_to(stage.core.next_wake_ns(stage.now_ns) + 10_000_000)


def test_media_that_a_client_has_buffered_lets_others_go_first(stage_of):
    plain, reported = (stage_of(limits=UNHURRIED) for _ in range(2))
    let_both_wait(plain)
    let_both_wait(reported)
    first = plain.start_tick().rows[0].session
    reported.submit(cmd.ReportPlayout(first, 60_000_000))
    assert reported.start_tick().rows[0].session != first


@pytest.mark.parametrize(("reported_ns", "believed_ns"), [(10**18, 100_000_000), (-5, 0), (30_000_000, 30_000_000)])
def test_a_report_is_believed_between_nothing_and_one_chunk(stage, reported_ns, believed_ns):
    stage.open("a", pace=Pace.REALTIME)
    stage.submit(cmd.ReportPlayout(A, reported_ns))
    assert stage.core._roster.find(A).buffered_ns == believed_ns


def test_a_report_while_rows_wait_reorders_them(stage_of):
    stage = stage_of(limits=UNHURRIED)
    let_both_wait(stage)
    first = stage.start_tick().rows[0].session
    stage.end_tick()
    stage.submit(cmd.ReportPlayout(first, 60_000_000))
    assert stage.start_tick().rows[0].session != first


def test_stale_wake_ups_do_not_pile_up(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.3)
    for _ in range(1000):
        stage.pause("a")
        stage.resume("a")
    assert len(stage.core._flow._wakes) <= 70


# -- reset --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("ticks", range(8))
def test_reset_at_any_moment_flushes_the_old_epoch_and_repeats_the_seed(stage_of, discipline, ticks):
    fresh, stage = stage_of(discipline), stage_of(discipline)
    fresh.open("a", seed=5)
    fresh.walk("a", 0.3, 0.4)
    stage.open("a", seed=1)
    stage.step("a", 0.1, 0.2, 0.3, 0.4)
    for _ in range(ticks):
        stage.tick()
    stage.start_tick()
    before = len(stage.chunks("a"))
    stage.reset("a", seed=5)
    stage.run_idle()
    stage.walk("a", 0.3, 0.4)
    after = stage.chunks("a")[before:]
    assert {chunk.epoch for chunk in after} == {1}
    assert stage.frames("a")[before:] == fresh.frames("a")
    indices = [chunk.index_in_life for chunk in stage.chunks("a")]
    assert indices == list(range(len(indices)))
    stage.close_all_and_check()


def test_steps_that_a_reset_made_void_are_said_to_be(stage):
    stage.open("a")
    events = stage.step("a", 0.1, 0.2, 0.3)
    facts = stage.reset("a")
    dropped = [(fact.kind, int(fact.key)) for fact in facts if isinstance(fact, RequestDropped)]
    assert dropped == [("step", event) for event in events]


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("ticks", range(10))
def test_a_reset_drops_exactly_what_was_not_applied(stage_of, discipline, ticks):
    stage = stage_of(discipline)
    stage.open("a")
    events = stage.step("a", *[0.1] * 4)
    for _ in range(ticks):
        stage.tick()
    stage.reset("a")
    applied = {event for chunk in stage.chunks("a") for event in chunk.applied}
    dropped = {int(fact.key) for fact in stage.told(RequestDropped)}
    assert applied | dropped == set(events)
    assert not applied & dropped


def test_live_control_that_a_reset_made_void_is_said_to_be(stage):
    stage.open("a", pace=Pace.REALTIME)
    stage.run_for(0.5)
    move, prompt = stage.control("a", 0.5), stage.control("a", prompt="rain")
    facts = stage.reset("a")
    assert [(fact.kind, fact.key) for fact in facts if isinstance(fact, RequestDropped)] == [("control", str(move))]
    stage.run_for(0.5)
    assert prompt in {event for chunk in stage.chunks("a") for event in chunk.applied}, "prompts outlive a reset"


def test_every_reset_is_told_with_its_epoch_also_from_starting(stage):
    stage.open("a")
    facts = [*stage.reset("a"), *stage.reset("a")]
    assert [(fact.state, fact.epoch) for fact in facts] == [("starting", 1), ("starting", 2)]


# -- failure ------------------------------------------------------------------------------------------------------


def test_a_failed_tick_fails_its_session_and_no_other(stage):
    for name in "abc":
        stage.open(name)
        stage.step(name, 0.1, 0.2)
    stage.tick()
    stage.executor.fail_next(SessionId("b"), "device says no")
    stage.run_idle()
    assert stage.told(SessionFailed) == [SessionFailed(SessionId("b"), "device says no")]
    assert states(stage, "b")[-1] == "failed"
    assert [len(stage.chunks(name)) for name in "abc"] == [3, 1, 3]


def test_a_failed_session_can_only_be_reset_or_closed_and_its_reset_repeats_the_seed(stage_of):
    fresh, stage = stage_of(), stage_of()
    fresh.open("a", seed=2)
    fresh.walk("a", 0.5)
    stage.open("a", seed=2)
    stage.step("a", 0.5)
    stage.tick()
    stage.executor.fail_next(A)
    stage.run_idle()
    for attempt in (lambda: stage.step("a", 0.1), lambda: stage.pause("a"), lambda: stage.fork("a", "b")):
        with pytest.raises(InvalidState, match="failed"):
            attempt()
    made = len(stage.chunks("a"))
    stage.reset("a", seed=2)
    stage.run_idle()
    stage.walk("a", 0.5)
    assert stage.frames("a")[made:] == fresh.frames("a")


def test_a_session_whose_start_fails_is_failed_and_holds_no_pages(stage):
    stage.open("a")
    stage.executor.fail_next(A, "no start image")
    stage.run_idle()
    assert stage.told(SessionFailed) == [SessionFailed(A, "no start image")]
    assert stage.core.stats().pages_used == 0


def test_the_result_of_work_that_was_voided_meanwhile_changes_nothing(stage):
    stage.open("a")
    stage.run_idle()
    stage.step("a", 0.1)
    stage.executor.fail_next(A)
    stage.start_tick()
    stage.reset("a")
    stage.end_tick()
    assert not stage.told(SessionFailed)
    stage.run_idle()
    assert states(stage)[-1] == "ready"


# -- close --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("discipline", DISCIPLINES)
@pytest.mark.parametrize("ticks", range(8))
def test_close_at_any_stage_leaves_nothing(stage_of, discipline, ticks):
    stage = stage_of(discipline)
    stage.open("a")
    stage.step("a", 0.1, 0.2, 0.3)
    for _ in range(ticks):
        stage.tick()
    stage.start_tick()
    stage.close("a")
    stage.check_empty()
    assert stage.told(SessionClosed) == [SessionClosed(A, "closed")]


def test_pages_in_the_outstanding_plan_are_freed_when_its_tick_has_ended_and_not_before(stage):
    stage.open("a")
    stage.run_idle()
    stage.step("a", 0.1)
    plan = stage.start_tick()
    assert plan is not None
    used = stage.core.stats().pages_used
    assert SessionClosed(A, "closed") not in stage.close("a")
    assert stage.core.stats().pages_used == used
    stage.open("b")
    assert stage.core.schedule(stage.now_ns) is None, "nobody can be given those pages while the tick goes on"
    facts = stage.end_tick()
    assert SessionClosed(A, "closed") in facts
    assert not any(isinstance(fact, ChunkReady) for fact in facts)
    assert stage.core.stats().pages_used == 0


def test_an_idle_session_is_closed_on_the_spot(stage):
    stage.open("a")
    stage.run_idle()
    assert stage.close("a")[-1] == SessionClosed(A, "closed")
    assert stage.core.stats().pages_used == 0
    assert stage.start_tick().ops == (DropState(A),)


def test_closing_twice_or_a_stranger_is_no_error(stage):
    stage.open("a")
    stage.close("a")
    assert stage.close("a") == ()
    assert stage.close("nobody") == ()


def test_a_late_command_hears_why_the_session_ended(stage):
    stage.open("a")
    stage.submit(cmd.CloseSession(A, "client left"))
    with pytest.raises(SessionEnded, match="client left"):
        stage.step("a", 0.1)
    with pytest.raises(NotFound):
        stage.step("nobody", 0.1)


# -- plans and time -----------------------------------------------------------------------------------------------


def test_one_plan_is_outstanding_at_a_time(stage):
    stage.open("a")
    assert stage.core.schedule(0) is not None
    stage.open("b")
    assert stage.core.schedule(0) is None
    assert stage.core.next_wake_ns(0) is None


def test_a_result_of_another_tick_is_refused(stage):
    stage.open("a")
    with pytest.raises(InvalidState, match="not outstanding"):
        stage.core.complete(Result(TickIndex(0)), 0)
    plan = stage.core.schedule(0)
    with pytest.raises(InvalidState, match="not outstanding"):
        stage.core.complete(Result(TickIndex(plan.tick + 1)), 0)
    stage.core.complete(Result(plan.tick), 5)


def test_the_core_says_when_it_wants_to_be_asked_again(stage):
    assert stage.core.next_wake_ns(0) is None
    stage.open("a", pace=Pace.REALTIME)
    assert stage.core.next_wake_ns(0) == 0
    stage.run_idle()
    wake = stage.core.next_wake_ns(stage.now_ns)
    assert wake is not None
    assert stage.core.schedule(wake - 1) is None
    assert stage.core.schedule(wake) is not None


def test_plans_never_exceed_max_rows(stage_of):
    stage = stage_of(limits=Limits(max_rows=3))
    for name in "abcdef":
        stage.open(name)
        stage.step(name, *[0.1] * 5)
    stage.run_idle()
    assert max(len(plan.rows) for plan in stage.plans) == 3
    assert all(len(stage.chunks(name)) == 6 for name in "abcdef")


def test_the_same_calls_give_the_same_plans(stage_of):
    def run():
        stage = stage_of(costs=FakeCosts(base_ns=7_000_000))
        for index, name in enumerate("abcd"):
            stage.open(name, seed=index, pace=Pace.REALTIME if index % 2 else Pace.LOCKSTEP)
        stage.step("a", *[0.1] * 9)
        stage.run_for(1.3)
        return stage

    first, second = run(), run()
    assert first.plans == second.plans
    assert first.facts == second.facts


def test_the_numbers_add_up(stage):
    stage.open("a")
    stage.walk("a", *[0.1] * 8)
    stats = stage.core.stats()
    assert (stats.sessions, stats.streaming, stats.queued) == (1, 1, 0)
    assert stats.rows == stage.executor.num_rows == 1 + 8 * 4
    assert stats.ticks == len(stage.plans)
    assert stats.chunks == 9
    assert stats.evictions > 0
    assert stats.pages_used <= stats.pages_promised <= stats.pages_total
