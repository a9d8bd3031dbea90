"""Play an environment and keep what was seen: frames, actions and states, flat on disk.

A data set is a folder of shards, written by one process each:

    shard_00/frames.npy   uint8   (N, H, W, 3)
    shard_00/actions.npy  float32 (N, A)   the action that *led to* frame n; of an episode's first frame, the default
    shard_00/states.npy   float32 (N, D)
    shard_00/starts.npy   int64   (N,)     index of the first frame of the episode that frame n belongs to

Frames are mapped, not read, so that a set larger than memory can be trained on. Plays of which nobody needs pictures
are kept without frames.npy: a simulator that is not drawn is several times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from physis_stream.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a data set, mapped read-only; see the module's table for shapes."""

    frames: NDArray[np.uint8]
    actions: NDArray[np.float32]
    states: NDArray[np.float32]
    starts: NDArray[np.int64]


Report = Callable[[int, dict[str, float]], None]


def _silent(step: int, losses: dict[str, float]) -> None:
    """Report nothing."""


def collect(
    recipe: Recipe, folder: Path, num_frames: int, seed: int, report: Report = _silent, *, pictures: bool = True
) -> None:
    """Play whole episodes until `num_frames` frames are written to `folder`; the same seed gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    size, num_actions, num_states = recipe.size, len(recipe.action_low), len(recipe.state.names)
    frames = open_memmap(folder / "frames.npy", "w+", np.uint8, (num_frames, size, size, 3)) if pictures else None
    actions = open_memmap(folder / "actions.npy", "w+", np.float32, (num_frames, num_actions))
    states = open_memmap(folder / "states.npy", "w+", np.float32, (num_frames, num_states))
    starts = open_memmap(folder / "starts.npy", "w+", np.int64, (num_frames,))
    rng = np.random.default_rng(seed)
    env = recipe.make()
    n = 0
    while n < num_frames:
        first = n
        state = recipe.reset(env, rng)
        play = recipe.policy(env, rng)
        action = np.asarray(recipe.action_default, np.float32)
        ended = False
        while n < num_frames and n - first < recipe.episode_frames:
            actions[n], states[n], starts[n] = action, state, first
            if frames is not None:
                frames[n] = recipe.frame(env)
            report(n, {})
            n += 1
            if ended:
                break
            action = play(state)
            state, ended = recipe.step(env, action)
    env.close()
    for array in (frames, actions, states, starts):
        if array is not None:
            array.flush()


def open_shards(folder: Path) -> list[Shard]:
    """Map the shards of a data set in order of name. Raises FileNotFoundError if there are none."""
    shards = [
        Shard(*(np.load(path / f"{part}.npy", mmap_mode="r") for part in ("frames", "actions", "states", "starts")))
        for path in sorted(folder.glob("shard_*"))
        if (path / "starts.npy").exists()
    ]
    if not shards:
        raise FileNotFoundError(f"no shards in {folder}: collect frames into it first")
    return shards
