"""Held-out rollouts: an environment played with seeds that training never used, kept frame by frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from physis_stream.training.recipe import Recipe

FIRST_SEED = 10_000_000
"""Episodes are numbered from here; training seeds are small."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """N episodes of T steps: frames uint8 (N, T+1, H, W, 3), actions (N, T, A), states (N, T+1, D); entry 0 is the
    start."""

    frames: NDArray[np.uint8]
    actions: NDArray[np.float32]
    states: NDArray[np.float32]


def play_heldout(recipe: Recipe, episodes: int, steps: int, first_seed: int = FIRST_SEED) -> HeldOut:
    """Play `episodes` with the recipe's test policy; episodes that end early repeat their last frame."""
    env = recipe.make()
    size, width, depth = recipe.size, len(recipe.action_low), len(recipe.state.names)
    frames = np.empty((episodes, steps + 1, size, size, 3), np.uint8)
    actions = np.empty((episodes, steps, width), np.float32)
    states = np.empty((episodes, steps + 1, depth), np.float32)
    for episode in range(episodes):
        rng = np.random.default_rng(first_seed + episode)
        state, ended = recipe.reset(env, rng), False
        play = recipe.test_policy(env, rng)
        frames[episode, 0], states[episode, 0] = recipe.frame(env), state
        for step in range(steps):
            action = play(state)
            if not ended:
                state, ended = recipe.step(env, action)
            frames[episode, step + 1] = recipe.frame(env)
            actions[episode, step], states[episode, step + 1] = action, state
    env.close()
    return HeldOut(frames, actions, states)
