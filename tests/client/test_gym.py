"""Gymnasium's own checks pass on a served world; seeds, actions, resets and batches mean what its users expect."""

from __future__ import annotations

import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from physis_client import InvalidAction, InvalidState, NotFound
from physis_client.gym import IDS, WorldEnv, WorldVectorEnv
from physis_stream.core.ids import SessionId
from physis_stream.testing.fake_service import start_of

from .conftest import WORLD

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture
def env(server):
    made = WorldEnv(WORLD, url=server.url, render_mode="rgb_array")
    yield made
    made.close()


@pytest.mark.parametrize("observe", ["pixels", "state", "both"])
def test_gymnasiums_checker_passes(server, observe):
    env = WorldEnv(WORLD, url=server.url, observe=observe, render_mode="rgb_array")
    check_env(env, skip_render_check=False)
    env.close()


def test_the_spaces_are_the_worlds(env):
    assert env.action_space.shape == (2,)
    assert (env.action_space.low == -1).all()
    assert env.observation_space.shape == (96, 96, 3)
    assert env.metadata["render_fps"] == pytest.approx(10 / 3)


def test_a_seed_gives_the_same_episode_and_another_another(env):
    first, facts = env.reset(seed=5)
    assert facts["seed"] == 5
    assert (facts["state"]["x"], facts["state"]["y"]) == pytest.approx(start_of(5))
    one = env.step(np.float32([1.0, 0.0]))[0]
    again, _ = env.reset(seed=5)
    assert (again == first).all()
    assert (env.step(np.float32([1.0, 0.0]))[0] == one).all()
    assert not (env.reset(seed=6)[0] == first).all()


def test_without_a_seed_episodes_differ_but_follow_the_last_seed(env):
    env.reset(seed=1)
    drawn = [env.reset()[1]["seed"] for _ in range(3)]
    assert len(set(drawn)) == 3
    env.reset(seed=1)
    assert [env.reset()[1]["seed"] for _ in range(3)] == drawn


def test_a_step_is_a_five_tuple_and_its_reward_the_chunks(env):
    env.reset(seed=1)
    seen, reward, terminated, truncated, facts = env.step([0.5, 0.5])
    assert env.observation_space.contains(seen)
    assert isinstance(reward, float)
    assert (terminated, truncated) == (False, False)
    assert facts["rewards"] == [reward]
    assert facts["frames"].shape == (3, 96, 96, 3)
    assert (env.render() == seen).all()


def test_a_chunk_of_actions_is_done_in_order_and_its_rewards_summed(env):
    env.reset(seed=1)
    row = [1.0, 1.0]
    seen, reward, _, _, facts = env.step(np.array([row] * 17, np.float32))
    assert (facts["chunk"], len(facts["rewards"])) == (17, 17)
    assert reward == pytest.approx(sum(facts["rewards"]))
    env.reset(seed=1)
    for _ in range(17):
        last = env.step(row)[0]
    assert (last == seen).all()


BAD = [
    [float("nan"), 0.0], [float("inf"), 0.0], [1.0], [1.0, 2.0, 3.0], np.zeros((0, 2)), np.zeros((300, 2)),
    np.zeros((2, 2, 2)),
    ["a", "b"], [True, False], None, [[0.0, 0.0], [float("nan"), 0.0]], 3.0, [[1.0], [1.0, 2.0]],
]  # fmt: skip


@pytest.mark.parametrize("action", BAD, ids=lambda a: repr(a)[:40])
def test_a_wrong_action_is_refused_before_anything_moves(env, engine, action):
    env.reset(seed=1)
    place = engine.place_of(SessionId(env.session.id))
    with pytest.raises(InvalidAction):
        env.step(action)
    assert engine.place_of(SessionId(env.session.id)) == place


def test_success_ends_the_episode_in_the_middle_of_a_chunk_of_actions(server):
    env = WorldEnv(WORLD, url=server.url, success_reward=-1e-9)
    env.reset(seed=1)
    _, _, terminated, _, facts = env.step([[0.0, 0.0]] * 100)
    assert terminated
    assert len(facts["rewards"]) < 100
    env.close()


def test_an_image_starts_the_episode(env):
    seen, _ = env.reset(seed=1, options={"image": np.zeros((96, 96, 3), np.uint8)})
    assert env.observation_space.contains(seen)
    env.step([0.0, 0.0])


def test_a_step_before_the_first_reset_is_refused(env):
    with pytest.raises(InvalidState):
        env.step([0.0, 0.0])
    assert env.render() is None


def test_closing_frees_the_slot_and_may_be_done_twice(server, engine):
    env = WorldEnv(WORLD, url=server.url)
    env.reset(seed=1)
    env.close()
    env.close()
    assert engine.live_sessions() == []


