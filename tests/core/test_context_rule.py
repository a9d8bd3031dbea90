"""The one rule behind the three disciplines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.testing import strategies
from physis_stream.testing.toy_worlds import toy_rule

CASES = [
    (Discipline.CLEAN, True, [[3, 3, 3], [3, 3, 3], [3, 3, 3], [3, 3, 3]]),
    (Discipline.CASCADE, True, [[0, 1, 2], [1, 2, 3], [2, 3, 3], [3, 3, 3]]),
    (Discipline.CASCADE, False, [[0, 1, 2], [1, 2, 2], [2, 2, 2]]),
    (Discipline.SAME_STEP, False, [[0, 0, 0], [1, 1, 1], [2, 2, 2]]),
]


@pytest.mark.parametrize(("discipline", "commit", "table"), CASES)
def test_each_step_attends_to_the_version_that_the_table_of_the_discipline_says(discipline, commit, table):
    rule = ContextRule(discipline, num_steps=3, window=3, commit=commit)
    assert [[rule.version(step, distance) for distance in (1, 2, 3)] for step in range(rule.rows_per_chunk)] == table


def test_a_primed_chunk_is_read_clean_by_every_step_of_every_rule():
    for discipline in Discipline:
        rule = toy_rule(discipline)
        assert {rule.version(step, 1, primed=True) for step in range(rule.rows_per_chunk)} == {rule.committed_version}


@pytest.mark.parametrize(
    ("discipline", "steps", "window", "commit"),
    [
        (Discipline.CLEAN, 3, 3, False),
        (Discipline.SAME_STEP, 3, 3, True),
        (Discipline.CASCADE, 0, 3, True),
        (Discipline.CASCADE, 3, -1, True),
    ],
)
def test_an_impossible_rule_is_refused(discipline, steps, window, commit):
    with pytest.raises(ValueError):
        ContextRule(discipline, steps, window, commit)


@pytest.mark.parametrize(("step", "distance"), [(-1, 1), (4, 1), (0, 0)])
def test_questions_outside_the_rule_are_refused(step, distance):
    with pytest.raises(ValueError, match="must"):
        toy_rule(Discipline.CLEAN).version(step, distance)


@given(strategies.context_rules(), st.integers(0, 20))
def test_reach_is_the_farthest_reader_and_dependencies_are_what_is_read(rule, chunk):
    for version in range(rule.rows_per_chunk):
        readers = [
            chunk + rule.window + 1 - earlier
            for step in range(rule.rows_per_chunk)
            for earlier, read in rule.dependencies(chunk + rule.window + 1, step)
            if read == version and earlier <= chunk + rule.window
        ]
        assert rule.reach(version) == max(readers, default=0)


@given(strategies.context_rules())
def test_nothing_before_the_epoch_is_listed_as_a_dependency(rule):
    for chunk in range(rule.window + 2):
        for step in range(rule.rows_per_chunk):
            listed = list(rule.dependencies(chunk, step))
            assert all(earlier >= 0 for earlier, _ in listed)
            assert len(set(listed)) == len(listed) == min(rule.window, chunk) + (step > 0)
