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
from typing import Any

import torch
from torch import Tensor, nn

from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.rope import rope_table
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.state_plane import spread
from physis_stream.training import checkpoint
from physis_stream.training.latents import LatentSet, Sequences
from physis_stream.training.layouts import draw_levels, is_clean, mislead, noised, with_own_context
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
        self.plain = loss
        self.run: Any = torch.compile(loss, dynamic=False) if compiled else loss
        self.denoise: Any = torch.compile(loss.model, dynamic=False) if compiled else loss.model
        head_dim = config.width // config.num_heads
        rope = rope_table(config.frames, transformer.grid[0], transformer.grid[1], head_dim, placeless=1)
        super().__init__(transformer, loss, recipe, data, readout, config, rope, out / "world.pt")

    def part(self, step: int, part: int) -> Tensor:
        """Add the gradient of one micro-batch, which (step, part) determines; returns its share of the loss."""
        config, name = self.config, self.layout(step)
        address = step * self.num_parts + part
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + address)
        fresh = part % 3 == 0
        groups, rule, attend = self.packed[name]
        batch = self.draw(address, config.micro_batch, fresh_start=fresh)
        first_target = 0 if name == "alone" else 1 if fresh else 2
        x0, action, weight = pack(groups, batch, self.readout)
        level = draw_levels(name, config, groups, config.micro_batch, noise).flatten()
        clean, frame = is_clean(name, config, groups), torch.tensor(groups.frames)
        target = ((frame >= first_target) & ~clean).float().repeat(config.micro_batch)
        x_t = noised(x0, torch.randn(x0.shape, generator=noise), level, clean.repeat(config.micro_batch))
        # Compiling takes a minute a layout; it pays for those that most batches have.
        pays = name in ("clean", "cascade", "alone")
        run, denoise = (self.run, self.denoise) if pays else (self.plain, self.plain.model)
        with torch.autocast("cpu", torch.bfloat16):
            if name != "alone" and (passes := self.own_passes(rule, noise)):
                own = with_own_context(x_t, level, action, denoise, groups, rule, attend, noise, first_target, passes)
                x_t = torch.cat((own[:, :-1], x_t[:, -1:]), 1)
            if config.distrust and name != "alone":
                x_t = mislead(x_t, clean, noise, config.distrust)
            error = run(x_t, x0, level, action, weight, target, attend)
        (error / self.num_parts).backward()
        share: Tensor = error.detach() / self.num_parts
        return share
