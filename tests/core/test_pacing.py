"""When realtime chunks open: tables of times, no clock."""

from __future__ import annotations

import pytest

from physis_stream.core.pacing import Forecast, Pacer

MS = 1_000_000
CHUNK = 100 * MS
QUICK = Forecast(production_ns=20 * MS, tick_ns=1 * MS)


def pacer(due_of_first_ms: int = 100, margin_ms: int = 5) -> Pacer:
    made = Pacer(CHUNK, margin_ms * MS)
    made.anchor(1, due_of_first_ms * MS)
    return made


def settled(took_ms: int, num_chunks: int = 200) -> Pacer:
    """A pacer that has seen many chunks take the same time, all ready just when due."""
    made = pacer()
    for chunk in range(1, num_chunks + 1):
        due = made.due_ns(chunk)
        made.ready(chunk, due - took_ms * MS, due)
    return made


def test_chunks_are_due_one_media_time_apart():
    made = pacer(due_of_first_ms=300)
    assert [made.due_ns(chunk) // MS for chunk in (1, 2, 5)] == [300, 400, 700]


def test_a_chunk_opens_just_in_time_production_and_margin_before_it_is_due():
    assert pacer(margin_ms=5).open_ns(1, previous_ready=False, forecast=QUICK) == (100 - 20 - 5) * MS


def test_production_time_is_learnt():
    made = settled(took_ms=40)
    lead = made.due_ns(201) - made.open_ns(201, previous_ready=True, forecast=QUICK)
    assert 44 * MS <= lead <= 46 * MS


def test_the_margin_is_at_least_two_ticks_of_others():
    slow = Forecast(production_ns=20 * MS, tick_ns=15 * MS)
    assert settled(took_ms=40).margin_ns(slow) == 30 * MS


def test_the_margin_grows_with_unsteadiness_but_never_beyond_one_chunk():
    made = pacer()
    for chunk in range(1, 50):
        due = made.due_ns(chunk)
        made.ready(chunk, due - (20 if chunk % 2 else 60) * MS, due)
    assert 60 * MS < made.margin_ns(QUICK) <= CHUNK
    for chunk in range(50, 80):
        made.ready(chunk, made.due_ns(chunk) - chunk % 3 * 900 * MS, made.due_ns(chunk))
    assert made.margin_ns(QUICK) == CHUNK


def test_no_chunk_opens_while_the_one_before_is_ready_and_not_nearly_due():
    hasty = Forecast(production_ns=950 * MS, tick_ns=1 * MS)
    made = pacer(due_of_first_ms=1000)
    assert made.open_ns(2, previous_ready=True, forecast=hasty) == made.due_ns(1) - made.margin_ns(hasty)


def test_a_slow_chunk_may_open_while_the_one_before_is_still_being_made():
    slow = Forecast(production_ns=250 * MS, tick_ns=1 * MS)
    made = pacer(due_of_first_ms=1000)
    assert made.open_ns(2, previous_ready=False, forecast=slow) < made.due_ns(1)


@pytest.mark.parametrize("ready_ms", [60, 99, 100])
def test_a_chunk_that_is_in_time_leaves_the_clock_alone(ready_ms):
    made = pacer()
    assert not made.ready(1, 50 * MS, ready_ms * MS)
    assert made.due_ns(2) == 200 * MS


def test_a_late_chunk_moves_all_later_ones_and_there_is_no_burst():
    made = pacer()
    assert made.ready(1, 50 * MS, 160 * MS)
    assert [made.due_ns(chunk) // MS for chunk in (2, 3)] == [260, 360]


@pytest.mark.parametrize("late_ms", [1, 30, 50])
def test_small_slips_count_as_late_and_do_not_add_up(late_ms):
    made = pacer()
    for chunk in range(1, 20):
        assert made.ready(chunk, 0, (100 * chunk + late_ms) * MS)
    assert made.due_ns(20) == 2000 * MS


def test_one_stall_hardly_makes_later_chunks_open_earlier():
    made = settled(took_ms=40)
    before = made.lead_ns(QUICK)
    made.ready(201, made.due_ns(201) - 5000 * MS, made.due_ns(201))
    assert made.lead_ns(QUICK) <= before + 25 * MS + CHUNK


def test_a_twin_has_learnt_the_same_and_keeps_its_own_time():
    made = settled(took_ms=40)
    twin = made.twin()
    assert twin.lead_ns(QUICK) == made.lead_ns(QUICK)
    twin.anchor(201, 0)
    assert made.due_ns(201) != 0


def test_a_margin_longer_than_a_chunk_is_cut():
    assert Pacer(CHUNK, 500 * MS).margin_ns(QUICK) == CHUNK
