"""Addressed noise: standard normal numbers as a pure function of a key, so that a row's noise is the same alone or
in company.

Nothing is consumed and there is no generator state. A key is 64 bits (core hashes seed, chunk and step into
one); number i of a key comes from 16 bits of the SplitMix64 stream (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", 2014) that the key starts, looked up in a table of 65,536 normal quantiles: integer
arithmetic and one table, so the bits agree on every machine. It knows no sessions; `NoiseSource` is the seam at
which recorded noise is replayed.

Legend: R rows, E elements of a row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_MASK_64 = (1 << 64) - 1


class NoiseSource(Protocol):
    """Where a row's noise comes from. Equal keys and shapes give equal numbers, whatever else is in the batch."""

    def sample(self, keys: Sequence[int | None], shape: tuple[int, ...]) -> Tensor:
        """Return float32 (R, *shape) on the CPU: standard normal for a key, zeros for None."""
        ...


@functools.cache
def _quantiles() -> npt.NDArray[np.float32]:
    """The normal quantiles at (i + 1/2) / 65,536, scaled to unit variance; float32, exactly symmetric about zero."""
    upper = (torch.arange(32_768, dtype=torch.float64) + 0.5) / 65_536
    half = (torch.special.ndtri(upper + 0.5)).numpy()
    table = np.concatenate((-half[::-1], half))
    rounded: npt.NDArray[np.float32] = (table / table.std()).astype(np.float32)
    return rounded


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Finalise SplitMix64 in place; uint64 arithmetic wraps."""
    x ^= x >> np.uint64(30)
    x *= _MIX_1
    x ^= x >> np.uint64(27)
    x *= _MIX_2
    x ^= x >> np.uint64(31)
    return x


class AddressedNoise:
    """Noise by key alone. Stateless; may be shared by threads."""

    def sample(self, keys: Sequence[int | None], shape: tuple[int, ...]) -> Tensor:
        """See `NoiseSource`; keys are taken modulo 2**64."""
        elements = int(np.prod(shape))
        words = -(-elements // 4)
        start = np.array([0 if key is None else key & _MASK_64 for key in keys], dtype=np.uint64)
        steps = np.arange(1, words + 1, dtype=np.uint64) * _GOLDEN
        stream = _mix(_mix(start)[:, None] + steps)
        halves = stream.astype("<u8", copy=False).view("<u2")[:, :elements]
        noise = torch.from_numpy(_quantiles()[halves]).view(len(keys), *shape)
        blank = [row for row, key in enumerate(keys) if key is None]
        if blank:
            noise[blank] = 0.0
        return noise


class RecordedNoise:
    """Noise given as a table of tensors, for comparison with runs recorded elsewhere."""

    def __init__(self, noise: Mapping[int, Tensor]) -> None:
        self._noise = dict(noise)

    def sample(self, keys: Sequence[int | None], shape: tuple[int, ...]) -> Tensor:
        """See `NoiseSource`. Raises KeyError for a key that was not recorded, ValueError for another shape."""
        rows = torch.zeros(len(keys), *shape)
        for row, key in enumerate(keys):
            if key is None:
                continue
            recorded = self._noise[key]
            if tuple(recorded.shape) != tuple(shape):
                raise ValueError(f"noise {key} was recorded as {tuple(recorded.shape)}, wanted {tuple(shape)}")
            rows[row] = recorded
        return rows
