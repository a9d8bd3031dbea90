"""What core knows of a world, and the gate that actions pass."""

from __future__ import annotations

import math

import pytest

from physis_stream.core.errors import InvalidAction
from physis_stream.core.limits import Limits
from physis_stream.testing.toy_worlds import toy_action, toy_spec

SPEC = toy_action(dim=2)


def test_a_good_action_passes_clipped_to_the_bounds_as_floats():
    assert SPEC.check([3, -0.5]) == (1.0, -0.5)


@pytest.mark.parametrize(
    "value",
    [
        [0.1],
        [0.1, 0.2, 0.3],
        [math.nan, 0.0],
        [0.0, math.inf],
        [True, 0.0],
        ["0.1", 0.0],
        [None, 0.0],
        "ab",
        b"ab",
        7,
        None,
        {"x": 1, "y": 2},
    ],
)
def test_a_wrong_action_is_refused_in_words(value):
    with pytest.raises(InvalidAction) as refusal:
        SPEC.check(value)
    assert "action" in refusal.value.message


def test_a_chunk_lasts_as_long_as_its_frames():
    assert toy_spec(fps=24.0, chunk_frames=12).chunk_ns == 500_000_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_sessions": 0},
        {"max_rows": 0},
        {"max_queued": -1},
        {"lockstep_share": 0.0},
        {"late_share": 0.6},
        {"max_utilisation": 1.5},
        {"margin_ns": -1},
        {"max_queued_steps": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Limits(**wrong)
