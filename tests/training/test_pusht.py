"""The yardstick of `pusht`: poses measured from pixels are those of the simulator; players touch the block."""

import numpy as np
import pytest

from physis_stream.training.heldout import play_heldout
from physis_stream.training.pusht import RECIPE, make, set_state
from physis_stream.training.pusht_pose import angle_difference, block_centre, estimate_poses, to_pixels


@pytest.fixture(scope="module")
def played():
    return play_heldout(RECIPE, 6, 20)


def test_poses_measured_from_pixels_are_the_simulators(played):
    frames, states = played.frames[:, ::5].reshape(-1, 96, 96, 3), played.states[:, ::5].reshape(-1, 6)
    poses = estimate_poses(frames)
    inside = ((states[:, 2:4] > 90) & (states[:, 2:4] < 422)).all(1)
    agent = np.linalg.norm(poses.agent_xy - to_pixels(states[:, :2]), axis=1)
    block = np.linalg.norm(poses.block_xy - block_centre(states), axis=1)[inside]
    assert np.nanmean(agent) < 0.4
    assert block.mean() < 0.3
    assert angle_difference(poses.block_angle, states[:, 4])[inside].mean() < 1.0


def test_what_is_not_there_is_not_found():
    poses = estimate_poses(np.full((1, 96, 96, 3), 255, np.uint8))
    assert np.isnan(poses.agent_xy).all()
    assert np.isnan(poses.block_xy).all()


@pytest.mark.parametrize(
    ("a", "b", "degrees"), [(0.0, np.pi / 2, 90), (np.pi - 0.1, -np.pi + 0.1, 11.46), (1.0, 1.0, 0)]
)
def test_angles_differ_on_the_circle(a, b, degrees):
    assert angle_difference(np.array(a), np.array(b)) == pytest.approx(degrees, abs=0.01)


def test_the_test_player_moves_the_block_in_nearly_every_rollout(played):
    moved = np.linalg.norm(played.states[:, -1, 2:4] - played.states[:, 0, 2:4], axis=1)
    assert (moved > 5).mean() >= 0.6


def test_held_out_episodes_are_reproducible(played):
    again = play_heldout(RECIPE, 1, 20)
    assert np.array_equal(again.frames[0], played.frames[0])


def test_a_pose_that_was_set_is_the_pose_that_is_reported():
    env = make()
    RECIPE.reset(env, np.random.default_rng(0))
    set_state(env, np.array([100.0, 120.0]), np.array([300.0, 310.0]), 0.7)
    state, _ = RECIPE.step(env, np.array([100.0, 120.0], np.float32))
    assert state[:5] == pytest.approx([100, 120, 300, 310, 0.7], abs=0.01)
    env.close()
