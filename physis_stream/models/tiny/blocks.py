"""Blocks of the tiny worlds' transformer: the picture's tokens and, beside them, one token for the state.

    tokens (R, T, D)   T - 1 picture tokens, then the state token (or pictures only, or the state alone)

Picture tokens attend to everything. The state token has weights of its own and sees state tokens only, so its dynamics
are what they are without any picture: they can be trained alone, at a fraction of the cost, and pictures cannot talk
them out of it. The mask is written into queries and keys (`GATE`), so every attention, dense or paged, keeps it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from physis_stream.models.interface import Attend

GATE = 16.0
"""What queries and keys of state tokens hold in a pair of channels that is zero in picture tokens: between state tokens
it adds GATE^2 / sqrt(head_dim) to the score, 32 for a head of 64, against which a picture's key weighs nothing (e^-32).
It is the last pair, which turns least over columns; state tokens are not turned over columns at all."""


class Modulation(NamedTuple):
    """What blocks and head need of a row besides its tokens; every tensor has the rows first, so that rows can be
    stacked.

    `shared_R6D` shifts, scales and gates all blocks; `final_R2D` the head; `x_RCHW` (fp32) and `t_R` (fp32) are the
    input.
    """

    shared_R6D: Tensor
    final_R2D: Tensor
    x_RCHW: Tensor
    t_R: Tensor


def open_channels(head_dim: int) -> Tensor:
    """Return (D,): 1 where queries and keys are free, 0 in the pair that `GATE` is written to."""
    free = torch.ones(head_dim)
    free[[head_dim // 2 - 1, head_dim - 1]] = 0.0
    return free


class StateBlock(nn.Module):
    """A plain pre-norm block for the state token; `TinyBlock` calls its parts around the shared attention."""

    def __init__(self, width: int, num_heads: int, expansion: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.qk_gain = nn.Parameter(torch.ones(width // num_heads))
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)
        for layer in (self.out, self.down):
            nn.init.normal_(layer.weight, std=0.3 * layer.in_features**-0.5)
            nn.init.zeros_(layer.bias)
        self._free = open_channels(width // num_heads)
        self._gate = GATE * (1 - self._free)
        self._gate[-1] = 0.0

    def project(self, token_R1D: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys (R, 1, 2 H, d), normed and gated, and values (R, 1, H, d)."""
        qkv = self.qkv(F.layer_norm(token_R1D, token_R1D.shape[-1:])).unflatten(-1, (3 * self.num_heads, -1))
        free, gate = self._free.to(qkv), self._gate.to(qkv)
        qk = F.layer_norm(qkv[:, :, : 2 * self.num_heads], qkv.shape[-1:], self.qk_gain.to(qkv) * free, gate)
        return qk, qkv[:, :, 2 * self.num_heads :]

    def finish(self, token_R1D: Tensor, mixed_R1D: Tensor) -> Tensor:
        """Return the token after attention's output and the feed-forward layer."""
        token_R1D = token_R1D + self.out(mixed_R1D)
        h = F.layer_norm(token_R1D, token_R1D.shape[-1:])
        after: Tensor = token_R1D + self.down(F.relu(self.up(h)).square())
        return after

    def forward(self, index: int, token_R1D: Tensor, attend: Attend) -> Tensor:
        """Run the block on state tokens alone."""
        qk, v = self.project(token_R1D)
        mixed = attend(index, qk[:, :, : self.num_heads], qk[:, :, self.num_heads :], v).flatten(2)
        return self.finish(token_R1D, mixed)


class TinyBlock(nn.Module):
    """Self-attention and a feed-forward layer with squared rectifiers, both modulated.

    Queries and keys are layer-normed per head in one operation, with one gain for both: only their product matters, and
    a small row's time goes into the number of operations.
    """

    def __init__(self, index: int, width: int, num_heads: int, expansion: int, state_expansion: int = 0) -> None:
        super().__init__()
        self.index, self.num_heads = index, num_heads
        self.table = nn.Parameter(torch.zeros(6, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.qk_gain = nn.Parameter(torch.ones(width // num_heads))
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)
        self.state = StateBlock(width, num_heads, state_expansion) if state_expansion else None
        self._free = open_channels(width // num_heads)
        with torch.no_grad():
            self.table[[1, 4]] = 1.0
            self.table[[2, 5]] = 0.3

    def forward(self, tokens_RTD: Tensor, modulation: Modulation, attend: Attend) -> Tensor:
        """Return the tokens after this block; calls `attend` once.

        The picture's error does not reach the state's weights: what goes between the two in attention is detached.
        """
        width, heads = tokens_RTD.shape[-1:], self.num_heads
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (modulation.shared_R6D + self.table).unsqueeze(2).unbind(1)
        count = tokens_RTD.shape[1] - (self.state is not None)
        picture, state = tokens_RTD[:, :count], tokens_RTD[:, count:]
        h = torch.addcmul(shift_1, F.layer_norm(picture, width), scale_1)
        qkv = self.qkv(h).unflatten(-1, (3 * heads, -1))
        gain = self.qk_gain if self.state is None else self.qk_gain.to(qkv) * self._free.to(qkv)
        qk, v = F.layer_norm(qkv[:, :, : 2 * heads], qkv.shape[-1:], gain), qkv[:, :, 2 * heads :]
        if self.state is not None:
            state_qk, state_v = (part.detach() for part in self.state.project(state))
            qk, v = torch.cat((qk, state_qk), 1), torch.cat((v, state_v), 1)
        mixed = attend(self.index, qk[:, :, :heads], qk[:, :, heads:], v).flatten(2)
        if self.state is not None:
            state = self.state.finish(state, mixed[:, count:].contiguous().detach())
        # A linear layer takes a part of a row for a batch of matrices, and copies its weights for each.
        picture = torch.addcmul(picture, gate_1, self.out(mixed[:, :count].contiguous()))
        h = torch.addcmul(shift_2, F.layer_norm(picture, width), scale_2)
        picture = torch.addcmul(picture, gate_2, self.down(F.relu(self.up(h)).square()))
        return picture if self.state is None else torch.cat((picture, state), 1)
