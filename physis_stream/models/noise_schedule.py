"""Flow matching along a straight path, with a handful of fixed noise levels.

    x_t = (1 - t) x0 + t eps        the model predicts v = eps - x0        x0 = x_t - t v
    t from 1 (noise) to 0 (clean)

A chunk is denoised in S steps at levels t_0 > t_1 > ... > t_{S-1}; after step s the estimate of x0 is noised again to
t_{s+1}, either with fresh noise or with the noise that the estimate implies (the deterministic Euler step). All of it
is fp32.
"""

from __future__ import annotations

from enum import StrEnum

from torch import Tensor


class Renoise(StrEnum):
    """How an estimate goes to the next level, as written in a profile."""

    FRESH = "fresh"
    IMPLIED = "implied"


def add_noise(x0: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """Noise x0 (R, C, H, W) to levels t (R,)."""
    level = t.view(-1, *([1] * (x0.ndim - 1)))
    return x0 + level * (noise - x0)


def estimate(x_t: Tensor, velocity: Tensor, t: Tensor) -> Tensor:
    """Return the estimate of x0 (R, C, H, W) from the predicted velocity at levels t (R,)."""
    return x_t.float() - t.view(-1, *([1] * (x_t.ndim - 1))) * velocity.float()


def implied_noise(x_t: Tensor, velocity: Tensor, t: Tensor) -> Tensor:
    """Return the noise (R, C, H, W) that x_t holds if the estimate is right: x0 + v."""
    return estimate(x_t, velocity, t) + velocity.float()
