"""Train the state's part of a world's transformer, alone: one token a frame, so thousands of frames a second.

The state is what a picture shows as a whole (where things are, how they are turned). A picture model that has to find
it out token by token lets rigid things bend; here it is a small causal transformer over the simulator's numbers, which
the picture then follows. The error is pseudo-Huber, number by number: exactness counts where little is left to learn,
and a number that is hard to foresee (a reward) does not drown the others.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.rope import RopeTable, rope_table
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.state_plane import noise_share
from physis_stream.training.latents import LatentSet
from physis_stream.training.recipe import Recipe
from physis_stream.training.trainer import Trainer, build_transformer, is_state
from physis_stream.training.world_config import WorldTraining

SMALL = 0.01
"""Error, in deviations of a number, below which the error turns from linear to squared."""


def placeless_rope(transformer: TinyWorldTransformer, frames: int) -> RopeTable:
    """Return the rotations of a sequence of state tokens without pictures."""
    head_dim = transformer.config.width // transformer.config.num_heads
    return RopeTable(*(table[:, 1:] for table in rope_table(frames, 1, 1, head_dim, placeless=1)))


class StateModel(nn.Module):
    """The state's part of a transformer as a denoiser of values (R, V)."""

    def __init__(self, transformer: TinyWorldTransformer) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, values_RV: Tensor, level: Tensor, action: Tensor, attend: DenseAttention) -> Tensor:
        """Return estimates (R, V) of the clean values."""
        model = self.transformer
        token = model.embed_state(values_RV, level, action)
        for index, block in enumerate(model.blocks):
            token = block.get_submodule("state")(index, token, attend)
        return model.state_head(token[:, 0], values_RV, level)


class StateLoss(nn.Module):
    """From noisy values to the error, averaged over the rows where `target` (R,) is 1; the unit that is compiled."""

    def __init__(self, transformer: TinyWorldTransformer) -> None:
        super().__init__()
        self.model = StateModel(transformer)

    def forward(
        self, values_t: Tensor, values: Tensor, level: Tensor, action: Tensor, target: Tensor, attend: DenseAttention
    ) -> Tensor:
        found = self.model(values_t, level, action, attend)
        distance = (((found - values).square() + SMALL**2).sqrt() - SMALL).sum(1)
        mean: Tensor = (distance * target).sum() / target.sum()
        return mean


class StateTrainer(Trainer):
    """The stage; only the state's parameters move."""

    def __init__(
        self, recipe: Recipe, data: LatentSet, readout: TinyReadout, config: WorldTraining, out: Path,
        *, compiled: bool = True,
    ) -> None:  # fmt: skip
        transformer = build_transformer(recipe, data, readout, config)
        for name, parameter in transformer.named_parameters():
            parameter.requires_grad_(is_state(name))
        loss = StateLoss(transformer)
        self.deviation = noise_share(data.latents.shape[-2], data.latents.shape[-1], readout.num_targets)
        rope = placeless_rope(transformer, config.frames)
        super().__init__(
            transformer, loss, recipe, data.plays or data, readout, config, rope, out / "state.pt", compiled=compiled
        )

    def opens_fresh(self, part: int, address: int) -> bool:
        return address % 4 == 0

    def batch(self, address: int, groups: Groups, *, fresh: bool) -> tuple[Tensor, ...]:
        """Return values (R, V) and actions (R, A)."""
        actions, states = self.draw.states(address, self.config.micro_batch, fresh_start=fresh)
        frame = torch.tensor(groups.frames)
        return self.readout.targets(states)[:, frame].flatten(0, 1), actions[:, frame].flatten(0, 1)