def test_an_unknown_world_is_named(server):
    with pytest.raises(NotFound, match=WORLD):
        WorldEnv("atlantis", url=server.url)
    with pytest.raises(NotFound, match=WORLD):
        WorldVectorEnv("atlantis", 2, url=server.url)
    with pytest.raises(InvalidState):
        WorldEnv(WORLD, url=server.url, render_mode="human")
    with pytest.raises(InvalidState):
        WorldVectorEnv(WORLD, 0, url=server.url)


def test_the_ids_are_registered_and_made(server):
    assert set(IDS) <= set(gymnasium.registry)
    env = gymnasium.make("physis_client.gym:physis/PushT-v0", model=WORLD, url=server.url)
    env.reset(seed=1)
    assert env.spec.max_episode_steps == 300
    truncated = [env.step([0.0, 0.0])[3] for _ in range(300)]
    assert truncated == [False] * 299 + [True]
    env.close()
    many = gymnasium.make_vec("physis/PushT-v0", num_envs=2, model=WORLD, url=server.url)
    assert many.reset(seed=1)[0].shape == (2, 96, 96, 3)
    many.close()


# Many


@pytest.fixture
def many(server):
    made = WorldVectorEnv(WORLD, 3, url=server.url, observe="both", max_episode_steps=4, render_mode="rgb_array")
    yield made
    made.close()


def test_many_worlds_step_in_one_call_as_each_would_alone(many, server, engine):
    many.reset(seed=7)
    actions = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], np.float32)
    engine.calls.clear()
    seen, rewards, _, _, facts = many.step(actions)
    assert engine.calls.count("step_many") == 1
    assert many.observation_space.contains(seen)
    assert facts["state"].shape == (3, 2)
    assert len(many.render()) == 3
    alone = WorldEnv(WORLD, url=server.url, observe="both")
    for index in range(3):
        alone.reset(seed=7 + index)
        one, reward, *_ = alone.step(actions[index])
        assert (one["pixels"] == seen["pixels"][index]).all()
        assert (one["state"] == seen["state"][index]).all()
        assert reward == rewards[index]
    alone.close()


def test_an_ended_episode_shows_its_final_observation_and_is_reset_by_the_next_step(many):
    """Gymnasium#1680: the final observation is overwritten by the reset."""
    assert many.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    many.reset(seed=1)
    actions = np.ones((3, 2), np.float32)
    for length in range(1, 5):
        seen, _, terminated, truncated, facts = many.step(actions)
        assert truncated.tolist() == [length == 4] * 3
        assert not terminated.any()
    assert facts["chunk"].tolist() == [4, 4, 4]
    final = seen["pixels"].copy()
    fresh, rewards, terminated, truncated, facts = many.step(actions)
    assert facts["chunk"].tolist() == [0, 0, 0]
    assert not (fresh["pixels"] == final).all()
    assert rewards.tolist() == [0.0, 0.0, 0.0]
    assert not (terminated | truncated).any()
    assert many.step(actions)[4]["chunk"].tolist() == [1, 1, 1]


def test_worlds_that_end_at_different_times_are_reset_one_by_one(server):
    many = WorldVectorEnv(WORLD, 2, url=server.url, observe="state", success_reward=-0.3)
    many.reset(seed=[1, 2])
    targets = np.array([start_of(1), -np.sign(start_of(2))], np.float32)
    _, _, terminated, _, _ = many.step(targets)
    assert terminated.tolist() == [True, False]
    _, rewards, terminated, _, facts = many.step(targets)
    assert (facts["chunk"].tolist(), rewards[0], terminated[0]) == ([0, 2], 0.0, False)
    many.close()


@pytest.mark.parametrize(
    "actions", [np.zeros((2, 2)), np.zeros((3, 3)), np.full((3, 2), np.nan), np.zeros(2), "abc"], ids=repr
)
def test_wrong_actions_move_no_world(many, engine, actions):
    many.reset(seed=1)
    places = [engine.place_of(SessionId(s.id)) for s in many.sessions]
    with pytest.raises(InvalidAction):
        many.step(actions)
    assert [engine.place_of(SessionId(s.id)) for s in many.sessions] == places


def test_many_seeds_are_drawn_alike_and_wrongly_counted_ones_refused(many):
    many.reset(seed=3)
    drawn = many.reset()[1]["seed"].tolist()
    many.reset(seed=3)
    assert many.reset()[1]["seed"].tolist() == drawn
    with pytest.raises(InvalidState):
        many.reset(seed=[1, 2])
    with pytest.raises(InvalidState):
        WorldVectorEnv.step(_unreset(many), np.zeros((3, 2), np.float32))


def _unreset(many):
    many._sessions = []
    return many


def test_closing_many_leaves_no_session_and_no_thread(server, engine):
    many = WorldVectorEnv(WORLD, 3, url=server.url)
    many.reset(seed=1)
    many.close()
    many.close()
    assert engine.live_sessions() == []
    deadline = time.monotonic() + 3.0
    while any(t.name.startswith("physis") for t in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("physis")]
