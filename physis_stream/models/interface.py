"""Seams of the model families: what a forward asks of whoever owns the KV.

A model computes; it never stores keys or values. Its blocks hand q, k and v of the rows of one batch to an `Attend`,
which ropes them at window-relative positions, keeps k and v where it likes, and returns the attention output. Training
gives a dense masked one, the engine a paged one; both must agree.

Legend: R rows of a batch (each one frame of one session at one noise level), T tokens of a row, H heads, D head width.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Attend(Protocol):
    """Attention over whatever context the rows of this batch have.

    Called once per layer and forward, layers in ascending order. q and k come after their norm and *before* RoPE. Must
    not change its arguments; may keep references to k and v beyond the call.
    """

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        """Return the attention output (R, T, H, D) of every row over itself and its context."""
        ...
