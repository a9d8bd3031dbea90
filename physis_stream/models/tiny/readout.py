"""Readout of the tiny worlds: the simulator's numbers, as far as one latent frame shows them.

    latents (N, C or C + 1, h, w) normalised, float    numbers (N, D) float, in the profile's units

Angles are learned as sine and cosine and come out in radians, -pi..pi. Every cell of the latent says what it takes each
number to be and how sure it is; the answer is the mean weighted by that, plus a small term that sees all cells. Things
that have a place are thus read where they are. A readout answers from a single frame and keeps no state. Latents that
carry a state plane are not looked at: the numbers are in them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from physis_stream.models.tiny.state_plane import gather


class TinyReadout(ModelMixin, ConfigMixin):
    """Regresses D numbers from a latent frame; `angles` are the indices of those in radians."""

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        num_states: int = 6,
        angles: tuple[int, ...] = (),
        latent_channels: int = 4,
        latent_height: int = 12,
        latent_width: int = 12,
        width: int = 64,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.angles = tuple(angles)
        self.plain = tuple(i for i in range(num_states) if i not in self.angles)
        self.num_targets = len(self.plain) + 2 * len(self.angles)
        self.register_buffer("state_mean", torch.zeros(len(self.plain)))
        self.register_buffer("state_std", torch.ones(len(self.plain)))
        self.conv_in = nn.Conv2d(latent_channels, width, 3, padding=1)
        self.place = nn.Parameter(0.1 * torch.randn(width, latent_height, latent_width))
        self.conv_mid = nn.Conv2d(width, width, 3, padding=1)
        self.conv_out = nn.Conv2d(width, 2 * self.num_targets, 1)
        self.cell_value = nn.Parameter(torch.zeros(self.num_targets, latent_height, latent_width))
        cells = -(-latent_height // 2) * -(-latent_width // 2)
        self.narrow = nn.Conv2d(width, width // 4, 2, stride=2, padding=(latent_height % 2, latent_width % 2))
        self.mid = nn.Linear(cells * (width // 4), hidden)
        self.out = nn.Linear(hidden, self.num_targets)

    def predict(self, latents_NCHW: Tensor) -> Tensor:
        """Return normalised targets (N, plain + 2 x angles), as `targets` makes them."""
        x = F.silu(self.conv_in(latents_NCHW) + self.place)
        x = F.silu(self.conv_mid(x))
        value, sureness = self.conv_out(x).chunk(2, dim=1)
        local = ((value + self.cell_value).flatten(2) * sureness.flatten(2).float().softmax(-1)).sum(-1)
        found: Tensor = local + self.out(F.silu(self.mid(F.silu(self.narrow(x)).flatten(1))))
        return found

    def targets(self, states_ND: Tensor) -> Tensor:
        """Normalise states: plain numbers to unit deviation, angles to sine and cosine."""
        plain = (states_ND[..., list(self.plain)] - self.state_mean) / self.state_std
        turn = states_ND[..., list(self.angles)]
        return torch.cat((plain, turn.sin(), turn.cos()), dim=-1)

    def forward(self, latents_NCHW: Tensor) -> Tensor:
        """Return the numbers (N, D) in their own units and order."""
        if latents_NCHW.shape[1] > self.conv_in.in_channels:
            found = gather(latents_NCHW[:, -1].float(), self.num_targets)
        else:
            found = self.predict(latents_NCHW.to(self.out.weight.dtype)).float()
        states = found.new_empty(found.shape[0], len(self.plain) + len(self.angles))
        count = len(self.plain)
        states[:, list(self.plain)] = found[:, :count] * self.state_std.float() + self.state_mean.float()
        if self.angles:
            sine, cosine = found[:, count : count + len(self.angles)], found[:, count + len(self.angles) :]
            states[:, list(self.angles)] = torch.atan2(sine, cosine)
        return states
