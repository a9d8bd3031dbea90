"""Which rows make the next batch: tables of deadlines and costs."""

from __future__ import annotations

from collections import Counter

import pytest

from physis_stream.core.cost_model import CostModel, CostPrior
from physis_stream.core.ids import SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.run_queue import WorkItem
from physis_stream.core.scheduler import Scheduler

MS = 1_000_000
PRIORS = {
    "toy": CostPrior(base_ns=2 * MS, row_ns=1 * MS, decode_ns=0),
    "big": CostPrior(base_ns=2 * MS, row_ns=10 * MS, decode_ns=0),
}


def scheduler(**limits) -> Scheduler:
    return Scheduler(CostModel(PRIORS), Limits(**limits))


def realtime(name: str, due_ms: int, *, after_ms: int = 0, asked_ms: int = 0) -> WorkItem:
    return WorkItem(SessionId(name), 1, 0, False, 0, asked_ms * MS, due_ns=due_ms * MS, after_ns=after_ms * MS)


def lockstep(name: str, *, asked_ms: int = 0) -> WorkItem:
    return WorkItem(SessionId(name), 1, 0, False, 0, asked_ms * MS)


def names(batch: tuple[str, list[WorkItem]]) -> list[str]:
    return [item.session for item in batch[1]]


def test_nothing_runnable_makes_no_batch():
    assert scheduler().select(0) == ("", [])


def test_rows_come_in_order_of_playout_slack():
    sched = scheduler()
    for item in (realtime("later", 100), realtime("soon", 50), realtime("soonest", 90, after_ms=60)):
        sched.push("toy", item)
    assert names(sched.select(0)) == ["soonest", "soon", "later"]


def test_a_batch_never_exceeds_the_cap():
    sched = scheduler(max_rows=3)
    for index in range(8):
        sched.push("toy", lockstep(str(index)))
    assert [len(sched.select(0)[1]) for _ in range(4)] == [3, 3, 2, 0]


def test_the_batch_stops_growing_where_its_most_urgent_row_would_be_late():
    sched = scheduler()
    sched.push("toy", realtime("urgent", 6))
    for index in range(10):
        sched.push("toy", realtime(f"easy{index}", 500))
    assert names(sched.select(0)) == ["urgent", "easy0", "easy1", "easy2"]
    assert len(sched) == 7


def test_a_row_that_could_not_wait_for_the_next_tick_is_not_left_out():
    """Four rows end at 6 ms, as the most urgent must. A fifth, left out, would end at 6 + 3 ms: too late for 8."""
    sched = scheduler()
    sched.push("toy", realtime("urgent", 6))
    for name, due_ms in (("a", 8), ("b", 8), ("c", 8), ("d", 8), ("patient", 20)):
        sched.push("toy", realtime(name, due_ms))
    assert names(sched.select(0)) == ["urgent", "a", "b", "c", "d"]
    assert names(sched.select(0)) == ["patient"]


def test_a_late_row_joins_a_tick_rather_than_making_one_of_its_own():
    sched = scheduler()
    sched.push("toy", realtime("late", 1, asked_ms=-5))
    for index in range(4):
        sched.push("toy", realtime(f"tight{index}", 6))
    assert "late" in names(sched.select(0))


def test_a_lone_row_goes_even_if_it_will_be_late():
    sched = scheduler()
    sched.push("toy", realtime("hopeless", 1))
    assert names(sched.select(0)) == ["hopeless"]


def test_hopeless_rows_do_not_narrow_the_batch_of_those_that_can_make_it():
    sched = scheduler()
    sched.push("toy", realtime("hopeless", 1))
    for index in range(5):
        sched.push("toy", realtime(f"fine{index}", 20))
    batch = names(sched.select(0))
    assert batch[:5] == [f"fine{index}" for index in range(5)]
    assert batch[5:] == ["hopeless"]


def test_lockstep_rows_fill_what_realtime_rows_leave():
    sched = scheduler(max_rows=4)
    sched.push("toy", lockstep("robot"))
    for index in range(3):
        sched.push("toy", realtime(f"live{index}", 100))
    assert names(sched.select(0)) == ["live0", "live1", "live2", "robot"]


def test_lockstep_rows_fill_a_tick_only_as_far_as_the_pulse_of_realtime_sessions_allows():
    sched = scheduler(max_rows=64)
    for index in range(40):
        sched.push("toy", lockstep(str(index)))
    assert len(sched.select(0, pulse_ns=12 * MS)[1]) == 10
    assert len(sched.select(0, pulse_ns=None)[1]) == 30


