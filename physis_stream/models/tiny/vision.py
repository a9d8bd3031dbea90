"""Pictures to latents and back, whole: the codec's channels and, where the world has one, the state plane after them.

frames (B, F, 3, H, W)  <->  latents (B, F, C + 1, H/8, W/8)
"""

from __future__ import annotations

import torch
from torch import Tensor

from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.models.tiny.state_plane import spread


class TinyVision:
    """A world's codec as the engine uses it. `has_state` says whether latents carry a state plane."""

    def __init__(self, codec: TinyCausalCodec, readout: TinyReadout, *, has_state: bool) -> None:
        self._codec, self._readout, self._has_state = codec, readout, has_state

    def encode(self, frames_BFCHW: Tensor) -> Tensor:
        """Encode frames in -1..1; the state is what the readout sees in each."""
        latents = self._codec.encode(frames_BFCHW).float()
        if not self._has_state:
            return latents
        return self.with_values(latents, self._readout.predict(latents.flatten(0, 1)).unflatten(0, latents.shape[:2]))

    def with_states(self, latents_BFCHW: Tensor, states_BFD: Tensor) -> Tensor:
        """Append the plane of states that are known, in the readout's units."""
        return self.with_values(latents_BFCHW, self._readout.targets(states_BFD)) if self._has_state else latents_BFCHW

    @staticmethod
    def with_values(latents_BFCHW: Tensor, values_BFV: Tensor) -> Tensor:
        """Append the plane of normalised values."""
        return torch.cat((latents_BFCHW, spread(values_BFV.float(), *latents_BFCHW.shape[-2:])), 2)

    def initial_state(self, batch: int) -> Tensor:
        """Return the decoder's state before the first frame."""
        return self._codec.initial_state(batch)

    def decode(self, latents_BFCHW: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Decode the next latents of a clip; see `TinyCausalCodec.decode`."""
        return self._codec.decode(latents_BFCHW[:, :, : self._codec.config.latent_channels], state)
