"""A session dreams the same alone and in company: to the bit in deterministic mode, within rounding otherwise."""

from __future__ import annotations

import pytest
import torch

from physis_stream.core import commands
from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.models.tiny.weights import tiny_random
from tests.oracles.player import Player, latent_of, wander
from tests.oracles.reference import transparent
from tests.oracles.test_paged_is_dense import RULES, TOLERANCE, difference

CHUNKS = 9


def alone(model, actions, **options) -> Player:
    player = Player(model, max_sessions=8, **options)
    player.open("a", seed=5)
    for action in actions:
        player.step(a=action)
    return player


def in_company(model, actions, **options) -> Player:
    """Others join at different times, run ahead in wavefronts of their own, leave in the middle."""
    player = Player(model, max_sessions=8, **options)
    player.open("early", seed=9)
    for action in wander(3, seed=1):
        player.queue("early", action)
    player.open("a", seed=5)
    for number, action in enumerate(actions):
        if number == 2:
            player.open("late", seed=7)
        if number == 6:
            player.command(commands.CloseSession(SessionId("late")))
        for name in player.chunks:
            if name != "a" and not (name == "late" and number >= 6):
                for extra in wander(number % 3, seed=number):
                    player.queue(name, extra)
        player.queue("a", action)
        player.run()
    return player


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_bits_agree_in_deterministic_mode(discipline, commit):
    model, actions = transparent(tiny_random(window=3), discipline, commit), wander(CHUNKS)
    one = alone(model, actions, deterministic=True, fixed_rows=4)
    many = in_company(model, actions, deterministic=True, fixed_rows=4)
    assert torch.equal(one.latents("a"), many.latents("a"))
    assert torch.equal(one.frames("a"), many.frames("a"))


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_without_it_the_difference_is_rounding(discipline, commit):
    model, actions = transparent(tiny_random(window=3), discipline, commit), wander(CHUNKS)
    found = in_company(model, actions).latents("a")
    assert difference(found, alone(model, actions).latents("a")) < TOLERANCE


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_a_fork_is_the_replay_of_its_parents_past(discipline, commit):
    model, actions = transparent(tiny_random(window=3, sink=1), discipline, commit), wander(CHUNKS)
    player = Player(model, max_sessions=8, deterministic=True, fixed_rows=4)
    player.open("a", seed=5)
    for action in actions[:5]:
        player.step(a=action)
    player.command(commands.ForkSession(SessionId("a"), (SessionId("b"), SessionId("c"))))
    for name in "bc":
        player.listen(name)
    for action, other in zip(actions[5:], wander(4, seed=8), strict=True):
        player.step(a=action, b=action, c=other)
    replay = alone(model, actions, deterministic=True, fixed_rows=4)
    assert torch.equal(player.latents("a"), replay.latents("a"))
    assert torch.equal(player.latents("b")[-4:], replay.latents("a")[-4:])
    assert torch.equal(player.frames("b")[-4:], replay.frames("a")[-4:])
    assert not torch.allclose(player.latents("c")[-1], replay.latents("a")[-1])
    player.loop.check_integrity()


@pytest.mark.parametrize(("discipline", "commit"), RULES)
def test_a_restored_snapshot_goes_on_as_it_would_have(discipline, commit):
    model, actions = transparent(tiny_random(window=3), discipline, commit), wander(CHUNKS)
    player = Player(model, max_sessions=8, deterministic=True, fixed_rows=4)
    player.open("a", seed=5)
    for action in actions[:4]:
        player.step(a=action)
    player.command(commands.TakeSnapshot(SessionId("a"), SnapshotId("mark")))
    for action in wander(5, seed=3):
        player.step(a=action)
    player.command(commands.RestoreSnapshot(SessionId("a"), SnapshotId("mark")))
    again = [player.step(a=action)[0] for action in actions[4:]]
    replay = alone(model, actions, deterministic=True, fixed_rows=4)
    found = torch.stack([latent_of(chunk, model.latent_shape) for chunk in again])
    assert torch.equal(found, replay.latents("a")[5:])
    frames = torch.cat([torch.from_numpy(chunk.frames) for chunk in again])
    assert torch.equal(frames, replay.frames("a")[5:])


def test_a_reset_to_the_same_seed_repeats_the_world():
    model, actions = transparent(tiny_random(window=3)), wander(5)
    player = alone(model, actions, deterministic=True, fixed_rows=4)
    player.command(commands.ResetSession(SessionId("a"), 5))
    for action in actions:
        player.step(a=action)
    latents, frames = player.latents("a"), player.frames("a")
    assert torch.equal(latents[:6], latents[6:])
    assert torch.equal(frames[:6], frames[6:])


def test_decoding_chunk_by_chunk_is_decoding_the_whole_clip():
    world, actions = tiny_random(window=3), wander(20)
    player = alone(transparent(world), actions)
    latents = player.latents("a")
    with torch.inference_mode():
        whole, _ = world.vision.decode(latents[None], world.vision.initial_state(1))
    pixels = ((whole[0] + 1) * 127.5).round().clamp(0, 255).movedim(1, -1)
    assert (pixels - player.frames("a").float()).abs().max() <= 1.0
