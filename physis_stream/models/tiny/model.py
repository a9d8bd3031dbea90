"""Causal diffusion transformer of the tiny worlds: one frame's latents, a noise level and an action in, a velocity out.

A row is one frame of one session at one noise level; rows know each other only through the `Attend` they are given, so
a batch may mix sessions, frames and levels. The model owns no KV. It can be run in parts: `embed`, any range of
`blocks`, `head`.

    x (R, C, H, W)  latents at level t      t (R,)  1 noise .. 0 clean      action (R, A)  in the client's range
    tokens (R, T, D)  T = H/p * W/p, row-major; token features are (channel, row, column) of a patch

Conditioning is one vector a row (level and action), projected once to 6 D for all blocks; each block adds its own
table, as in PixArt (arXiv 2310.00426) and Wan. The head estimates x0 and turns it into the velocity (x_t - x0) / t,
which is better conditioned than predicting noise with few channels to carry it (cf. arXiv 2511.13720).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from physis_stream.models.interface import Attend

MIN_LEVEL = 0.02
"""Least t that the head divides by; below it the velocity of a clean row is of no use anyway."""


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


class TinyBlock(nn.Module):
    """Self-attention and a feed-forward layer with squared rectifiers, both modulated.

    Queries and keys are layer-normed per head in one operation, with one gain for both: only their product matters, and
    a small row's time goes into the number of operations.
    """

    def __init__(self, index: int, width: int, num_heads: int, expansion: int) -> None:
        super().__init__()
        self.index, self.num_heads = index, num_heads
        self.table = nn.Parameter(torch.zeros(6, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.qk_gain = nn.Parameter(torch.ones(width // num_heads))
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, expansion * width)
        self.down = nn.Linear(expansion * width, width)

    def forward(self, tokens_RTD: Tensor, modulation: Modulation, attend: Attend) -> Tensor:
        """Return the tokens after this block; calls `attend` once."""
        width, heads = tokens_RTD.shape[-1:], self.num_heads
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = (modulation.shared_R6D + self.table).unsqueeze(2).unbind(1)
        h = torch.addcmul(shift_1, F.layer_norm(tokens_RTD, width), scale_1)
        qkv = self.qkv(h).unflatten(-1, (3 * heads, -1))
        qk = F.layer_norm(qkv[:, :, : 2 * heads], qkv.shape[-1:], self.qk_gain)
        mixed = attend(self.index, qk[:, :, :heads], qk[:, :, heads:], qkv[:, :, 2 * heads :]).flatten(2)
        tokens_RTD = torch.addcmul(tokens_RTD, gate_1, self.out(mixed))
        h = torch.addcmul(shift_2, F.layer_norm(tokens_RTD, width), scale_2)
        return torch.addcmul(tokens_RTD, gate_2, self.down(F.relu(self.up(h)).square()))


class TinyWorldTransformer(ModelMixin, ConfigMixin):
    """The denoiser; see the module for shapes. Weights in fp32 or bf16, velocity always fp32."""

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        latent_channels: int = 8,
        latent_height: int = 12,
        latent_width: int = 12,
        patch: int = 3,
        width: int = 256,
        num_layers: int = 6,
        num_heads: int = 4,
        expansion: int = 4,
        action_low: tuple[float, ...] = (-1.0, -1.0),
        action_high: tuple[float, ...] = (1.0, 1.0),
        action_octaves: int = 5,
    ) -> None:
        super().__init__()
        if latent_height % patch or latent_width % patch:
            raise ValueError(f"patch {patch} does not divide the latent of {latent_height}x{latent_width}")
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.grid = (latent_height // patch, latent_width // patch)
        self.patch = patch
        features = latent_channels * patch * patch
        self.patch_in = nn.Linear(features, width)
        self.place = nn.Parameter(0.02 * torch.randn(self.grid[0] * self.grid[1], width))
        # Plain attributes, so that casting the module leaves them in fp32.
        self._level_frequencies = torch.exp(torch.linspace(0.0, math.log(200.0), 16))
        self._action_frequencies = math.pi * 2.0 ** torch.arange(-1.0, action_octaves - 1.0)
        low, high = torch.tensor(action_low), torch.tensor(action_high)
        self._action_centre, self._action_half = (low + high) / 2, (high - low) / 2
        action_dim = len(action_low)
        self.level_in = nn.Linear(32, width)
        self.action_in = nn.Linear(action_dim * (2 * action_octaves + 1), width)
        self.condition_mid = nn.Linear(width, width)
        self.condition_out = nn.Linear(width, 6 * width)
        self.final_out = nn.Linear(width, 2 * width)
        self.blocks = nn.ModuleList(TinyBlock(i, width, num_heads, expansion) for i in range(num_layers))
        self.patch_out = nn.Linear(width, features)
        for layer in (self.condition_out, self.final_out):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            for block in self.blocks.children():
                table = block.get_parameter("table")
                table[[1, 4]] = 1.0
                table[[2, 5]] = 0.3
            self.final_out.bias[width:] = 1.0

    @property
    def tokens_per_row(self) -> int:
        """Tokens of one latent frame."""
        return self.grid[0] * self.grid[1]

    def embed(self, x_RCHW: Tensor, t_R: Tensor, action_RA: Tensor) -> tuple[Tensor, Modulation]:
        """Turn latents, levels and actions of R rows into tokens (R, T, D) and the conditioning of all blocks."""
        dtype, device = self.patch_in.weight.dtype, self.patch_in.weight.device
        x, t = x_RCHW.float(), t_R.float()
        action = (action_RA.float() - self._action_centre.to(device)) / self._action_half.to(device)
        level = t[:, None] * self._level_frequencies.to(device)
        turn = (action[:, :, None] * self._action_frequencies.to(device)).flatten(1)
        condition = self.level_in(torch.cat((level.sin(), level.cos()), -1).to(dtype))
        condition = condition + self.action_in(torch.cat((action, turn.sin(), turn.cos()), -1).to(dtype))
        condition = F.silu(self.condition_mid(F.silu(condition)))
        shared = self.condition_out(condition).unflatten(-1, (6, -1))
        final = self.final_out(condition).unflatten(-1, (2, -1))
        patches = F.pixel_unshuffle(x, self.patch).flatten(2).transpose(1, 2)
        return self.patch_in(patches.to(dtype)) + self.place, Modulation(shared, final, x, t)

    def head(self, tokens_RTD: Tensor, modulation: Modulation) -> Tensor:
        """Return the velocity (R, C, H, W) in fp32."""
        shift, scale = modulation.final_R2D.unsqueeze(2).unbind(1)
        h = torch.addcmul(shift, F.layer_norm(tokens_RTD, tokens_RTD.shape[-1:]), scale)
        patches = self.patch_out(h).float().transpose(1, 2).unflatten(2, self.grid)
        x0 = F.pixel_shuffle(patches, self.patch)
        return (modulation.x_RCHW - x0) / modulation.t_R.clamp_min(MIN_LEVEL)[:, None, None, None]

    def forward(self, x_RCHW: Tensor, t_R: Tensor, action_RA: Tensor, attend: Attend) -> Tensor:
        """Return the velocity (R, C, H, W) in fp32, running all blocks."""
        tokens, modulation = self.embed(x_RCHW, t_R, action_RA)
        for block in self.blocks:
            tokens = block(tokens, modulation, attend)
        return self.head(tokens, modulation)
