"""A session's state as plain data."""

from __future__ import annotations

import json

import pytest

from physis_stream.core.capsule import Capsule
from physis_stream.core.ids import SessionId


def capsule_of(stage, name: str = "a") -> Capsule | None:
    return stage.core.capsule(SessionId(name))


def test_it_says_where_the_session_stands(stage):
    stage.open("a", seed=9)
    stage.walk("a", 0.1, 0.2)
    stage.reset("a", seed=5)
    stage.run_idle()
    stage.walk("a", 0.3, 0.4, 0.5)
    capsule = capsule_of(stage)
    assert (capsule.world, capsule.seed, capsule.epoch, capsule.next_chunk) == ("toy", 5, 1, 4)
    assert capsule.num_released == 7
    assert capsule.held == (0.5,)
    assert {page for entry in capsule.kv for page in entry.pages} <= set(range(stage.core.num_pages()))
    assert sum(len(entry.pages) for entry in capsule.kv) == stage.core.stats().pages_used


def test_it_survives_json(stage):
    stage.open("a")
    stage.control("a", prompt="rain")
    stage.walk("a", 0.1, 0.25)
    capsule = capsule_of(stage)
    assert Capsule.from_plain(json.loads(json.dumps(capsule.to_plain()))) == capsule


def test_it_is_taken_at_a_boundary_only(stage):
    stage.open("a")
    stage.step("a", 0.1)
    stage.tick()
    stage.start_tick()
    assert capsule_of(stage) is None
    stage.run_idle()
    assert capsule_of(stage) is not None


def test_what_is_not_a_capsule_is_refused():
    with pytest.raises(KeyError):
        Capsule.from_plain({"world": "toy"})
