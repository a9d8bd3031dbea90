"""Where agent and block are in a `pusht` picture, measured from its pixels alone.

The yardstick of the evaluation must not be the model's own readout. The agent is the centroid of what is royal blue;
the block's pose is the T whose drawn silhouette fits the slate-grey pixels best: a coarse search over angles, then
Gauss-Newton on position and angle. Pixels of the agent, which is drawn over the block, do not count. On simulator
frames the estimator's own error is known (see `docs/worlds.md`), and bounds what it can say about a model.

Pictures are uint8 (N, 96, 96, 3); positions are in picture pixels, angles in radians. The block's position is its
centre of gravity, which does not move when the angle is misjudged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SCALE = 96 / 512
"""Picture pixels per environment unit."""
AGENT_AREA = 25.0
"""Pixels of the agent's disc at 96x96, counted as this module counts."""
Numbers = NDArray[np.floating[Any]]
_CENTRE_OF_GRAVITY = 45.0
_AREA_CENTRE = 40.7
_OUTLINE = 1.2  # environment units that the drawn outline adds around a shape


@dataclass(frozen=True, slots=True)
class Poses:
    """What N pictures show. Entries are NaN where agent or block cannot be seen; `misfit` is the share of the block's
    silhouette left unexplained (0 is perfect)."""

    agent_xy: NDArray[np.float64]
    agent_area: NDArray[np.float64]
    block_xy: NDArray[np.float64]
    block_angle: NDArray[np.float64]
    block_area: NDArray[np.float64]
    misfit: NDArray[np.float64]


def block_centre(states: Numbers) -> NDArray[np.float64]:
    """Return the block's centre of gravity in picture pixels from simulator states (..., 6)."""
    angle = states[..., 4].astype(np.float64)
    arm = _CENTRE_OF_GRAVITY * np.stack((-np.sin(angle), np.cos(angle)), -1)
    return to_pixels(states[..., 2:4] + arm)


def to_pixels(xy: Numbers) -> NDArray[np.float64]:
    """Turn environment coordinates into picture pixels (centre of the first pixel is 0)."""
    return (np.asarray(xy, np.float64) + 0.5) * SCALE - 0.5


def angle_difference(a: Numbers, b: Numbers) -> NDArray[np.float64]:
    """Return |a - b| on the circle, in degrees."""
    turn = np.asarray(a, np.float64) - np.asarray(b, np.float64)
    return np.abs(np.rad2deg((turn + np.pi) % (2 * np.pi) - np.pi))


def _masks(pictures: Tensor) -> tuple[Tensor, Tensor]:
    red, green, blue = pictures.float().unbind(-1)
    agent = ((blue - red - 70) / 60).clamp(0, 1)
    block = ((195 - green) / 50).clamp(0, 1) * (1 - ((blue - red - 50) / 30).clamp(0, 1))
    return agent, block


def _silhouette(pose_K3: Tensor, grid: Tensor) -> Tensor:
    """Draw T's with poses (x, y, angle) of their area centre: (K, 96, 96) in 0..1 with an edge one pixel soft."""
    sine, cosine = pose_K3[:, 2].sin()[:, None, None], pose_K3[:, 2].cos()[:, None, None]
    dx, dy = grid[0] - pose_K3[:, 0, None, None], grid[1] - pose_K3[:, 1, None, None]
    u, w = cosine * dx + sine * dy, -sine * dx + cosine * dy + _AREA_CENTRE * SCALE
    out = None
    for left, top, right, bottom in ((-60, 0, 60, 30), (-15, 25, 15, 120)):
        centre_u, centre_w = (left + right) / 2 * SCALE, (top + bottom) / 2 * SCALE
        a = (u - centre_u).abs() - ((right - left) / 2 + _OUTLINE) * SCALE
        b = (w - centre_w).abs() - ((bottom - top) / 2 + _OUTLINE) * SCALE
        distance = torch.maximum(a, b)
        out = distance if out is None else torch.minimum(out, distance)
    assert out is not None
    return (0.5 - out).clamp(0, 1)


@torch.inference_mode()
def estimate_poses(pictures: NDArray[np.uint8], batch: int = 32) -> Poses:
    """Measure N pictures (N, 96, 96, 3) uint8."""
    parts = [_estimate(torch.from_numpy(pictures[i : i + batch])) for i in range(0, len(pictures), batch)]
    columns = [torch.cat(column).double().numpy() for column in zip(*parts, strict=True)]
    return Poses(*columns)


def _estimate(pictures: Tensor) -> tuple[Tensor, ...]:
    agent, block = _masks(pictures)
    rows = torch.arange(96.0)
    grid = torch.stack(torch.meshgrid(rows, rows, indexing="xy"))
    agent_area, block_area = agent.sum((1, 2)), block.sum((1, 2))
    agent_xy = torch.stack([(agent * g).sum((1, 2)) for g in grid], -1) / agent_area.clamp_min(1e-3)[:, None]
    agent_xy[agent_area < 0.3 * AGENT_AREA] = torch.nan
    centre = torch.stack([(block * g).sum((1, 2)) for g in grid], -1) / block_area.clamp_min(1e-3)[:, None]
    weight = 1 - torch.nn.functional.max_pool2d(agent[:, None], 3, stride=1, padding=1)[:, 0]
    pose = _coarse(block, weight, centre, grid)
    for _ in range(8):
        pose = _refine(block, weight, pose, grid)
    left = ((_silhouette(pose, grid) - block).square() * weight).sum((1, 2)) / block_area.clamp_min(1e-3)
    arm = (_CENTRE_OF_GRAVITY - _AREA_CENTRE) * SCALE
    block_xy = pose[:, :2] + arm * torch.stack((-pose[:, 2].sin(), pose[:, 2].cos()), -1)
    unseen = block_area < 40
    block_xy[unseen], pose[unseen] = torch.nan, torch.nan
    return agent_xy, agent_area, block_xy, pose[:, 2], block_area, left


def _coarse(block: Tensor, weight: Tensor, centre: Tensor, grid: Tensor) -> Tensor:
    """Choose the best of 24 angles about the silhouette's centroid, each after a few refinements of its own."""
    angles = torch.arange(24) * (2 * torch.pi / 24)
    best, best_error = torch.zeros(len(block), 3), torch.full((len(block),), torch.inf)
    for angle in angles:
        pose = torch.cat((centre, angle.expand(len(block), 1)), -1)
        error = ((_silhouette(pose, grid) - block).square() * weight).sum((1, 2))
        better = error < best_error
        best[better], best_error[better] = pose[better], error[better]
    return best


def _refine(block: Tensor, weight: Tensor, pose: Tensor, grid: Tensor) -> Tensor:
    """Take one damped Gauss-Newton step with derivatives by central differences."""
    steps = torch.tensor([0.3, 0.3, 0.03])
    columns = []
    for i in range(3):
        shift = torch.zeros(3)
        shift[i] = steps[i]
        columns.append((_silhouette(pose + shift, grid) - _silhouette(pose - shift, grid)).flatten(1) / (2 * steps[i]))
    jacobian = torch.stack(columns, -1)
    residual = (block - _silhouette(pose, grid)).flatten(1)
    weighted = jacobian * weight.flatten(1)[..., None]
    normal = weighted.transpose(1, 2) @ jacobian + 0.5 * torch.eye(3)
    update = torch.linalg.solve(normal, (weighted.transpose(1, 2) @ residual[..., None]))[..., 0]
    limit = torch.tensor([2.0, 2.0, 0.3])
    refined: Tensor = pose + update.clamp(-limit, limit)
    return refined
