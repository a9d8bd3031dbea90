"""Fidelity of a world: open-loop rollouts beside the simulator's, and closed-loop rollouts long enough to collapse.

What a frame shows is measured from its pixels by the world's own pose estimator (`training.pusht_pose`), never by the
model's readout; for worlds without one only pictures are compared. PSNR is that of the mean squared error over all
rollouts at a horizon, beside what repeating the first frame would score.

Legend: N rollouts, T steps. Frames uint8 RGB.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from physis_stream.models.tiny.weights import LoadedWorld
from physis_stream.training.heldout import HeldOut
from physis_stream.training.pusht_pose import (
    AGENT_AREA,
    SCALE,
    angle_difference,
    block_centre,
    estimate_poses,
    to_pixels,
)
from physis_stream.training.rollout import Rollout, Sampling
from physis_stream.training.train_codec import to_signed, to_uint8

HORIZONS = (1, 10, 30, 60)


def sampling_of(world: LoadedWorld, discipline: str | None = None, commit: bool | None = None) -> Sampling:
    """Return how the world's profile says it is sampled, under its default or another of its rules."""
    profile = world.profile
    return Sampling(profile.rule(discipline, commit), profile.levels, profile.commit_level, profile.renoise)


@torch.inference_mode()
def dream(
    world: LoadedWorld, sampling: Sampling, first: NDArray[np.uint8], actions: NDArray[np.float32], seed: int = 0,
    states: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:  # fmt: skip
    """Roll out N sessions from `first` (N, H, W, 3) under actions (N, T, A); returns frames (N, T, H, W, 3) and
    readouts. They open with `states` (N, D), as a session from a world's starts does, or with what the readout sees in
    the picture, as a session from an image does."""
    count = len(first)
    codec = world.vision
    pictures = to_signed(torch.from_numpy(first)).to(world.codec.decoder_in.weight.dtype)[:, None]
    if states is None:
        latents = codec.encode(pictures)[:, 0]
    else:
        latents = codec.with_states(world.codec.encode(pictures).float(), torch.from_numpy(states)[:, None])[:, 0]
    rollout = Rollout(world.transformer, sampling, seed)
    rollout.prime(latents, torch.tensor(world.profile.action.default).expand(count, -1))
    _, state = codec.decode(latents[:, None], codec.initial_state(count))
    frames, readouts = [], []
    for step in range(actions.shape[1]):
        latents = rollout.step(torch.from_numpy(actions[:, step]))
        decoded, state = codec.decode(latents[:, None], state)
        frames.append(to_uint8(decoded[:, 0]).numpy())
        readouts.append(world.readout(latents).numpy())
    return np.stack(frames, 1), np.stack(readouts, 1)


def psnr(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Return the PSNR in dB of the mean squared error over everything."""
    error = float(np.mean((a.astype(np.float32) - b.astype(np.float32)) ** 2))
    return 10 * math.log10(255**2 / max(error, 1e-9))


def picture_scores(frames: NDArray[np.uint8], truth: HeldOut) -> dict[str, Any]:
    """Compare dreamed frames (N, T, …) with the simulator's at the horizons that fit."""
    horizons = [h for h in HORIZONS if h <= frames.shape[1]]
    return {
        "psnr": {str(h): psnr(frames[:, h - 1], truth.frames[:, h]) for h in horizons},
        "psnr_repeat_first": {str(h): psnr(truth.frames[:, 0], truth.frames[:, h]) for h in horizons},
    }


def pose_scores(
    frames: NDArray[np.uint8], readouts: NDArray[np.float32], truth: HeldOut, horizons: tuple[int, ...] = HORIZONS
) -> dict[str, Any]:
    """Score the poses that dreamed `pusht` frames show; block errors count rollouts in which the block had been
    moved."""
    horizons = tuple(h for h in horizons if h <= frames.shape[1])
    found: dict[str, Any] = {"agent_error_px": {}, "block_error_px": {}, "block_error_deg": {}, "by_horizon": {}}
    agent_all, seen = [], []
    start = block_centre(truth.states[:, 0])
    for horizon in horizons:
        poses = estimate_poses(frames[:, horizon - 1])
        state, centre = truth.states[:, horizon], block_centre(truth.states[:, horizon])
        turned = angle_difference(state[:, 4], truth.states[:, 0, 4])
        moved = (np.linalg.norm(centre - start, axis=-1) > 1) | (turned > 3)
        agent = np.linalg.norm(poses.agent_xy - to_pixels(state[:, :2]), axis=-1)
        block = np.linalg.norm(poses.block_xy - centre, axis=-1)
        angle = angle_difference(poses.block_angle, state[:, 4])
        lost = np.isnan(block)
        block, angle = np.where(lost, 48.0, block), np.where(lost, 90.0, angle)
        readout = readouts[:, horizon - 1]
        agent_all.append(agent)
        seen.append(poses.agent_area > 0.4 * AGENT_AREA)
        found["agent_error_px"][str(horizon)] = float(np.nanmean(agent))
        found["block_error_px"][str(horizon)] = float(block[moved].mean())
        found["block_error_deg"][str(horizon)] = float(angle[moved].mean())
        found["by_horizon"][str(horizon)] = {
            "moved": int(moved.sum()),
            "block_median_px": float(np.median(block[moved])),
            "block_median_deg": float(np.median(angle[moved])),
            "block_moved_px": float(np.linalg.norm(centre - start, axis=-1)[moved].mean()),
            "agent_seen": float(np.mean(seen[-1])),
            "block_area": float(np.mean(poses.block_area)),
            "misfit": float(np.nanmean(poses.misfit)),
            "readout_agent_px": float(np.nanmean(np.linalg.norm(to_pixels(readout[:, :2]) - poses.agent_xy, axis=-1))),
            "readout_block_px": float(np.nanmean(np.linalg.norm(block_centre(readout) - poses.block_xy, axis=-1))),
            "readout_deg": float(np.nanmean(angle_difference(readout[:, 4], poses.block_angle))),
        }
    found["agent_error_mean_px"] = float(np.nanmean(np.concatenate(agent_all)))
    found["agent_seen"] = float(np.mean(np.concatenate(seen)))
    return found


def stability(
    world: LoadedWorld,
    sampling: Sampling,
    steps: int,
    play: Callable[[int], Callable[[NDArray[np.float32]], NDArray[np.float32]]],
    sessions: int = 8,
    seed: int = 0,
    every: int = 5,
) -> dict[str, Any]:
    """Dream `steps` frames per session with players that see only the readout; measures every fifth frame's poses.

    `play(session)` makes a player from readout (D,) to action (A,). `stable_steps` is the last measured step before the
    first hundred in which agent or block was lost in more than a tenth of the frames.
    """
    starts = world.starts
    pick = torch.arange(sessions) * max(1, len(starts.latents) // sessions)
    latents = starts.latents[pick]
    rollout = Rollout(world.transformer, sampling, seed)
    rollout.prime(latents, torch.tensor(world.profile.action.default).expand(sessions, -1))
    state = world.codec.initial_state(sessions)
    readouts = starts.states[pick].numpy()
    players = [play(session) for session in range(sessions)]
    seen, areas = [], []
    with torch.inference_mode():
        for step in range(steps):
            actions = np.stack([player(readout) for player, readout in zip(players, readouts, strict=True)])
            latents = rollout.step(torch.from_numpy(actions.astype(np.float32)))
            decoded, state = world.vision.decode(latents[:, None], state)
            readouts = world.readout(latents).numpy()
            if step % every == every - 1:
                poses = estimate_poses(to_uint8(decoded[:, 0]).numpy())
                seen.append(poses.agent_area > 0.4 * AGENT_AREA)
                areas.append(poses.block_area)
    return _stability_scores(np.array(seen), np.array(areas), every)


def _stability_scores(seen: NDArray[np.bool_], areas: NDArray[np.float64], every: int) -> dict[str, Any]:
    nominal = 6300 * SCALE**2 * 0.88
    whole = np.abs(areas / nominal - 1) < 0.2
    span = max(1, 100 // every)
    stable = len(seen) * every
    for first in range(0, len(seen) - span + 1, span):
        if seen[first : first + span].mean() < 0.9 or (areas[first : first + span] > 0.5 * nominal).mean() < 0.9:
            stable = first * every
            break
    return {
        "stable_steps": stable,
        "agent_seen": float(seen.mean()),
        "block_whole": float(whole.mean()),
        "block_area": float(areas.mean()),
    }
