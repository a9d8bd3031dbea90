"""Causal codec of the tiny worlds: frames to small latents and back, in time order with a state of fixed size.

Encoding looks at one frame at a time. Decoding sees the latents of the last three frames, so its state is the last two,
and a clip decoded in chunks equals the clip decoded whole. What a session's decoder remembers is a plain tensor that
the caller owns; the modules keep nothing between calls.

    frames  (B, F, 3, H, W)  float, range -1..1    latents (B, F, C, H/8, W/8) float, about zero mean and unit deviation
    state   (B, 2, C, H/8, W/8)                    zeros before the first frame

A latent cell sees 16 x 16 pixels, its own 8 x 8 and a rim of 4: nothing that moves changes cells far from it, as it
would if the encoder saw the whole picture. The decoder looks much wider.

Wide convolutions run at 1/4 and 1/8 of the resolution only: the first and last layers are space-to-depth by 4. A
background picture, the median of the training frames, is taken off before encoding and added after decoding.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

STATE_FRAMES = 2
"""Latent frames that the decoder looks back."""


class _Residual(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(width, width, kernel, padding=kernel // 2)
        self.conv_out = nn.Conv2d(width, width, kernel, padding=kernel // 2)

    def forward(self, x: Tensor) -> Tensor:
        change: Tensor = self.conv_out(F.silu(self.conv_in(F.silu(x))))
        return x + change


class TinyCausalCodec(ModelMixin, ConfigMixin):
    """Encoder and causal decoder for one picture size; see the module for shapes and the meaning of the state."""

    config_name = "config.json"

    @register_to_config
    def __init__(
        self,
        height: int = 96,
        width: int = 96,
        latent_channels: int = 4,
        mid_width: int = 64,
        deep_width: int = 128,
        encoder_blocks: int = 2,
        decoder_blocks: int = 1,
    ) -> None:
        super().__init__()
        if height % 8 or width % 8:
            raise ValueError(f"height and width must be multiples of 8, got {height}x{width}")
        channels = latent_channels
        self.latent_shape = (channels, height // 8, width // 8)
        self.register_buffer("background", torch.zeros(3, height, width))
        self.register_buffer("latent_mean", torch.zeros(channels))
        self.register_buffer("latent_std", torch.ones(channels))
        self.encoder_in = nn.Conv2d(48, mid_width, 3, padding=1)
        self.encoder_down = nn.Conv2d(mid_width, deep_width, 2, stride=2)
        self.encoder_trunk = nn.ModuleList(_Residual(deep_width, 1) for _ in range(encoder_blocks))
        self.encoder_out = nn.Conv2d(deep_width, channels, 1)
        self.decoder_in = nn.Conv2d(channels * (STATE_FRAMES + 1), deep_width, 3, padding=1)
        self.decoder_trunk = nn.ModuleList(_Residual(deep_width, 3) for _ in range(decoder_blocks))
        self.decoder_up = nn.Conv2d(deep_width, mid_width * 4, 1)
        self.decoder_mid = nn.Conv2d(mid_width, mid_width, 3, padding=1)
        self.decoder_out = nn.Conv2d(mid_width, 48, 3, padding=1)

    def encode_raw(self, frames_NCHW: Tensor) -> Tensor:
        """Encode frames (N, 3, H, W) to latents (N, C, h, w) before normalisation; what training works with."""
        x = F.pixel_unshuffle(frames_NCHW - self.background, 4)
        x = self.encoder_down(F.silu(self.encoder_in(x)))
        for block in self.encoder_trunk:
            x = block(x)
        raw: Tensor = self.encoder_out(F.silu(x))
        return raw

    def encode(self, frames_BFCHW: Tensor) -> Tensor:
        """Encode frames in -1..1 to normalised latents (B, F, C, h, w); each frame on its own."""
        raw = self.encode_raw(frames_BFCHW.flatten(0, 1))
        latents: Tensor = (raw - self.latent_mean[:, None, None]) / self.latent_std[:, None, None]
        shaped: Tensor = latents.unflatten(0, frames_BFCHW.shape[:2])
        return shaped

    def initial_state(self, batch: int) -> Tensor:
        """Return the state before the first frame: zeros, in the dtype and on the device of the weights."""
        return self.decoder_in.weight.new_zeros(batch, STATE_FRAMES, *self.latent_shape)

    def decode(self, latents_BFCHW: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Decode the next latents of a clip; returns frames (B, F, 3, H, W) about -1..1, not clamped, and the new
        state.

        `state` is not changed. Row b depends on row b alone; decoding F frames equals F calls of one frame.
        """
        batch, count = latents_BFCHW.shape[:2]
        dtype = self.decoder_in.weight.dtype
        line = torch.cat((state, latents_BFCHW.to(state.dtype)), dim=1)
        if count == 1:
            x = line.flatten(1, 2)
        else:
            x = (
                torch.stack([line[:, f : f + STATE_FRAMES + 1] for f in range(count)], dim=1)
                .flatten(0, 1)
                .flatten(1, 2)
            )
        x = self.decoder_in(x.to(dtype).contiguous(memory_format=torch.channels_last))
        for block in self.decoder_trunk:
            x = block(x)
        x = F.pixel_shuffle(self.decoder_up(F.silu(x)), 2)
        x = x + self.decoder_mid(F.silu(x))
        frames = F.pixel_shuffle(self.decoder_out(F.silu(x)).float(), 4) + self.background.float()
        return frames.unflatten(0, (batch, count)), line[:, -STATE_FRAMES:]
