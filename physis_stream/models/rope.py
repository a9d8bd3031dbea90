"""Rotary position embedding over (frame, row, column), after RoFormer (arXiv 2104.09864), split per axis as Wan does.

Frame positions are *window-relative*: whoever attends says where a query and its keys lie in the window, and since only
differences count, a table as long as the window serves rollouts of any length.

    cos, sin   (frames, T, D)   T tokens of a frame in row-major order, those without a place after them; D head width;
                                pairs are (i, i + D/2)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class RopeTable(NamedTuple):
    """Cosines and sines for every frame position of a window; index them by frame position."""

    cos_FTD: Tensor
    sin_FTD: Tensor


def rope_table(
    num_frames: int, rows: int, columns: int, head_dim: int, theta: float = 100.0, *, placeless: int = 0
) -> RopeTable:
    """Build the table in fp32 for frame positions 0..num_frames-1 of a `rows` x `columns` token grid, followed in each
    frame by `placeless` tokens that turn with frames only.

    A third of the frequencies (what is left over too) goes to frames, a third each to rows and columns.
    """
    pairs = head_dim // 2
    grid = torch.meshgrid(torch.arange(num_frames), torch.arange(rows), torch.arange(columns), indexing="ij")
    parts = [
        position[..., None].double() * frequency
        for position, frequency in zip(grid, axis_frequencies(head_dim, theta), strict=True)
    ]
    angles = torch.cat(parts, dim=-1).reshape(num_frames, rows * columns, pairs)
    if placeless:
        turn = torch.zeros(num_frames, placeless, pairs, dtype=torch.float64)
        frequency = axis_frequencies(head_dim, theta)[0]
        turn[..., : len(frequency)] = torch.arange(num_frames)[:, None, None].double() * frequency
        angles = torch.cat((angles, turn), dim=1)
    angles = torch.cat((angles, angles), dim=-1)
    return RopeTable(angles.cos().float(), angles.sin().float())


def axis_frequencies(head_dim: int, theta: float = 100.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the angle that each pair turns by from one frame, row and column to the next, fp64; frame pairs come
    first.
    """
    if head_dim % 2:
        raise ValueError(f"head_dim must be even, got {head_dim}")
    pairs = head_dim // 2
    per_space = pairs // 3
    counts = (pairs - 2 * per_space, per_space, per_space)
    frames, rows, columns = (theta ** (-torch.arange(count, dtype=torch.float64) / count) for count in counts)
    return frames, rows, columns


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotation to (..., T, H, D); `cos` and `sin` broadcast as (..., T, 1, D), in the dtype to compute in."""
    half = x.shape[-1] // 2
    swapped = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + swapped * sin
