"""Numbers carried by a latent: the last channel of a tiny world's latents holds the simulator's state, many times over.

    values (..., V)  normalised numbers, as `TinyReadout.targets` makes them     plane (..., 1, h, w)  cell i holds
                                                                                 SCALE x value i mod V

The engine knows nothing of it: to it a latent is a latent, noised cell by cell. Because each number is written into
many cells, and large, noise hides it only at levels near 1: what a picture shows as a whole is settled before its
details, as with the resolution-dependent shift of noise schedules (Esser et al., 2024, arXiv 2403.03206).
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = 50.0
"""What a value of one standard deviation is in the plane."""


def spread(values: Tensor, height: int, width: int) -> Tensor:
    """Return the plane (..., 1, height, width) of values (..., V)."""
    index = torch.arange(height * width, device=values.device) % values.shape[-1]
    plane: Tensor = (SCALE * values[..., index]).unflatten(-1, (1, height, width))
    return plane


def gather(plane: Tensor, count: int) -> Tensor:
    """Return the `count` values (..., V) of a plane (..., h, w): the mean of all copies that are complete sets."""
    cells = plane.flatten(-2)
    sets = cells.shape[-1] // count
    values: Tensor = cells[..., : sets * count].unflatten(-1, (sets, count)).mean(-2) / SCALE
    return values


def precondition(values: Tensor, found: Tensor, level_R1: Tensor, share: float) -> Tensor:
    """Return the estimate of clean values (R, V) from noisy `values` = (1 - t) x0 + t noise and a network's output.

    The network's output is the answer at t = 1, and below it a correction in units of the noise that is left, which
    has the deviation `share` times t: what is known already passes through exactly (the skip connection of Karras et
    al., 2022, arXiv 2206.00364, table 1, for data of unit deviation).
    """
    kept, noise = 1 - level_R1, share * level_R1
    total = kept.square() + noise.square()
    return values * (kept / total) + found * (noise * total.rsqrt())


def noise_share(height: int, width: int, count: int) -> float:
    """Return the deviation that unit noise on the plane has on its values."""
    return float((height * width // count) ** -0.5) / SCALE
