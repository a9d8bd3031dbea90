"""The naive path that the engine is held to: one session, one row at a time, every version's KV kept, nothing paged
or batched.

It shares the model, the rotation and the addresses of noise with the engine, and
nothing else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import torch
from torch import Tensor

from physis_stream.core.context_rule import ContextRule
from physis_stream.core.seeds import noise_key, start_index
from physis_stream.models.noise import AddressedNoise
from physis_stream.models.noise_schedule import Renoise
from physis_stream.models.rope import rope_table, rotate
from physis_stream.models.tiny.weights import LoadedWorld
from physis_stream.runtime.served_model import ServedModel, serve


@dataclass
class _NaiveAttend:
    """Attention of one row over a list of earlier (keys, values) per layer, in logical order, and itself."""

    context: list[list[tuple[Tensor, Tensor]]]
    cos: Tensor
    sin: Tensor
    written: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        self.written.append((k_RTHD[0].clone(), v_RTHD[0].clone()))
        chunks = [*(version[layer] for version in self.context), self.written[layer]]
        keys = torch.cat([self._rotate(k, position) for position, (k, _) in enumerate(chunks)])
        values = torch.cat([v for _, v in chunks])
        query = self._rotate(q_RTHD[0], len(chunks) - 1)
        scores = torch.einsum("thd,khd->htk", query, keys) / query.shape[-1] ** 0.5
        return torch.einsum("htk,khd->thd", scores.softmax(-1), values)[None]

    def _rotate(self, x_THD: Tensor, position: int) -> Tensor:
        return rotate(x_THD, self.cos[position][:, None], self.sin[position][:, None])


@dataclass(frozen=True)
class Step:
    """One forward of the reference: what went in and what came out."""

    frame: int
    version: int
    x_t: Tensor
    told: float
    level: float
    action: Tensor
    x0: Tensor


@dataclass(frozen=True)
class Rollout:
    """`latents` (F, C, h, w) of the start and every chunk after it; `steps` all forwards in order."""

    latents: Tensor
    steps: list[Step]


@torch.inference_mode()
def roll_out(world: LoadedWorld, rule: ContextRule, seed: int, actions: list[tuple[float, ...]]) -> Rollout:
    """Dream one chunk for each action, one row after the other."""
    profile, model = world.profile, world.transformer
    head_dim = model.config.width // model.config.num_heads
    table = rope_table(rule.window + profile.sink + 1, *model.grid, head_dim, placeless=1)
    kv: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = {}
    steps: list[Step] = []

    def forward(frame: int, version: int, x_t: Tensor, level: float, told: float, action: tuple[float, ...]) -> Tensor:
        window = range(max(0, frame - rule.window), frame)
        view = [*range(min(profile.sink, window.start)), *window] if frame else []
        context = []
        for earlier in view:
            clean = earlier == 0 or frame - earlier > rule.window
            context.append(kv[earlier, rule.version(version, frame - earlier, primed=clean)])
        attend = _NaiveAttend(context, table.cos_FTD, table.sin_FTD)
        given = torch.tensor([action])
        velocity = model(x_t[None], torch.tensor([told]), given, attend)[0]
        kv[frame, version] = attend.written
        x0 = x_t - level * velocity
        steps.append(Step(frame, version, x_t, told, level, given[0], x0))
        return x0, x0 + velocity

    start = world.starts.latents[start_index(seed, len(world.starts.latents))]
    forward(0, rule.committed_version, start, 0.0, profile.commit_level, profile.action.default)
    latents = [start]
    for frame, action in enumerate(actions, start=1):
        x0 = implied = torch.zeros_like(start)
        for step, level in enumerate(profile.levels):
            noise = AddressedNoise().sample([noise_key(seed, frame, step)], tuple(start.shape))[0]
            if step and profile.renoise is Renoise.IMPLIED:
                noise = implied
            x0, implied = forward(frame, step, (1 - level) * x0 + level * noise, level, level, action)
        if rule.commit:
            forward(frame, rule.num_steps, x0, 0.0, profile.commit_level, action)
        latents.append(x0)
    return Rollout(torch.stack(latents), steps)


def transparent(world: LoadedWorld, discipline: str | None = None, commit: bool | None = None) -> ServedModel:
    """The world as the engine serves it, its readouts being the latent itself, so that chunks can be compared
    exactly.
    """
    model = serve(world, discipline=discipline, commit=commit)
    size = model.starts[0].numel()
    return dataclasses.replace(
        model,
        readout=lambda latents: latents.flatten(1),
        state_names=tuple(f"latent_{number}" for number in range(size)),
        reward_name=None,
    )
