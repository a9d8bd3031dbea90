"""Data sets: the same seed gives the same bytes, episodes are marked, sequences never cross them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from physis_stream.training.collect import collect, open_shards
from physis_stream.training.latents import LatentSet, SequenceDraw
from physis_stream.training.pusht import RECIPE
from physis_stream.training.recipe import gymnasium_recipe
from physis_stream.training.recipes import recipe_for
from physis_stream.training.train_codec import Clips, rarity_table, to_signed, to_uint8

SHORT = replace(RECIPE, episode_frames=12)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    collect(SHORT, folder / "shard_00", 60, seed=1)
    collect(SHORT, folder / "shard_01", 60, seed=1)
    return open_shards(folder)


def test_the_same_seed_gives_the_same_frames(shards):
    for part in ("frames", "actions", "states", "starts"):
        assert np.array_equal(getattr(shards[0], part), getattr(shards[1], part))


def test_plays_without_pictures_are_those_with_them_and_follow_on_from_a_sets_own(shards, tmp_path):
    collect(SHORT, tmp_path, 60, seed=1, pictures=False)
    assert not (tmp_path / "frames.npy").exists()
    parts = [torch.from_numpy(np.array(getattr(shards[0], part))) for part in ("actions", "states", "starts")]
    data = LatentSet(*parts, torch.zeros(60, 4, 12, 12)).with_plays(tmp_path)
    assert torch.equal(data.plays.states, torch.cat((parts[1], parts[1])))
    assert torch.equal(data.plays.starts, torch.cat((parts[2], parts[2] + 60)))
    assert torch.equal(data.plays.motion()[::12], torch.zeros(10))
    assert data.with_plays(tmp_path / "none") is data


def test_episodes_are_marked_and_open_with_the_default_action(shards):
    starts = shards[0].starts
    assert list(np.unique(starts)) == [0, 12, 24, 36, 48]
    assert np.allclose(shards[0].actions[np.unique(starts)], RECIPE.action_default)


def test_the_agent_goes_towards_its_action(shards):
    shard = shards[0]
    before, after, target = shard.states[:-1, :2], shard.states[1:, :2], shard.actions[1:]
    inside = shard.starts[1:] == shard.starts[:-1]
    nearer = np.linalg.norm(after - target, axis=1) <= np.linalg.norm(before - target, axis=1) + 15
    assert nearer[inside].mean() > 0.85


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no shards"):
        open_shards(tmp_path)


def test_clips_are_addressed_and_stay_within_an_episode(shards):
    clips = Clips(shards, 8, 4, seed=3)
    frames, states = clips(5)
    again, _ = clips(5)
    assert frames.shape == (8, 4, 96, 96, 3)
    assert states.shape == (8, 4, 6)
    assert torch.equal(frames, again)
    assert not torch.equal(frames, clips(6)[0])


def numbered(count=60, episode=12):
    index = torch.arange(count)
    latents = index.half().view(-1, 1, 1, 1).expand(-1, 4, 12, 12)
    return LatentSet(index.float()[:, None].expand(-1, 2), index.float()[:, None], index // episode * episode, latents)


def test_sequences_are_consecutive_frames_of_one_episode():
    draw = SequenceDraw(numbered(), 5, (7.0, 7.0), seed=0)
    batch = draw(3, 50, fresh_start=False)
    first = batch.states[:, :1]
    assert torch.equal(batch.states[:, :, 0] - first[:, :, 0], torch.arange(5.0).expand(50, -1))
    assert torch.equal(batch.states[:, 0, 0] // 12, batch.states[:, -1, 0] // 12)
    assert (batch.actions[:, 0] == 7.0).all()


def test_fresh_sequences_begin_where_episodes_begin():
    batch = SequenceDraw(numbered(), 5, (0.0, 0.0), seed=0)(3, 50, fresh_start=True)
    assert (batch.states[:, 0, 0] % 12 == 0).all()


def test_pictures_survive_the_change_of_range():
    picture = torch.randint(0, 256, (2, 8, 8, 3), dtype=torch.uint8)
    assert torch.equal(to_uint8(to_signed(picture)), picture)


def test_rare_colours_weigh_more_up_to_a_limit():
    frames = np.zeros((1, 10, 10, 3), np.uint8)
    frames[0, 0, :4] = 255
    table = rarity_table(frames, limit=3.0)
    assert table[0] == 1.0
    assert table[4095] == 3.0


@pytest.mark.parametrize(("env_id", "actions", "numbers"), [("CartPole-v1", 2, 5), ("Pendulum-v1", 1, 4)])
def test_any_environment_that_renders_has_a_recipe(env_id, actions, numbers):
    recipe = gymnasium_recipe(env_id, size=48)
    env = recipe.make()
    rng = np.random.default_rng(0)
    state = recipe.reset(env, rng)
    action = recipe.policy(env, rng)(state)
    state, _ = recipe.step(env, action)
    assert action.shape == (actions,)
    assert state.shape == (numbers,)
    assert recipe.frame(env).shape == (48, 48, 3)
    env.close()


def test_unknown_environments_and_odd_sizes_are_refused_with_advice():
    with pytest.raises(ValueError, match=r"no environment 'Pong-v99'"):
        recipe_for("Pong-v99")
    with pytest.raises(ValueError, match="multiple of 24"):
        recipe_for("CartPole-v1", size=50)
    with pytest.raises(ValueError, match="drawn at 96x96"):
        recipe_for("pusht", size=48)
