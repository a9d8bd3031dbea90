"""The lifecycle table: every legal edge, and the refusal of every other one."""

from __future__ import annotations

import itertools

import pytest

from physis_stream.core.errors import InvalidState, SessionEnded
from physis_stream.core.session import RUNNING, TRANSITIONS, State, Trigger, next_state

LEGAL = {(state, trigger) for state, row in TRANSITIONS.items() for trigger in row}


def test_every_state_has_a_row_in_the_table():
    assert TRANSITIONS.keys() == set(State)


@pytest.mark.parametrize(("state", "trigger"), sorted(itertools.product(State, Trigger)))
def test_a_move_is_made_by_the_table_or_refused_naming_state_and_trigger(state, trigger):
    if (state, trigger) in LEGAL:
        assert next_state(state, trigger) is TRANSITIONS[state][trigger]
        return
    with pytest.raises(SessionEnded if state is State.ENDED else InvalidState) as refusal:
        next_state(state, trigger)
    assert str(trigger) in refusal.value.message
    assert state is State.ENDED or str(state) in refusal.value.message


def test_every_living_state_can_be_closed_and_none_leads_out_of_ended():
    assert all(TRANSITIONS[state][Trigger.CLOSE] is State.ENDED for state in State if state is not State.ENDED)
    assert TRANSITIONS[State.ENDED] == {}


def test_a_failed_session_can_only_be_reset_or_closed():
    assert TRANSITIONS[State.FAILED].keys() == {Trigger.RESET, Trigger.CLOSE}


def test_a_queued_session_does_no_work_before_it_is_admitted():
    assert TRANSITIONS[State.QUEUED].keys() == {Trigger.ADMIT, Trigger.CONTROL, Trigger.CLOSE}


def test_chunks_open_in_running_states_only():
    opens = {state for state, row in TRANSITIONS.items() if Trigger.CHUNK_OPENED in row}
    assert opens == RUNNING == {State.READY, State.STREAMING}


def test_every_state_can_be_reached_from_the_queue():
    reached, frontier = {State.QUEUED}, [State.QUEUED]
    while frontier:
        for target in TRANSITIONS[frontier.pop()].values():
            if target not in reached:
                reached.add(target)
                frontier.append(target)
    assert reached == set(State)


def test_pausing_twice_and_resuming_twice_change_nothing():
    assert next_state(State.PAUSED, Trigger.PAUSE) is State.PAUSED
    assert next_state(State.STREAMING, Trigger.RESUME) is State.STREAMING
