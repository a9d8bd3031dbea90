"""The tensors behind the page ids: keys and values of every layer, by page. It computes addresses and copies, no more.

    keys[i], values[i]   (pages + 1 + scratch, H, P, D)
                          ^ 0..pages-1: named in plans   pages: blank, zeros, read by padded slots   after it: scratch

Heads come before tokens, so that one gather lays a row's pages out as one run of keys for each head. Who owns a
page, and when it is free, is core's ledger; this file does not know. A page is read only after it was written: pages
are not wiped between owners. Scratch pages hold what a row needs for itself alone and nobody will read. H heads, P
tokens of a page, D head width.
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
    """KV memory of one replica (or of one stage: then `num_layers` counts its own blocks). `max_rows` rows a batch."""

    def __init__(
        self,
        shape: KvShape,
        num_pages: int,
        dtype: torch.dtype,
        *,
        max_rows: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages must be at least 1, got {num_pages}")
        self.shape, self.num_pages, self.max_rows = shape, num_pages, max_rows
        total = num_pages + 1 + max_rows * shape.pages_per_chunk
        size = (total, shape.num_heads, shape.page_tokens, shape.head_dim)
        self._keys = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        self._values = [torch.zeros(size, dtype=dtype, device=device) for _ in range(shape.num_layers)]
        # Pages are moved, not computed with, and eight bytes at a time move several times faster than two.
        self._wide = torch.int64 if shape.head_dim * dtype.itemsize % 8 == 0 else dtype

    @property
    def blank_page(self) -> int:
        """Id of the page of zeros that pads ragged contexts."""
        return self.num_pages

    def scratch_pages(self, row: int) -> range:
        """Pages for the own KV of the row of this number, if nobody else will read it."""
        if not 0 <= row < self.max_rows:
            raise ValueError(f"row {row} of a batch is beyond the {self.max_rows} that this pool is made for")
        begin = self.num_pages + 1 + row * self.shape.pages_per_chunk
        return range(begin, begin + self.shape.pages_per_chunk)

    @property
    def dtype(self) -> torch.dtype:
        return self._keys[0].dtype

    @property
    def device(self) -> torch.device:
        return self._keys[0].device

    def write(self, layer: int, pages_N: Tensor, keys_NHPD: Tensor, values_NHPD: Tensor) -> None:
        """Write keys and values to these pages. No page may be named twice; the caller keeps off the blank page."""
        for pool, new in ((self._keys[layer], keys_NHPD), (self._values[layer], values_NHPD)):
            pool.view(self._wide).index_copy_(0, pages_N, new.contiguous().view(self._wide))

    def read(self, layer: int, heads_M: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of keys and values (M, P, D), one for each index page * H + head. Does not mutate the pool."""
        keys, values = (self._gather(pool[layer], heads_M) for pool in (self._keys, self._values))
        return keys, values

    def _gather(self, pool: Tensor, heads_M: Tensor) -> Tensor:
        wide = pool.flatten(0, 1).view(self._wide).flatten(1).index_select(0, heads_M)
        return wide.view(-1, self.shape.page_tokens, wide.shape[1] // self.shape.page_tokens).view(pool.dtype)

    def check_integrity(self) -> None:
        """Raise AssertionError if the blank page is no longer blank."""
        for index, pools in enumerate(zip(self._keys, self._values, strict=True)):
            assert not any(pool[self.num_pages].any() for pool in pools), f"layer {index} wrote to the blank page"
