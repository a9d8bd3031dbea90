"""`bench world NAME`: how faithful a world is to the simulator it was trained on, and how long it holds together.

Held-out seeds and a player that touches the block; open-loop rollouts beside the simulator's, poses measured from
pixels. Needs the `train` extra (the simulator). The full run plays 100 rollouts of 60 steps and 5,000 steps of eight
sessions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from physis_stream.bench.machine import machine


def run(name: str = "pusht", quick: bool = False, discipline: str | None = None, **options: Any) -> dict[str, Any]:
    """Measure a world; returns the keys that `docs/metrics` lists. `options`: `commit` picks among a discipline's
    rules.

    Raises ValueError for an unknown world or discipline, or if the simulator is not installed.
    """
    try:
        from physis_stream.training.evaluate import dream, picture_scores, pose_scores, sampling_of, stability
        from physis_stream.training.heldout import play_heldout
        from physis_stream.training.pusht import RECIPE
    except ImportError as missing:
        raise ValueError(
            f"bench world needs the simulator: pip install 'physis-stream[train]' ({missing})"
        ) from missing
    from physis_stream.worlds import load_world

    dtype = torch.bfloat16
    world = load_world(name, dtype)
    if world.profile.name != RECIPE.name:
        raise ValueError(f"bench world measures poses of 'pusht' only, not of {world.profile.name!r}")
    sampling = sampling_of(world, discipline, options.get("commit"))
    truth = play_heldout(RECIPE, 24 if quick else 100, 60)
    frames, readouts = dream(world, sampling, truth.frames[:, 0], truth.actions, states=truth.states[:, 0])
    poses = pose_scores(frames, readouts, truth)
    from_picture = pose_scores(*dream(world, sampling, truth.frames[:, 0], truth.actions), truth)
    steps, sessions = (300, 4) if quick else (5000, 8)
    held = stability(world, sampling, steps, _player(), sessions)
    return {
        "world": world.profile.name,
        "discipline": str(sampling.rule.discipline),
        "commit": sampling.rule.commit,
        "rollouts": len(truth.frames),
        "agent_error_px": poses["agent_error_mean_px"],
        "block_error_px": poses["block_error_px"]["30"],
        "block_error_deg": poses["block_error_deg"]["30"],
        "from_picture": {key: from_picture[key]["30"] for key in ("block_error_px", "block_error_deg")},
        **picture_scores(frames, truth),
        "stable_steps": held["stable_steps"],
        "stability": held,
        "poses": poses,
        "machine": machine(dtype=str(dtype).removeprefix("torch.")),
    }


def _player() -> Callable[[int], Callable[[NDArray[np.float32]], NDArray[np.float32]]]:
    """Return players that act on the readout as the training player acts on the simulator's state."""
    from physis_stream.training.pusht import PointerPolicy

    def play(session: int) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        return PointerPolicy(np.random.default_rng(30_000_000 + session), (0.36, 0.16, 0.12, 0.14, 0.15, 0.07))

    return play
