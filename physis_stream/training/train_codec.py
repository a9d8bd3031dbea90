"""Train a world's codec and readout together on clips of a data set.

The picture error is weighted by how rare a pixel's colour is in the data set: walls and floor are common, what moves is
rare, and the smallest thing is the rarest. That is blind to the environment and keeps small agents alive that a plain
error erases. Latents are normalised by batch statistics and get a little noise, so that the decoder forgives what the
transformer will not hit exactly. The readout's error flows into the encoder, which makes the state easy to read from a
latent.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training import checkpoint
from physis_stream.training.collect import Shard
from physis_stream.training.optim import Average, MuonAdam, parameter_groups, rate
from physis_stream.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class CodecTraining:
    """Size of the codec and of the run."""

    latent_channels: int = 4
    mid_width: int = 64
    deep_width: int = 128
    steps: int = 3000
    clips: int = 16
    clip_frames: int = 4
    learning_rate: float = 1.5e-3
    latent_noise: float = 0.3
    state_weight: float = 0.02
    seed: int = 0


class Clips:
    """Draws clips addressed by step: the same step always gives the same clips."""

    def __init__(self, shards: list[Shard], count: int, frames: int, seed: int) -> None:
        self._shards, self._count, self._frames, self._seed = shards, count, frames, seed
        self._starts = [np.flatnonzero(s.starts[: -frames + 1] == s.starts[frames - 1 :]) for s in shards]
        self._shares = np.array([len(s) for s in self._starts], float) / sum(map(len, self._starts))

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        """Return frames (B, F, H, W, 3) uint8 and states (B, F, D) float32."""
        rng = np.random.default_rng((self._seed, step))
        frames, states = [], []
        for which in rng.choice(len(self._shards), self._count, p=self._shares):
            start = int(rng.choice(self._starts[which]))
            frames.append(self._shards[which].frames[start : start + self._frames])
            states.append(self._shards[which].states[start : start + self._frames])
        return torch.from_numpy(np.stack(frames)), torch.from_numpy(np.stack(states))


def _sample_frames(shards: list[Shard], count: int) -> NDArray[np.uint8]:
    share = -(-count // len(shards))
    picks = [np.linspace(0, len(s.frames) - 1, min(share, len(s.frames))).astype(int) for s in shards]
    return np.concatenate([s.frames[p] for s, p in zip(shards, picks, strict=True)])


def rarity_table(frames: NDArray[np.uint8], limit: float = 30.0) -> Tensor:
    """Weight of a colour (16 levels a channel, index r*256 + g*16 + b): root of its rarity, 1 for the commonest."""
    level = (frames >> 4).astype(np.int64)
    counts = np.bincount((level[..., 0] * 256 + level[..., 1] * 16 + level[..., 2]).reshape(-1), minlength=4096)
    return torch.from_numpy(np.minimum(limit, np.sqrt(counts.max() / np.maximum(counts, 1)))).float()


def to_signed(frames_uint8: Tensor) -> Tensor:
    """Turn uint8 (..., H, W, 3) into float (..., 3, H, W) in -1..1."""
    return frames_uint8.movedim(-1, -3).float().div(127.5).sub(1.0)


def to_uint8(frames: Tensor) -> Tensor:
    """Turn float (..., 3, H, W) about -1..1 into uint8 (..., H, W, 3)."""
    return frames.float().clamp(-1, 1).add(1.0).mul(127.5).round().to(torch.uint8).movedim(-3, -1)


def build(recipe: Recipe, config: CodecTraining, shards: list[Shard]) -> tuple[TinyCausalCodec, TinyReadout]:
    """Make both modules, with background and state statistics taken from the data set."""
    torch.manual_seed(config.seed)
    size = recipe.size
    codec = TinyCausalCodec(size, size, config.latent_channels, config.mid_width, config.deep_width)
    spec = recipe.state
    readout = TinyReadout(len(spec.names), spec.angles, config.latent_channels, size // 8, size // 8)
    median = np.median(_sample_frames(shards, 800), axis=0).astype(np.uint8)
    codec.background.copy_(to_signed(torch.from_numpy(median)))
    states = torch.cat([torch.from_numpy(np.array(s.states)) for s in shards])[:, list(readout.plain)]
    readout.state_mean.copy_(states.mean(0))
    readout.state_std.copy_(states.std(0).clamp_min(1e-6))
    return codec, readout


def train_codec(
    recipe: Recipe,
    config: CodecTraining,
    shards: list[Shard],
    out: Path,
    report: Callable[[int, dict[str, float]], None],
) -> tuple[TinyCausalCodec, TinyReadout]:
    """Train, or go on from `out/codec.pt`; returns both modules with averaged weights, in eval mode."""
    codec, readout = build(recipe, config, shards)
    codec.to(memory_format=torch.channels_last)
    both = torch.nn.ModuleDict({"codec": codec, "readout": readout})
    inner = ("encoder_down", "trunk", "decoder_up", "decoder_mid", "conv_mid", "narrow", "mid.")
    groups = parameter_groups(both.named_parameters(), lambda name, p: p.ndim > 1 and any(key in name for key in inner))
    optimizer, average = MuonAdam(groups, config.learning_rate), Average(both, 500)
    table = rarity_table(_sample_frames(shards, 2000))
    clips = Clips(shards, config.clips, config.clip_frames, config.seed)
    first = 0
    if (saved := checkpoint.load(out / "codec.pt")) is not None:
        both.load_state_dict(saved["both"])
        optimizer.load_state_dict(saved["optimizer"])
        average.values, average.count, first = saved["average"], saved["count"], saved["step"]
    noise = torch.Generator().manual_seed(config.seed + first)
    saved_at = time.monotonic()
    for step in range(first, config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate(step, config.steps, warmup=100)
        frames_u8, states = clips(step)
        losses = _losses(codec, readout, frames_u8, states, table, config, noise)
        optimizer.zero_grad(set_to_none=True)
        (losses["picture"] + config.state_weight * losses["state"] + 1e-3 * losses["size"]).backward()
        torch.nn.utils.clip_grad_norm_(both.parameters(), 1.0)
        optimizer.step()
        average.update(both)
        report(step, {name: float(value.detach()) for name, value in losses.items()})
        if time.monotonic() - saved_at > 120 or step + 1 == config.steps:
            saved_at = time.monotonic()
            content = {"both": both.state_dict(), "optimizer": optimizer.state_dict(), "average": average.values}
            checkpoint.save(
                out / "codec.pt", content | {"count": average.count, "step": step + 1, "config": asdict(config)}
            )
    average.copy_to(both)
    return codec.eval(), readout.eval()


@torch.inference_mode()
def finish_codec(codec: TinyCausalCodec, shards: list[Shard]) -> None:
    """Measure the latents' mean and deviation over the data set anew, with the weights as they are; keeps them for
    good."""
    frames = torch.from_numpy(_sample_frames(shards, 1500))
    with torch.autocast("cpu", torch.bfloat16):
        raw = torch.cat([codec.encode_raw(to_signed(part)).float() for part in frames.split(100)])
    codec.latent_mean.copy_(raw.mean((0, 2, 3)))
    codec.latent_std.copy_(raw.std((0, 2, 3)).clamp_min(1e-6))


def _losses(
    codec: TinyCausalCodec, readout: TinyReadout, frames_u8: Tensor, states: Tensor, table: Tensor,
    config: CodecTraining, noise: torch.Generator,
) -> dict[str, Tensor]:  # fmt: skip
    level = frames_u8.long() >> 4
    weight = table[level[..., 0] * 256 + level[..., 1] * 16 + level[..., 2]]
    frames = to_signed(frames_u8)
    shape = frames.shape[:2]
    with torch.autocast("cpu", torch.bfloat16):
        raw = codec.encode_raw(frames.flatten(0, 1)).float()
    mean, std = raw.mean((0, 2, 3)), raw.std((0, 2, 3))
    with torch.no_grad():
        codec.latent_mean.lerp_(mean, 0.02)
        codec.latent_std.lerp_(std, 0.02)
    latents = (raw - mean[:, None, None]) / std[:, None, None]
    noisy = latents + config.latent_noise * torch.randn(latents.shape, generator=noise)
    with torch.autocast("cpu", torch.bfloat16):
        decoded, _ = codec.decode(noisy.unflatten(0, shape), codec.initial_state(shape[0]))
        guess = readout.predict(noisy)
    error = (decoded.float() - frames).movedim(-3, -1)
    picture = (weight[..., None] * (error.square() + 0.05 * error.abs())).mean()
    state = (guess.float() - readout.targets(states.flatten(0, 1))).square().mean()
    plain = error.detach().square().mean() / 4
    return {"picture": picture, "state": state, "size": raw.square().mean(), "psnr": -10 * plain.log10()}