def test_lockstep_rows_are_served_in_order_of_age():
    sched = scheduler(max_rows=2)
    for name, asked_ms in (("young", 9), ("old", 1), ("middle", 5)):
        sched.push("toy", lockstep(name, asked_ms=asked_ms))
    assert names(sched.select(10)) == ["old", "middle"]


def test_neither_class_starves_when_both_always_have_work():
    sched, served = scheduler(max_rows=4), Counter()
    for turn in range(400):
        now_ms = 10 * turn
        for index in range(4):
            sched.push("toy", realtime("live", now_ms + 50 + index))
            sched.push("toy", lockstep("robot", asked_ms=now_ms))
        batch = sched.select(now_ms * MS)[1]
        served.update(item.session for item in batch)
    share = served["robot"] / served.total()
    assert 0.2 <= share <= 0.35


def test_late_rows_get_their_share_while_feasible_ones_keep_coming():
    sched, served = scheduler(max_rows=4), Counter()
    for turn in range(400):
        now_ms = 10 * turn
        for _ in range(4):
            sched.push("toy", realtime("feasible", now_ms + 9, asked_ms=now_ms))
        sched.push("toy", realtime("late", now_ms - 50, asked_ms=now_ms - 90))
        served.update(item.session for item in sched.select(now_ms * MS)[1])
    assert served["late"] >= 100
    assert served["feasible"] >= 1000


def test_with_one_row_a_tick_everybody_still_gets_a_turn():
    sched, served = scheduler(max_rows=1), Counter()
    for turn in range(200):
        sched.push("toy", realtime("live", turn * 10 + 30))
        sched.push("toy", lockstep("robot", asked_ms=turn * 10))
        served.update(item.session for item in sched.select(turn * 10 * MS)[1])
    assert served["robot"] >= 40
    assert served["live"] >= 100


def test_shapes_take_turns_and_share_time_not_turns():
    sched, time_ms = scheduler(max_rows=4), Counter()
    for _ in range(8):
        sched.push("toy", lockstep("small"))
        sched.push("big", lockstep("large"))
    for _ in range(300):
        shape, batch = sched.select(0)
        time_ms[shape] += {"toy": 2 + len(batch), "big": 2 + 10 * len(batch)}[shape]
        for item in batch:
            sched.push(shape, lockstep(item.session))
    assert time_ms["toy"] / time_ms.total() == pytest.approx(0.5, abs=0.05)


def test_a_rare_shape_is_served_soon_beside_a_busy_one():
    sched, waits, waiting = scheduler(max_rows=4), [], 0
    for turn in range(100):
        for _ in range(4):
            sched.push("toy", lockstep("busy"))
        if not waiting:
            sched.push("big", lockstep("rare"))
        shape, _ = sched.select(turn)
        waiting += 1
        if shape == "big":
            waits.append(waiting)
            waiting = 0
    assert max(waits) <= 8


def test_a_batch_holds_one_shape_only():
    sched = scheduler()
    for index in range(6):
        sched.push(("toy", "big")[index % 2], lockstep(("toy", "big")[index % 2]))
    for _ in range(2):
        shape, batch = sched.select(0)
        assert {item.session for item in batch} == {shape}


def test_cancelled_rows_are_not_served_wherever_they_wait():
    sched = scheduler(max_rows=1)
    items = [realtime("urgent", 100), realtime("late", 0), lockstep("robot")]
    for item in items:
        sched.push("toy", item)
    sched.push("toy", lockstep("stays", asked_ms=1))
    assert names(sched.select(0)) == ["urgent"]
    for item in items:
        sched.cancel(item)
    assert names(sched.select(0)) == ["stays"]
    assert len(sched) == 0


def test_late_rows_are_served_oldest_first():
    sched = scheduler(max_rows=1)
    for name, due_ms, asked_ms in (("young", 10, 30), ("old", 20, 5), ("middle", 15, 20)):
        sched.push("toy", realtime(name, due_ms, asked_ms=asked_ms))
    assert [names(sched.select(100 * MS))[0] for _ in range(3)] == ["old", "middle", "young"]


def test_the_most_urgent_row_goes_even_where_the_credit_of_others_comes_before_it():
    sched = scheduler(max_rows=4)
    for index in range(40):
        sched.push("toy", lockstep(f"robot{index}"))
    for turn in range(4):
        for _ in range(4):
            sched.push("toy", realtime("live", 1000 + turn))
        sched.select(0)
    sched.push("toy", realtime("urgent", 3))
    batch = names(sched.select(0))
    assert batch[0].startswith("robot"), "credit is spent first"
    assert "urgent" in batch
