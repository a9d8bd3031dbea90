"""Open-loop rollouts of many sessions in lockstep, under any context rule: the evaluation's sampler, and a plain
oracle.

All sessions of a batch are at the same frame, so the cache is a table of (frame, version) -> keys and values per layer,
kept as the rule says and dropped when no step can reach them any more. Keys are kept without RoPE and roped on read at
positions relative to the window. Noise is addressed by (seed, frame, step), so a rollout is the same whatever ran
before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from physis_stream.core.context_rule import ContextRule
from physis_stream.models.noise_schedule import Renoise, add_noise, estimate, implied_noise
from physis_stream.models.rope import RopeTable, rope_table, rotate
from physis_stream.models.tiny.model import TinyWorldTransformer


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a chunk is denoised: the rule, a level per step, the level clean rows are told, and how estimates are
    noised."""

    rule: ContextRule
    levels: tuple[float, ...]
    commit_level: float
    renoise: Renoise = Renoise.FRESH

    def __post_init__(self) -> None:
        if len(self.levels) != self.rule.num_steps:
            raise ValueError(f"{self.rule.num_steps} steps need as many levels, got {len(self.levels)}")


class Rollout:
    """B sessions that live in one batch. `prime` once, then `step` per frame; latents (B, C, H, W) and actions (B,
    A)."""

    def __init__(self, transformer: TinyWorldTransformer, sampling: Sampling, seed: int = 0) -> None:
        self._model, self._sampling, self._seed = transformer, sampling, seed
        head_dim = transformer.config.width // transformer.config.num_heads
        rows, columns = transformer.grid
        placeless = transformer.tokens_per_row - rows * columns
        self._rope: RopeTable = rope_table(sampling.rule.window + 1, rows, columns, head_dim, placeless=placeless)
        self._cache: dict[tuple[int, int], dict[int, tuple[Tensor, Tensor]]] = {}
        self._primed = 0
        self.frame = 0

    @torch.inference_mode()
    def prime(self, latents_BCHW: Tensor, action_BA: Tensor) -> None:
        """Append a known frame: its KV is written as committed, at the commit row's level."""
        version = self._sampling.rule.committed_version
        self._primed = self.frame + 1
        self._forward(latents_BCHW, self._sampling.commit_level, action_BA, version)
        self._advance()

    @torch.inference_mode()
    def step(self, action_BA: Tensor) -> Tensor:
        """Generate the next frame under `action_BA` and return its latents, fp32."""
        sampling = self._sampling
        config = self._model.config
        shape = (action_BA.shape[0], config.latent_channels, config.latent_height, config.latent_width)
        x = self._noise(shape, 0)
        x0 = x
        for step, level in enumerate(sampling.levels):
            t = torch.full(shape[:1], level)
            velocity = self._forward(x, level, action_BA, step)
            x0 = estimate(x, velocity, t)
            if step + 1 < len(sampling.levels):
                fresh = sampling.renoise is Renoise.FRESH
                noise = self._noise(shape, step + 1) if fresh else implied_noise(x, velocity, t)
                x = add_noise(x0, noise, torch.full(shape[:1], sampling.levels[step + 1]))
        if sampling.rule.commit:
            self._forward(x0, sampling.commit_level, action_BA, sampling.rule.num_steps)
        self._advance()
        return x0

    def _noise(self, shape: tuple[int, ...], step: int) -> Tensor:
        address = (self._seed * 1_000_003 + self.frame) * 16 + step
        return torch.randn(shape, generator=torch.Generator().manual_seed(address % 2**63))

    def _forward(self, x: Tensor, level: float, action: Tensor, version: int) -> Tensor:
        """Run one row per session; a clean row passes its latents as they are and is only *told* the commit level."""
        t = torch.full(x.shape[:1], level)
        rule, frame = self._sampling.rule, self.frame
        context = [
            (frame - d, rule.version(version, d, primed=frame - d < self._primed))
            for d in range(min(rule.window, frame), 0, -1)
        ]
        written: dict[int, tuple[Tensor, Tensor]] = {}

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            written[layer] = (k, v)
            keys = torch.stack([*(self._cache[at][layer][0] for at in context), k], dim=1)
            values = torch.stack([*(self._cache[at][layer][1] for at in context), v], dim=1)
            count = keys.shape[1]
            cos, sin = (table[:count, :, None].to(k.dtype) for table in self._rope)
            roped = rotate(keys, cos, sin).flatten(1, 2).transpose(1, 2)
            query = rotate(q, cos[-1], sin[-1]).transpose(1, 2)
            return F.scaled_dot_product_attention(query, roped, values.flatten(1, 2).transpose(1, 2)).transpose(1, 2)

        velocity: Tensor = self._model(x, t, action, attend)
        self._cache[frame, version] = written
        return velocity

    def _advance(self) -> None:
        self.frame += 1
        oldest = self.frame - self._sampling.rule.window
        self._cache = {at: kv for at, kv in self._cache.items() if at[0] >= oldest}
