"""The state in the middle of the transformer: estimated from a row's tokens, then told back to all of them.

A model that only predicts latents hedges in latents: where a block may have turned by 5 or by 15 degrees, the mean of
the pictures is a smear, and a smear is what the next frame is made from. Through the bridge it hedges in the *state*,
where the mean of two poses is a pose: the first blocks find out what the state will be, the last ones draw it. In
training the last blocks are told the true state, so they learn to trust what they are told.

    tokens (R, T, D)    state (R, S): P plain numbers, then the sines and then the cosines of A angles, S = P + 2 A
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

OCTAVES = 6
HARMONICS = 8
"""Frequencies that a plain number (unit deviation) and an angle are told in."""


class StateBridge(nn.Module):
    """Estimate and retell the state of a row; see the module. `tell_out` begins at zero: at first nothing is told."""

    def __init__(self, width: int, tokens: int, num_plain: int, num_angles: int, narrow: int = 32) -> None:
        super().__init__()
        self.num_plain, self.num_angles = num_plain, num_angles
        self.narrow = nn.Linear(width, narrow)
        self.out = nn.Linear(narrow * tokens, num_plain + 2 * num_angles)
        self.tell_in = nn.Linear(num_plain * (1 + 2 * OCTAVES) + num_angles * 2 * HARMONICS, width)
        self.tell_out = nn.Linear(width, width)
        nn.init.zeros_(self.tell_out.weight)
        nn.init.zeros_(self.tell_out.bias)
        # Plain attributes, so that casting the module leaves them in fp32.
        self._frequencies = 0.5 * 2.0 ** torch.arange(OCTAVES)
        self._harmonics = torch.arange(1.0, HARMONICS + 1)

    def estimate(self, tokens_RTD: Tensor) -> Tensor:
        """Return the state (R, S), normalised as the readout's targets are, fp32."""
        found: Tensor = self.out(F.silu(self.narrow(tokens_RTD)).flatten(1))
        return found.float()

    def tell(self, tokens_RTD: Tensor, state_RS: Tensor) -> Tensor:
        """Return the tokens with the state (R, S) fp32 added to each of them. Sines and cosines need not be on the
        circle."""
        device, angles = state_RS.device, self.num_plain + self.num_angles
        plain, sine, cosine = state_RS[:, : self.num_plain], state_RS[:, self.num_plain : angles], state_RS[:, angles:]
        turn = (plain[:, :, None] * self._frequencies.to(device)).flatten(1)
        angle = (torch.atan2(sine, cosine)[:, :, None] * self._harmonics.to(device)).flatten(1)
        told = torch.cat((plain, turn.sin(), turn.cos(), angle.sin(), angle.cos()), dim=-1)
        message: Tensor = self.tell_out(F.silu(self.tell_in(told.to(tokens_RTD.dtype))))
        return tokens_RTD + message[:, None]

    def forward(self, tokens_RTD: Tensor) -> Tensor:
        """Tell the tokens what they themselves are taken to say."""
        return self.tell(tokens_RTD, self.estimate(tokens_RTD))
