"""Latents to frames for many sessions at once, each with its own decoder state, which is passed in and handed back.

    latents (B, C, H, W) fp32  +  states (B, ...)  ->  frames (B, F, height, width, 3) uint8 RGB, new states,
    readouts (B, D)

Nothing is kept on the codec's modules, so sessions cannot bleed into each other. It knows no sessions, only rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from physis_stream.runtime.service import Frames


class Codec(Protocol):
    """A causal codec; states are tensors with the rows in front, so that they stack."""

    def encode(self, frames_BFCHW: Tensor) -> Tensor: ...

    def decode(self, latents_BFCHW: Tensor, state: Tensor) -> tuple[Tensor, Tensor]: ...

    def initial_state(self, batch: int) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """What one batch decodes to. `frames` is contiguous; `readouts` (B, D) float64, D = 0 for a world without."""

    frames: Frames
    states: Tensor
    readouts: npt.NDArray[np.float64]


class FrameDecoder:
    """Decodes chunks of one latent frame; `readout` maps latents (B, C, H, W) to (B, D), or is None."""

    def __init__(self, codec: Codec, readout: Callable[[Tensor], Tensor] | None) -> None:
        self._codec, self._readout = codec, readout

    def fresh_state(self) -> Tensor:
        """The decoder state of a session before its first chunk, without the batch dimension."""
        return self._codec.initial_state(1)[0]

    def decode(self, latents_BCHW: Tensor, states: Tensor) -> DecodedRows:
        """Decode the next chunk of each row. Changes none of its arguments."""
        frames, after = self._codec.decode(latents_BCHW.unsqueeze(1), states)
        readouts = np.zeros((latents_BCHW.shape[0], 0))
        if self._readout is not None:
            readouts = self._readout(latents_BCHW).double().cpu().numpy()
        return DecodedRows(to_pixels(frames), after, readouts)

    def encode_image(self, image: Frames) -> Tensor:
        """Encode one uint8 RGB picture (height, width, 3) to a latent (C, H, W) fp32."""
        dtype = self._codec.initial_state(1).dtype
        picture = torch.from_numpy(np.array(image)).permute(2, 0, 1).to(dtype) / 127.5 - 1.0
        latent: Tensor = self._codec.encode(picture[None, None])[0, 0].float()
        return latent


def to_pixels(frames_BFCHW: Tensor) -> Frames:
    """Turn frames about -1..1 into uint8 RGB (B, F, H, W, 3), contiguous; what lies outside is clipped."""
    scaled = frames_BFCHW.float().movedim(2, -1).add(1.0).mul_(127.5).round_().clamp_(0.0, 255.0)
    pixels: Frames = scaled.to(torch.uint8).contiguous().numpy()
    return pixels
