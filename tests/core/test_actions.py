"""What becomes of control events between two chunk openings."""

from __future__ import annotations

import pytest

from physis_stream.core.actions import MAX_LISTED_IDS, ControlInbox, Receipt
from physis_stream.core.spec import Combine
from physis_stream.testing.toy_worlds import toy_action


def inbox(combine: Combine = Combine.LATEST) -> ControlInbox:
    return ControlInbox(toy_action(dim=2, combine=combine))


def test_the_rest_action_applies_until_the_first_one_comes():
    control = inbox().open_live()
    assert control.action == (0.0, 0.0)
    assert control.applied == ()


def test_an_accepted_event_is_applied_by_the_next_chunk_and_by_no_other():
    box = inbox()
    assert box.accept(3, (0.5, 0.0), None) is Receipt.ACCEPTED
    assert box.num_waiting == 1
    assert box.open_live().applied == (3,)
    assert box.open_live().applied == ()
    assert box.num_waiting == 0


@pytest.mark.parametrize("event", [7, 6, 0])
def test_a_repeated_or_older_event_is_ignored_and_changes_nothing(event):
    box = inbox()
    box.accept(7, (0.5, 0.0), "day")
    assert box.accept(event, (-1.0, -1.0), "night") is Receipt.IGNORED
    control = box.open_live()
    assert (control.action, control.prompt, control.applied) == ((0.5, 0.0), "day", (7,))


def test_latest_wins_and_stays_in_force():
    box = inbox()
    for event, value in enumerate([0.1, 0.9, 0.3]):
        box.accept(event, (value, 0.0), None)
    assert box.open_live().action == (0.3, 0.0)
    assert box.open_live().action == (0.3, 0.0)


def test_superseded_events_are_listed_as_applied_so_that_none_stays_open():
    box = inbox()
    for event in range(3):
        box.accept(event, (0.1, 0.0), None)
    assert box.open_live().applied == (0, 1, 2)


def test_hold_keeps_a_tap_that_was_released_before_the_chunk_opened():
    box = inbox(Combine.HOLD)
    box.accept(1, (1.0, 0.0), None)
    box.accept(2, (0.0, -0.5), None)
    assert box.open_live().action == (1.0, -0.5)
    assert box.open_live().action == (0.0, -0.5)


def test_sum_adds_up_clips_and_returns_to_rest():
    box = inbox(Combine.SUM)
    for event in range(3):
        box.accept(event, (0.4, -0.1), None)
    control = box.open_live()
    assert control.action == pytest.approx((1.0, -0.3))
    assert box.open_live().action == (0.0, 0.0)


def test_a_prompt_stays_in_force_and_is_acknowledged_once():
    box = inbox()
    box.accept(1, None, "rain")
    assert box.open_live().applied == (1,)
    later = box.open_live()
    assert (later.prompt, later.applied) == ("rain", ())


def test_a_step_brings_its_own_action_and_takes_along_prompts_that_came_meanwhile():
    box = inbox()
    box.accept(4, None, "rain")
    assert box.see(6) is Receipt.ACCEPTED
    control = box.open_step(6, (0.2, 0.2))
    assert (control.action, control.prompt, control.applied) == ((0.2, 0.2), "rain", (4, 6))


def test_priming_applies_nothing():
    box = inbox()
    box.accept(1, (0.5, 0.5), "rain")
    control = box.prime_control()
    assert (control.action, control.prompt, control.applied) == ((0.0, 0.0), "rain", ())
    assert box.open_live().applied == (1,)


def test_a_flush_forgets_actions_and_keeps_prompts_and_the_count_of_events():
    box = inbox()
    box.accept(1, (0.5, 0.5), None)
    box.accept(2, None, "rain")
    assert box.flush() == (1,)
    control = box.open_live()
    assert (control.action, control.prompt, control.applied) == ((0.0, 0.0), "rain", (2,))
    assert box.accept(2, (0.1, 0.1), None) is Receipt.IGNORED


def test_a_restore_returns_to_the_control_of_then_but_not_to_its_event_ids():
    box = inbox()
    box.accept(9, (0.5, 0.5), "rain")
    assert box.restore((0.25, 0.0), "sun") == (9,)
    control = box.open_live()
    assert (control.action, control.prompt, control.applied) == ((0.25, 0.0), "sun", ())
    assert box.accept(9, (0.1, 0.1), None) is Receipt.IGNORED
    assert box.accept(10, (0.1, 0.1), None) is Receipt.ACCEPTED


def test_a_flood_of_events_takes_bounded_memory_and_the_newest_are_listed():
    box = inbox()
    for event in range(10 * MAX_LISTED_IDS):
        box.accept(event, (0.0, 0.0), "x" if event % 2 else None)
    assert box.num_waiting <= 2 * MAX_LISTED_IDS
    applied = box.open_live().applied
    assert len(applied) == MAX_LISTED_IDS
    assert applied[-1] == 10 * MAX_LISTED_IDS - 1
    assert list(applied) == sorted(applied)
