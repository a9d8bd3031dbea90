"""A data set seen through the codec: latents, actions and states of every frame, in memory, and the sequences drawn
from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.training.collect import Shard
from physis_stream.training.train_codec import to_signed

PARTS = ("actions", "states", "starts")


@dataclass(frozen=True)
class Plays:
    """Flat arrays over N frames of episodes: actions (N, A), states (N, D), starts (N,)."""

    actions: Tensor
    states: Tensor
    starts: Tensor

    def motion(self) -> Tensor:
        """Return how much each frame differs from the one before it, (N,), in deviations; 0 where an episode begins."""
        return _change(self.states / self.states.std(0).clamp_min(1e-6), self.starts)


@dataclass(frozen=True)
class LatentSet(Plays):
    """The same with latents fp16 (N, C, h, w), and perhaps `plays`: these and others without pictures, for a state."""

    latents: Tensor
    plays: Plays | None = None

    def with_plays(self, folder: Path) -> LatentSet:
        """Add the plays that `collect` kept in `folder` without pictures to these; the same set if there are none."""
        if not (folder / "starts.npy").exists():
            return self
        actions, states, starts = (torch.from_numpy(np.load(folder / f"{part}.npy")) for part in PARTS)
        joined = zip(
            (self.actions, self.states, self.starts), (actions, states, starts + len(self.starts)), strict=True
        )
        return replace(self, plays=Plays(*(torch.cat(both) for both in joined)))

    def motion(self) -> Tensor:
        return _change(self.latents, self.starts)


def _change(values: Tensor, starts: Tensor) -> Tensor:
    change = torch.zeros(len(values))
    for first in range(1, len(change), 4096):
        part = values[first - 1 : first + 4096].float()
        change[first : first + 4096] = (part[1:] - part[:-1]).square().flatten(1).mean(1)
    change[starts.unique()] = 0.0
    return change


@dataclass(frozen=True)
class Sequences:
    """A batch of B sequences of L frames: latents (B, L, C, h, w), actions (B, L, A), states (B, L, D), all float32."""

    latents: Tensor
    actions: Tensor
    states: Tensor


@torch.inference_mode()
def encode_shard(codec: TinyCausalCodec, shard: Shard, batch: int = 64) -> Tensor:
    """Encode all frames of a shard to fp16 latents (N, C, h, w)."""
    out = torch.empty(len(shard.frames), *codec.latent_shape, dtype=torch.float16)
    with torch.autocast("cpu", torch.bfloat16):
        for first in range(0, len(out), batch):
            frames = to_signed(torch.from_numpy(shard.frames[first : first + batch].copy()))
            out[first : first + batch] = codec.encode(frames[None])[0].half()
    return out


def load_latents(codec: TinyCausalCodec, shards: list[Shard], cache: Path) -> LatentSet:
    """Encode the shards, or read what an earlier call left in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    latents, starts, offset = [], [], 0
    for number, shard in enumerate(shards):
        path = cache / f"latents_{number:02d}.pt"
        if not path.exists():
            partial = path.with_suffix(".partial")
            torch.save(encode_shard(codec, shard), partial)
            partial.rename(path)
        latents.append(torch.load(path, weights_only=True))
        starts.append(torch.from_numpy(np.array(shard.starts)) + offset)
        offset += len(shard.frames)
    actions = torch.cat([torch.from_numpy(np.array(s.actions)) for s in shards])
    states = torch.cat([torch.from_numpy(np.array(s.states)) for s in shards])
    return LatentSet(actions, states, torch.cat(starts), torch.cat(latents))


class SequenceDraw:
    """Draws sequences addressed by step. With `fresh_start` they begin where episodes begin, at rest; else anywhere.

    Sequences in which much moves are drawn more often: what stands still is learned quickly.
    """

    def __init__(self, data: Plays, frames: int, default_action: tuple[float, ...], seed: int) -> None:
        self._data, self._frames, self._seed = data, frames, seed
        self._default = torch.tensor(default_action)
        inside = data.starts[: len(data.starts) - frames + 1] == data.starts[frames - 1 :]
        self._anywhere = torch.nonzero(inside)[:, 0].numpy()
        self._at_start = np.intersect1d(data.starts.unique().numpy(), self._anywhere)
        total = data.motion().double().cumsum(0).numpy()
        energy = total[self._anywhere + frames - 1] - total[self._anywhere]
        energy = np.minimum(energy, np.quantile(energy, 0.9)) + 0.3 * energy.mean() + 1e-9
        self._odds = np.cumsum(energy) / energy.sum()

    def _index(self, step: int, count: int, fresh_start: bool) -> Tensor:
        rng = np.random.default_rng((self._seed, step, int(fresh_start)))
        if fresh_start:
            first = rng.choice(self._at_start, count)
        else:
            place = np.searchsorted(self._odds, rng.random(count))
            first = self._anywhere[np.minimum(place, len(self._anywhere) - 1)]
        return torch.from_numpy(first[:, None] + np.arange(self._frames))

    def _actions(self, index: Tensor) -> Tensor:
        actions = self._data.actions[index].clone()
        actions[:, 0] = self._default
        return actions

    def __call__(self, step: int, count: int, *, fresh_start: bool) -> Sequences:
        """Return `count` sequences. The first frame's action is the default, as a session's opening frame has it."""
        index = self._index(step, count, fresh_start)
        assert isinstance(self._data, LatentSet)
        return Sequences(self._data.latents[index].float(), self._actions(index), self._data.states[index])

    def states(self, step: int, count: int, *, fresh_start: bool) -> tuple[Tensor, Tensor]:
        """Return actions (B, L, A) and states (B, L, D) of `count` sequences, without their pictures."""
        index = self._index(step, count, fresh_start)
        return self._actions(index), self._data.states[index]
