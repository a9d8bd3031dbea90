"""One batched denoising step: the same arithmetic for every row, whatever its role.

    x_t = (1 - t) x0 + t eps      v = model(x_t, told level, action)      x0' = x_t - t v      eps' = x0' + v

A row that denoises has t > 0; a row that only writes clean KV (commit, prime) has t = 0, keeps its x0 and is told
the level that the profile names for clean context. Roles are thus numbers in the rows, and the loop has no branches.
Latents are fp32 whatever the weights are. It knows no sessions, and no KV but through `attend`.

Legend: R rows of one batch, C H W of a chunk's latent (C may hold frames x channels), A action numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from physis_stream.models.interface import Attend
from physis_stream.models.noise_schedule import add_noise, estimate


class Denoiser(Protocol):
    """A model's forward: latents (R, C, H, W) fp32, levels (R,), actions (R, A); returns velocities (R, C, H, W)
    fp32.
    """

    def __call__(self, x_RCHW: Tensor, t_R: Tensor, action_RA: Tensor, attend: Attend) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class StepInput:
    """What the rows of one batch start from; all fp32.

    `x0_RCHW` is the estimate so far (ignored where `level_R` is 1), `noise_RCHW` what it is noised with, `level_R`
    how far, and `told_R` the level that the model is told.
    """

    x0_RCHW: Tensor
    noise_RCHW: Tensor
    level_R: Tensor
    told_R: Tensor
    action_RA: Tensor


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The new estimate and the noise that it implies, (R, C, H, W) fp32. Not finite where the row went wrong."""

    x0_RCHW: Tensor
    noise_RCHW: Tensor


def denoise_step(model: Denoiser, attend: Attend, step: StepInput) -> StepOutput:
    """Advance every row by one step; writes the rows' KV through `attend` and changes none of its arguments."""
    x_t = add_noise(step.x0_RCHW, step.noise_RCHW, step.level_R)
    velocity = model(x_t, step.told_R, step.action_RA, attend)
    x0 = estimate(x_t, velocity, step.level_R)
    return StepOutput(x0, x0 + velocity)
