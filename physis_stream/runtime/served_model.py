"""Everything that an executor needs of one world, in one frozen object: numbers for core, tensors and callables for
the tick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from physis_stream.core.context_rule import ContextRule
from physis_stream.core.seeds import start_index
from physis_stream.core.spec import ActionSpec, Combine, WorldSpec
from physis_stream.models.denoise_step import Denoiser
from physis_stream.models.kv_pool import KvShape
from physis_stream.models.profile import WorldProfile
from physis_stream.models.tiny.weights import LoadedWorld
from physis_stream.runtime.batching import LevelTable
from physis_stream.runtime.frame_decoder import Codec
from physis_stream.runtime.service import WorldInfo


@dataclass(frozen=True)
class ServedModel:
    """A world ready to run. `token_grid` is rows and columns of a frame's tokens, `placeless_tokens` follow them;
    `starts` is (N, C, H, W) fp32.

    `state_names` name the readouts in order; `reward_name` is the one among them that is the reward, or None.
    """

    spec: WorldSpec
    world: WorldInfo
    denoiser: Denoiser
    codec: Codec
    readout: Callable[[Tensor], Tensor] | None
    state_names: tuple[str, ...]
    reward_name: str | None
    levels: LevelTable
    kv: KvShape
    token_grid: tuple[int, int]
    placeless_tokens: int
    dtype: torch.dtype
    starts: Tensor

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return tuple(self.starts.shape[1:])

    @property
    def max_context_pages(self) -> int:
        """Pages that a row sees at most."""
        return (self.spec.rule.window + self.spec.sink) * self.kv.pages_per_chunk

    def start_latent(self, seed: int) -> Tensor:
        """The latent (C, H, W) that a session of this seed begins with."""
        return self.starts[start_index(seed, len(self.starts))]


def serve(loaded: LoadedWorld, *, discipline: str | None = None, commit: bool | None = None) -> ServedModel:
    """Make a loaded world ready to run under one of the rules of its profile, by default the first.

    Raises ProfileError for a rule that the profile does not offer.
    """
    profile, transformer = loaded.profile, loaded.transformer
    rule = profile.rule(discipline, commit)
    config, dtype = transformer.config, loaded.transformer.patch_in.weight.dtype
    head_dim = config.width // config.num_heads
    kv = KvShape(config.num_layers, config.num_heads, head_dim, profile.tokens_per_frame, profile.tokens_per_frame)
    return ServedModel(
        spec=_spec(profile, rule, kv.pages_per_chunk, kv.page_bytes(dtype), loaded.codec.initial_state(1).nbytes),
        world=describe(profile, rule),
        denoiser=transformer,
        codec=loaded.vision,
        readout=loaded.readout,
        state_names=profile.readout.names,
        reward_name="reward" if "reward" in profile.readout.names else None,
        levels=LevelTable(profile.levels, profile.commit_level, profile.renoise),
        kv=kv,
        token_grid=(transformer.grid[0], transformer.grid[1]),
        placeless_tokens=transformer.tokens_per_row - transformer.grid[0] * transformer.grid[1],
        dtype=dtype,
        starts=loaded.starts.latents.float(),
    )


def _spec(
    profile: WorldProfile, rule: ContextRule, pages_per_chunk: int, page_bytes: int, decoder_bytes: int
) -> WorldSpec:
    """The world in core's numbers."""
    action = profile.action
    return WorldSpec(
        world=profile.name,
        rule=rule,
        action=ActionSpec(action.low, action.high, action.default, action.names, Combine(action.combine)),
        fps=profile.fps,
        chunk_frames=profile.chunk_frames,
        height=profile.height,
        width=profile.width,
        sink=profile.sink,
        pages_per_chunk=pages_per_chunk,
        page_bytes=page_bytes,
        fixed_bytes=decoder_bytes + 2 * 4 * math.prod(profile.latent) * rule.rows_per_chunk,
        shape_key=f"{profile.name}:{profile.width}x{profile.height}",
    )


def describe(profile: WorldProfile, rule: ContextRule) -> WorldInfo:
    """What clients hear of a world."""
    action = profile.action
    return WorldInfo(
        name=profile.name,
        family=profile.family,
        title=profile.title or profile.name,
        description=profile.description or f"{profile.width}x{profile.height} at {profile.fps:g} frames a second",
        height=profile.height,
        width=profile.width,
        fps=profile.fps,
        chunk_frames=profile.chunk_frames,
        action={
            "dim": action.dim,
            "low": list(action.low),
            "high": list(action.high),
            "names": list(action.names),
            "initial": list(action.default),
            "combine": action.combine,
        },
        discipline=rule.discipline.value,
        num_steps=rule.num_steps,
        state_names=profile.readout.names,
        state_units=profile.readout.units,
    )
