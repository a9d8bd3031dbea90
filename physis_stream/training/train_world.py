"""Train a world's picture under the context rules that it will be served with, over a state that is already trained.

A batch is one layout (`training.layouts`). A sequence opens with one frame that is given (an episode's first, at rest)
or with two (anywhere: two frames show the velocity). A share `own_context` of the batches sees the model's own
estimates as clean rows, after 1 to `own_passes` passes: a model that is exact for one frame after true ones still
dissolves when it is fed with its own. A share `distrust` of the sequences has wrong pictures in its clean rows. The
state beside them stays true, so that the picture learns to follow it whatever the pictures before have come to. The
error is that of x0, weighted towards what moves; the state's part of the transformer is not moved by it.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.rope import rope_table
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.state_plane import spread
from physis_stream.training import checkpoint
from physis_stream.training.latents import LatentSet, Sequences
from physis_stream.training.layouts import mislead
from physis_stream.training.recipe import Recipe
from physis_stream.training.trainer import Trainer, build_transformer, is_state
from physis_stream.training.world_config import WorldTraining

ROBUST = 0.3
"""Where a cell's error turns from squared to linear. The mean of several possible pictures, which a squared error asks
for, is a smear, and smears are what the next frame is made from; a linear error asks for the likeliest. Pseudo-Huber,
as in consistency training (Song and Dhariwal, 2023, arXiv 2310.14189)."""


class Denoiser(nn.Module):
    """A transformer as a map from noisy rows to estimates of x0."""

    def __init__(self, transformer: TinyWorldTransformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, x_t: Tensor, level: Tensor, action: Tensor, attend: DenseAttention) -> Tensor:
        """Return estimates (R, C, H, W), fp32."""
        found: Tensor = x_t - level.clamp_min(0.02)[:, None, None, None] * self.transformer(x_t, level, action, attend)
        return found


class WorldLoss(nn.Module):
    """From a packed batch to its loss; the unit that is compiled."""

    def __init__(self, transformer: TinyWorldTransformer) -> None:
        super().__init__()
        self.model = Denoiser(transformer)

    def forward(
        self, x_t: Tensor, x0: Tensor, level: Tensor, action: Tensor, weight: Tensor, target: Tensor,
        attend: DenseAttention,
    ) -> Tensor:  # fmt: skip
        """Return the weighted error of the picture's channels, averaged over the rows where `target` (R,) is 1."""
        found = self.model(x_t, level, action, attend)
        cell = (found - x0)[:, :-1].square().mean(1, keepdim=True)
        robust = (cell + ROBUST**2).sqrt() - ROBUST
        error = (weight * robust).mean((1, 2, 3)) / level.clamp_min(0.5)
        mean: Tensor = (error * target).sum() / target.sum()
        return mean


def pack(groups: Groups, batch: Sequences, readout: TinyReadout) -> tuple[Tensor, Tensor, Tensor]:
    """Lay out latents with their state plane (R, C, H, W), actions (R, A) and the weight of every cell (R, 1, H, W),
    rows in the order of the groups."""
    frame = torch.tensor(groups.frames)
    picture = batch.latents[:, frame].flatten(0, 1)
    before = batch.latents[:, (frame - 1).clamp_min(0)].flatten(0, 1)
    moved = (picture - before).square().mean(1, keepdim=True)
    plane = spread(readout.targets(batch.states)[:, frame].flatten(0, 1), *picture.shape[-2:])
    action = batch.actions[:, frame].flatten(0, 1)
    return torch.cat((picture, plane), 1), action, 1 + 3 * moved / (moved + 0.5)


class WorldTrainer(Trainer):
    """The stage; starts from the state that `out/state.pt` holds, if there is one, and leaves it as it is."""

    compiled_layouts = ("clean", "cascade", "alone")

    def __init__(
        self, recipe: Recipe, data: LatentSet, readout: TinyReadout, config: WorldTraining, out: Path,
        *, compiled: bool = True,
    ) -> None:  # fmt: skip
        transformer = build_transformer(recipe, data, readout, config)
        if (state := checkpoint.load(out / "state.pt")) is not None:
            learned = {name: value for name, value in state["average"].items() if is_state(name)}
            transformer.load_state_dict(learned, strict=False)
        for name, parameter in transformer.named_parameters():
            parameter.requires_grad_(not is_state(name))
        loss = WorldLoss(transformer)
        head_dim = config.width // config.num_heads
        rope = rope_table(config.frames, transformer.grid[0], transformer.grid[1], head_dim, placeless=1)
        super().__init__(transformer, loss, recipe, data, readout, config, rope, out / "world.pt", compiled=compiled)

    def opens_fresh(self, part: int, address: int) -> bool:
        return part % 3 == 0

    def batch(self, address: int, groups: Groups, *, fresh: bool) -> tuple[Tensor, ...]:
        """Return latents (R, C, H, W), actions (R, A) and the weight of every cell."""
        return pack(groups, self.draw(address, self.config.micro_batch, fresh_start=fresh), self.readout)

    def in_context(self, x_t: Tensor, own: Tensor, clean: Tensor, noise: torch.Generator) -> Tensor:
        """Keep the true state beside the model's own pictures, and make pictures wrong in the share that is told to
        distrust them."""
        if own is not x_t:
            x_t = torch.cat((own[:, :-1], x_t[:, -1:]), 1)
        share = self.config.distrust
        return mislead(x_t, clean, noise, share) if share and clean.any() else x_t
