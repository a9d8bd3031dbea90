"""Turn trained modules into a world folder that can be served."""

from __future__ import annotations

import numpy as np
import torch

from physis_stream.core.context_rule import Discipline
from physis_stream.models.noise_schedule import Renoise
from physis_stream.models.profile import ActionProfile, ReadoutProfile, RuleChoice, WorldProfile
from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.vision import TinyVision
from physis_stream.models.tiny.weights import LoadedWorld, Starts, assemble
from physis_stream.training.recipe import Recipe
from physis_stream.training.train_codec import to_signed

RULES = (
    RuleChoice(Discipline.CASCADE, True),
    RuleChoice(Discipline.CLEAN, True),
    RuleChoice(Discipline.CASCADE, False),
    RuleChoice(Discipline.SAME_STEP, False),
)


def make_profile(
    recipe: Recipe,
    transformer: TinyWorldTransformer,
    levels: tuple[float, ...],
    window: int,
    rules: tuple[RuleChoice, ...] = RULES,
    commit_level: float = 0.1,
    renoise: Renoise = Renoise.FRESH,
) -> WorldProfile:
    """Describe a recipe's world; the first of `rules` is the default."""
    config = transformer.config
    return WorldProfile(
        family="tiny",
        name=recipe.name,
        rules=rules,
        num_steps=len(levels),
        levels=levels,
        commit_level=commit_level,
        renoise=renoise,
        window=window,
        sink=0,
        chunk_frames=1,
        fps=recipe.fps,
        height=recipe.size,
        width=recipe.size,
        latent=(config.latent_channels, config.latent_height, config.latent_width),
        tokens_per_frame=transformer.tokens_per_row,
        action=ActionProfile(
            recipe.action_names, recipe.action_low, recipe.action_high, recipe.action_default, "latest"
        ),
        readout=ReadoutProfile(recipe.state.names, recipe.state.units, recipe.state.angles),
        title=recipe.title,
        description=recipe.description,
    )


@torch.inference_mode()
def make_starts(
    recipe: Recipe, codec: TinyCausalCodec, readout: TinyReadout, count: int, seed: int = 20_000_000
) -> Starts:
    """Reset the environment `count` times and encode what it shows; the resting action comes from the recipe."""
    env = recipe.make()
    frames, states = [], []
    for number in range(count):
        states.append(recipe.reset(env, np.random.default_rng(seed + number)))
        frames.append(recipe.frame(env))
    env.close()
    latents = codec.encode(to_signed(torch.from_numpy(np.stack(frames)))[None]).float()
    found = torch.from_numpy(np.stack(states))
    latents = TinyVision(codec, readout, has_state=True).with_states(latents, found[None])[0]
    return Starts(latents, torch.from_numpy(np.stack([recipe.rest(state) for state in found.numpy()])), found)


def make_world(
    recipe: Recipe,
    transformer: TinyWorldTransformer,
    codec: TinyCausalCodec,
    readout: TinyReadout,
    profile: WorldProfile,
    num_starts: int = 256,
) -> LoadedWorld:
    """Assemble a served world in fp32."""
    return assemble(profile, transformer, codec, readout, make_starts(recipe, codec, readout, num_starts))
