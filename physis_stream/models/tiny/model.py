"""Causal diffusion transformer of the tiny worlds: one frame's latents, a noise level and an action in, a velocity out.

A row is one frame of one session at one noise level; rows know each other only through the `Attend` they are given, so
a batch may mix sessions, frames and levels. The model owns no KV. It can be run in parts: `embed`, any range of
`blocks`, `head`.

    x (R, C, H, W)  latents at level t      t (R,)  1 noise .. 0 clean      action (R, A)  in the client's range
    tokens (R, T, D)  H/p * W/p of the picture, row-major, features (channel, row, column) of a patch; then the state's

With `state_values` = V > 0 the last channel of the latents is a `state_plane` of V numbers, which become one token with
weights of its own in every block (see `blocks`): pictures are painted by diffusion about a state that moves by itself.
The state's part can be run alone: `embed_state`, the blocks' `state`, `state_head`.

Rows at levels above `clean_below` are targets, (1 - t) x0 + t noise, and of these a world with a state does not see
its own picture: below t = 1 the plane says where everything is before the first block, and the picture is drawn from
that with the whole depth of the network; what the step before drew with less is better not copied. Rows below are
clean ones, x0 + t noise.

Conditioning of the picture is one vector a row (level and action), projected once to 6 D for all blocks; each block
adds its own table, as in PixArt (arXiv 2310.00426) and Wan. The head estimates x0 and turns it into the velocity
(x_t - x0) / t, which is better conditioned than predicting noise with few channels to carry it (cf. arXiv 2511.13720).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from physis_stream.models.interface import Attend
from physis_stream.models.tiny.blocks import Modulation, TinyBlock
from physis_stream.models.tiny.state_plane import gather, noise_share, precondition, spread

MIN_LEVEL = 0.02
"""Least t that the head divides by; below it the velocity of a clean row is of no use anyway."""


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
        state_values: int = 0,
        state_expansion: int = 2,
        state_octaves: int = 6,
        clean_below: float = 0.36,
    ) -> None:
        super().__init__()
        if latent_height % patch or latent_width % patch:
            raise ValueError(f"patch {patch} does not divide the latent of {latent_height}x{latent_width}")
        if width % num_heads:
            raise ValueError(f"width {width} is not a multiple of num_heads {num_heads}")
        self.grid = (latent_height // patch, latent_width // patch)
        self.patch = patch
        self.state_values = state_values
        features = (latent_channels - (state_values > 0)) * patch * patch
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
        inner = state_expansion if state_values else 0
        self.blocks = nn.ModuleList(TinyBlock(i, width, num_heads, expansion, inner) for i in range(num_layers))
        self.patch_out = nn.Linear(width, features)
        if state_values:
            self._state_frequencies = math.pi * 2.0 ** torch.arange(-1.0, state_octaves - 1.0)
            inputs = state_values * (2 * state_octaves + 1) + action_dim * (2 * action_octaves + 1) + 32
            self.state_in = nn.Linear(inputs, width)
            self.state_out = nn.Linear(width, state_values)
            known = state_values * (2 * state_octaves + 1)
            self.known_token, self.known_condition = nn.Linear(known, width), nn.Linear(known, width)
        for layer in (self.condition_out, self.final_out):
            nn.init.normal_(layer.weight, std=0.01)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.final_out.bias[width:] = 1.0

    @property
    def tokens_per_row(self) -> int:
        """Tokens of one latent frame."""
        return self.grid[0] * self.grid[1] + (self.state_values > 0)

    def embed(self, x_RCHW: Tensor, t_R: Tensor, action_RA: Tensor) -> tuple[Tensor, Modulation]:
        """Turn latents, levels and actions of R rows into tokens (R, T, D) and the conditioning of all blocks."""
        dtype = self.patch_in.weight.dtype
        x, t = x_RCHW.float(), t_R.float()
        level, action = self._level_features(t).to(dtype), self._action_features(action_RA).to(dtype)
        condition = self.level_in(level) + self.action_in(action)
        tokens = self.patch_in(self._patches(x, t).to(dtype)) + self.place
        if self.state_values:
            values = gather(x[:, -1], self.state_values)
            known = self._known_features(values, t).to(dtype)
            condition, tokens = condition + self.known_condition(known), tokens + self.known_token(known)[:, None]
            tokens = torch.cat((tokens, self.embed_state(values, t, action_RA).to(tokens.dtype)), 1)
        condition = F.silu(self.condition_mid(F.silu(condition)))
        shared = self.condition_out(condition).unflatten(-1, (6, -1))
        final = self.final_out(condition).unflatten(-1, (2, -1))
        return tokens, Modulation(shared, final, x, t)

    def embed_state(self, values_RV: Tensor, t_R: Tensor, action_RA: Tensor) -> Tensor:
        """Turn noisy state values, levels and actions into state tokens (R, 1, D)."""
        features = (self._state_features(values_RV), self._action_features(action_RA), self._level_features(t_R))
        token: Tensor = self.state_in(torch.cat(features, -1).to(self.state_in.weight.dtype))
        return token[:, None]

    def _patches(self, x_RCHW: Tensor, t_R: Tensor) -> Tensor:
        """Return the picture's patches (R, T, features); empty where a row is not to see its own."""
        if self.state_values:
            x_RCHW = x_RCHW[:, :-1] * (t_R <= self.config.clean_below)[:, None, None, None]
        return F.pixel_unshuffle(x_RCHW, self.patch).flatten(2).transpose(1, 2)

    def _known_features(self, values_RV: Tensor, t_R: Tensor) -> Tensor:
        """What the plane says of the row's own state, undone from its level; nothing at levels near 1."""
        t = t_R[:, None]
        values = torch.where(t <= self.config.clean_below, values_RV, values_RV / (1 - t).clamp_min(0.1))
        return self._state_features(values) * (t < 0.9)

    def _state_features(self, values_RV: Tensor) -> Tensor:
        turn = (values_RV[:, :, None] * self._state_frequencies.to(values_RV.device)).flatten(1)
        return torch.cat((values_RV, turn.sin(), turn.cos()), -1)

    def _level_features(self, t_R: Tensor) -> Tensor:
        turn = t_R.float()[:, None] * self._level_frequencies.to(t_R.device)
        return torch.cat((turn.sin(), turn.cos()), -1)

    def _action_features(self, action_RA: Tensor) -> Tensor:
        device = action_RA.device
        action = (action_RA.float() - self._action_centre.to(device)) / self._action_half.to(device)
        turn = (action[:, :, None] * self._action_frequencies.to(device)).flatten(1)
        return torch.cat((action, turn.sin(), turn.cos()), -1)

    def head(self, tokens_RTD: Tensor, modulation: Modulation) -> Tensor:
        """Return the velocity (R, C, H, W) in fp32."""
        shift, scale = modulation.final_R2D.unsqueeze(2).unbind(1)
        picture = tokens_RTD[:, :-1] if self.state_values else tokens_RTD
        h = torch.addcmul(shift, F.layer_norm(picture, picture.shape[-1:]), scale)
        patches = self.patch_out(h).float().transpose(1, 2).unflatten(2, self.grid)
        x0 = F.pixel_shuffle(patches, self.patch)
        if self.state_values:
            x0 = torch.cat((x0, spread(self._state(tokens_RTD[:, -1], modulation), *x0.shape[-2:])), 1)
        return (modulation.x_RCHW - x0) / modulation.t_R.clamp_min(MIN_LEVEL)[:, None, None, None]

    def _state(self, token_RD: Tensor, modulation: Modulation) -> Tensor:
        return self.state_head(token_RD, gather(modulation.x_RCHW[:, -1], self.state_values), modulation.t_R)

    def state_head(self, token_RD: Tensor, values_RV: Tensor, t_R: Tensor) -> Tensor:
        """Return estimates of the clean state values (R, V) of rows that hold `values_RV` at levels above
        `clean_below`. Summed in fp32: in bf16 a number would be rounded to one part in 256."""
        h = F.layer_norm(token_RD.float(), token_RD.shape[-1:])
        found = (h[:, None] * self.state_out.weight.float()).sum(-1) + self.state_out.bias.float()
        share = noise_share(self.config.latent_height, self.config.latent_width, self.state_values)
        return precondition(values_RV.float(), found, t_R.float()[:, None], share)

    def forward(self, x_RCHW: Tensor, t_R: Tensor, action_RA: Tensor, attend: Attend) -> Tensor:
        """Return the velocity (R, C, H, W) in fp32, running all blocks."""
        tokens, modulation = self.embed(x_RCHW, t_R, action_RA)
        for block in self.blocks:
            tokens = block(tokens, modulation, attend)
        return self.head(tokens, modulation)
