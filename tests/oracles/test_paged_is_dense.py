"""What the engine dreams, batched and paged, is what the naive path dreams one row at a time: past the window, with
sinks, for every discipline. And the engine's cached rows are what training's dense mask computes in one forward.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from physis_stream.core.context_rule import ContextRule
from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.noise_schedule import Renoise
from physis_stream.models.rope import rope_table
from physis_stream.models.tiny.weights import LoadedWorld, tiny_random
from tests.oracles.player import Player, wander
from tests.oracles.reference import roll_out, transparent

RULES = [("clean", True), ("cascade", True), ("cascade", False), ("same_step", False)]
CHUNKS = 11
TOLERANCE = 1e-5
"""Relative to the greatest latent; measured at most 2e-6 with these worlds."""


def world(window: int = 3, sink: int = 0, renoise: Renoise = Renoise.FRESH) -> LoadedWorld:
    made = tiny_random(window=window, sink=sink)
    return made._replace(profile=dataclasses.replace(made.profile, renoise=renoise))


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Greatest absolute difference over the greatest magnitude."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize(("discipline", "commit"), RULES)
@pytest.mark.parametrize(("window", "sink"), [(3, 0), (3, 1), (2, 2)])
def test_a_paged_rollout_is_the_dense_one_past_the_window(discipline, commit, window, sink):
    loaded, actions = world(window, sink), wander(CHUNKS)
    player = Player(transparent(loaded, discipline, commit), max_sessions=4)
    player.open("a", seed=5)
    for action in actions:
        player.step(a=action)
    wanted = roll_out(loaded, loaded.profile.rule(discipline, commit), 5, actions)
    assert difference(player.latents("a"), wanted.latents) < TOLERANCE
    player.loop.check_integrity()


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_steps_queued_ahead_give_the_same_world_as_steps_one_by_one(discipline, commit):
    """The wavefront: several chunks of one session in flight in one batch."""
    loaded, actions = world(3, 1), wander(CHUNKS)
    player = Player(transparent(loaded, discipline, commit), max_sessions=4)
    player.open("a", seed=5)
    for action in actions:
        player.queue("a", action)
    player.run()
    wanted = roll_out(loaded, loaded.profile.rule(discipline, commit), 5, actions)
    assert difference(player.latents("a"), wanted.latents) < TOLERANCE
    if discipline != "clean":
        assert player.loop.metrics.batch_rows_mean > 2, "the wavefront did not form"


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_implied_noise_is_carried_from_step_to_step(discipline, commit):
    loaded, actions = world(renoise=Renoise.IMPLIED), wander(6)
    player = Player(transparent(loaded, discipline, commit), max_sessions=4)
    player.open("a", seed=1)
    for action in actions:
        player.queue("a", action)
    player.run()
    wanted = roll_out(loaded, loaded.profile.rule(discipline, commit), 1, actions)
    assert difference(player.latents("a"), wanted.latents) < TOLERANCE


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_the_oracle_can_tell_a_wrong_window(discipline, commit):
    """A context one chunk short or one step off shows far above the tolerance: the comparison is able to fail."""
    loaded, actions = world(3), wander(CHUNKS)
    rule = loaded.profile.rule(discipline, commit)
    right = roll_out(loaded, rule, 5, actions).latents
    short = roll_out(loaded, dataclasses.replace(rule, window=2), 5, actions).latents
    assert difference(short, right) > 20 * TOLERANCE


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_cached_rows_are_what_trainings_mask_computes_in_one_forward(discipline, commit):
    loaded, actions = world(3), wander(CHUNKS)
    rule: ContextRule = loaded.profile.rule(discipline, commit)
    rollout = roll_out(loaded, rule, 5, actions)
    groups = Groups.of(rule, len(actions) + 1)
    assert [(step.frame, step.version) for step in rollout.steps] == list(
        zip(groups.frames, groups.versions, strict=True)
    )
    model = loaded.transformer
    head_dim = model.config.width // model.config.num_heads
    table = rope_table(len(actions) + 1, *model.grid, head_dim, placeless=1)
    with torch.inference_mode():
        velocity = model(
            torch.stack([step.x_t for step in rollout.steps]),
            torch.tensor([step.told for step in rollout.steps]),
            torch.stack([step.action for step in rollout.steps]),
            DenseAttention(groups, rule, table),
        )
    x_t = torch.stack([step.x_t for step in rollout.steps])
    level = torch.tensor([step.level for step in rollout.steps])[:, None, None, None]
    wanted = torch.stack([step.x0 for step in rollout.steps])
    assert difference(x_t - level * velocity, wanted) < TOLERANCE
