"""What follows from a context rule: how far chunks overlap, where a model may be cut, which KV travels."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from physis_stream.core.context_rule import Discipline
from physis_stream.core.pipeline import Grid, KvTransfer, legal_cuts, wavefront_depth, wavefront_lag
from physis_stream.testing import strategies
from physis_stream.testing.toy_worlds import toy_rule

CLEAN = toy_rule(Discipline.CLEAN)
CASCADE = toy_rule(Discipline.CASCADE)
SAME_STEP = toy_rule(Discipline.SAME_STEP)


def test_clean_chunks_are_strictly_serial():
    assert wavefront_lag(CLEAN) == CLEAN.rows_per_chunk == 4
    assert wavefront_depth(CLEAN) == 1


@pytest.mark.parametrize(("rule", "depth"), [(CASCADE, 4), (SAME_STEP, 3)])
def test_cascade_and_same_step_overlap_by_every_row(rule, depth):
    assert wavefront_lag(rule) == 1
    assert wavefront_depth(rule) == depth


def test_clean_may_be_cut_by_blocks_only_the_others_along_both_axes():
    assert [legal_cuts(rule).blocks for rule in (CLEAN, CASCADE, SAME_STEP)] == [True, True, True]
    assert [legal_cuts(rule).steps for rule in (CLEAN, CASCADE, SAME_STEP)] == [False, True, True]


def test_cutting_a_clean_model_by_steps_is_refused():
    with pytest.raises(ValueError, match="strictly serial"):
        Grid(CLEAN, num_blocks=4, step_cuts=(2,))
    assert len(Grid(CLEAN, num_blocks=4, block_cuts=(2,)).ranks) == 2


def test_one_rank_holds_all_steps_and_blocks():
    (rank,) = Grid(CASCADE, num_blocks=6).ranks
    assert (rank.steps, rank.blocks) == (range(4), range(6))
    assert Grid(CASCADE, num_blocks=6).kv_transfers() == ()


def test_the_cells_of_a_grid_cover_every_step_and_block_once():
    grid = Grid(CASCADE, num_blocks=6, step_cuts=(1, 3), block_cuts=(2,))
    cells = [(step, block) for rank in grid.ranks for step in rank.steps for block in rank.blocks]
    assert sorted(cells) == [(step, block) for step in range(4) for block in range(6)]


@pytest.mark.parametrize("cuts", [(0,), (4,), (2, 2), (3, 1), (-1,)])
def test_cuts_must_rise_between_the_ends(cuts):
    with pytest.raises(ValueError, match="rise strictly"):
        Grid(CASCADE, num_blocks=6, step_cuts=cuts)


def test_same_step_moves_no_kv_between_step_ranges():
    assert Grid(SAME_STEP, num_blocks=2, step_cuts=(1, 2)).kv_transfers() == ()


def test_cascade_moves_each_cleaner_version_to_the_noisier_ranges_that_read_it():
    moves = Grid(CASCADE, num_blocks=2, step_cuts=(2,)).kv_transfers()
    assert moves == (KvTransfer(version=2, source=1, target=0), KvTransfer(version=3, source=1, target=0))


def test_block_cuts_move_no_kv():
    assert Grid(CASCADE, num_blocks=8, block_cuts=(2, 4, 6)).kv_transfers() == ()


@given(rule=strategies.context_rules())
@settings(max_examples=300, deadline=None)
def test_at_the_derived_lag_every_dependency_comes_before_and_at_any_smaller_one_some_does_not(rule):
    def fits(lag: int) -> bool:
        chunk = rule.window + 2
        return all(
            lag * earlier + version < lag * chunk + step
            for step in range(rule.rows_per_chunk)
            for earlier, version in rule.dependencies(chunk, step)
        )

    lag = wavefront_lag(rule)
    assert 1 <= lag <= rule.rows_per_chunk
    assert fits(lag)
    assert lag == 1 or not fits(lag - 1)
