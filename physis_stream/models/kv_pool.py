"""The tensors behind the page ids: un-roped keys and values of every layer, by page. It computes addresses and
copies, no more.

    layers[i]  (pages + 1, 2, H, P, D)     [:, 0] keys before RoPE, [:, 1] values
                 ^ page `pages` is the blank page: zeros, never written, what padded slots read

Who owns a page, and when it is free, is core's ledger; this file does not know. A page is read only after it was
written: pages are not wiped between owners. H heads, P tokens of a page, D head width, N pages named.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvShape:
    """What one page looks like. A chunk's tokens fill `pages_per_chunk` pages exactly."""

    num_layers: int
    num_heads: int
    head_dim: int
    page_tokens: int
    chunk_tokens: int

    def __post_init__(self) -> None:
        if self.page_tokens < 1 or self.chunk_tokens % self.page_tokens:
            raise ValueError(
                f"a chunk of {self.chunk_tokens} tokens is not a whole number of pages of {self.page_tokens} tokens: "
                f"choose a page size that divides {self.chunk_tokens}"
            )

    @property
    def pages_per_chunk(self) -> int:
        return self.chunk_tokens // self.page_tokens

    def page_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one page over all layers, keys and values."""
        return 2 * self.num_layers * self.num_heads * self.page_tokens * self.head_dim * dtype.itemsize


class KvPool:
    """KV memory of one replica (or of one stage: then `num_layers` counts its own blocks)."""

    def __init__(self, shape: KvShape, num_pages: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self.shape, self.num_pages = shape, num_pages
        size = (num_pages + 1, 2, shape.num_heads, shape.page_tokens, shape.head_dim)
        self._layers = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]

    @property
    def blank_page(self) -> int:
        """Id of the page of zeros that pads ragged contexts."""
        return self.num_pages

    @property
    def dtype(self) -> torch.dtype:
        return self._layers[0].dtype

    @property
    def device(self) -> torch.device:
        return self._layers[0].device

    def gather(self, layer: int, pages_N: Tensor, out: Tensor | None = None) -> Tensor:
        """Return a copy of these pages, (N, 2, H, P, D), into `out` if given. Does not mutate the pool."""
        pool = self._layers[layer]
        if out is None:
            return pool.index_select(0, pages_N)
        return torch.index_select(pool, 0, pages_N, out=out)

    def scatter(self, layer: int, pages_N: Tensor, keys_NHPD: Tensor, values_NHPD: Tensor) -> None:
        """Write keys and values to these pages. No page may be named twice; the caller keeps off the blank page."""
        pool = self._layers[layer]
        pool[:, 0].index_copy_(0, pages_N, keys_NHPD)
        pool[:, 1].index_copy_(0, pages_N, values_NHPD)

    def check_integrity(self) -> None:
        """Raise AssertionError if the blank page is no longer blank."""
        for index, pool in enumerate(self._layers):
            assert not pool[self.num_pages].any(), f"layer {index} wrote to the blank page"
