"""Dense attention over whole sequences: how training sees the context rule, and the oracle that the engine is held to.

A sequence is G *groups* of T tokens; a group is one version of one frame. The rows of a batch are B sequences of G
groups each, row b*G + g. Which groups a group attends to is a boolean table made from the `ContextRule`; nothing is
cached.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from physis_stream.core.context_rule import ContextRule
from physis_stream.models.rope import RopeTable, rotate


@dataclass(frozen=True)
class Groups:
    """Order of the groups of one sequence: for each its frame and version. Frames below `primed` have one version
    only."""

    frames: tuple[int, ...]
    versions: tuple[int, ...]
    primed: int

    @classmethod
    def of(cls, rule: ContextRule, num_frames: int, primed: int = 1) -> Groups:
        """List the groups of `num_frames` frames under a rule, frame by frame, versions ascending."""
        pairs = [(frame, rule.committed_version) for frame in range(primed)]
        pairs += [(frame, version) for frame in range(primed, num_frames) for version in range(rule.rows_per_chunk)]
        frames, versions = zip(*pairs, strict=True)
        return cls(frames, versions, primed)

    def allowed(self, rule: ContextRule) -> Tensor:
        """Return the boolean table (G, G): may group i (row) attend to group j (column)?"""
        table = torch.eye(len(self.frames), dtype=torch.bool)
        at = {pair: i for i, pair in enumerate(zip(self.frames, self.versions, strict=True))}
        for (frame, version), i in at.items():
            for distance in range(1, min(rule.window, frame) + 1):
                earlier = frame - distance
                table[i, at[earlier, rule.version(version, distance, primed=earlier < self.primed)]] = True
        return table


class DenseAttention:
    """An `Attend` for rows that form whole sequences; see the module for the order of rows."""

    def __init__(self, groups: Groups, rule: ContextRule, rope: RopeTable, dtype: torch.dtype = torch.float32) -> None:
        position = torch.tensor(groups.frames)
        tokens = rope.cos_FTD.shape[1]
        self._length = len(groups.frames) * tokens
        self._cos = rope.cos_FTD[position].flatten(0, 1)[:, None].to(dtype)
        self._sin = rope.sin_FTD[position].flatten(0, 1)[:, None].to(dtype)
        allowed = groups.allowed(rule).repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
        self._bias = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        """Return the attention output (R, T, H, D); R must be a multiple of the number of groups."""
        shape = (-1, self._length, *q_RTHD.shape[2:])
        q = rotate(q_RTHD.reshape(shape), self._cos, self._sin).transpose(1, 2)
        k = rotate(k_RTHD.reshape(shape), self._cos, self._sin).transpose(1, 2)
        v = v_RTHD.reshape(shape).transpose(1, 2)
        # Spelled out: with a table for a mask, the fused kernel of the CPU is several times slower.
        score = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5 + self._bias
        out: Tensor = score.softmax(-1).to(v.dtype) @ v
        return out.transpose(1, 2).reshape(q_RTHD.shape)
