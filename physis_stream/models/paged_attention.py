"""Attention of one tick's rows over their paged context: an `Attend` made afresh for each batch.

Rows of different context lengths share the batch. Each row sees its context chunks in logical order (sink first,
then the window, oldest first) and then itself; keys are stored without RoPE and roped here, at their window-relative
positions:

    slot        0      1     ...    n-1   | padding |  own
    position    0      1     ...    n-1   |  (any)  |   n          n = chunks in view, differs from row to row

so that the table of the context is the same for all rows, and only the own chunk's position is per row. Padded slots
read the blank page and are masked. All reads of a layer come before its writes: a page may be read by one row and
rewritten by another in the same tick.

It knows pages by number and no sessions. R rows, H heads, T tokens of a row, D head width, P tokens of a page, N
context pages of a row, K = N*P + T keys of a row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from physis_stream.models.kv_pool import KvPool
from physis_stream.models.rope import RopeTable


@dataclass(frozen=True, slots=True)
class RowPages:
    """The pages of one row: `context` in slot order, `write` for its own KV (empty: nobody will read it).

    A page may be written by one row only.
    """

    context: Sequence[int]
    write: Sequence[int]


class ChunkRope:
    """The frame-wise table seen chunk-wise: `positions` chunks of `frames` frames, in pages of P tokens.

    Built once per world and dtype; constant, so a rollout may be of any length.
    """

    def __init__(self, table: RopeTable, chunk_frames: int, page_tokens: int, dtype: torch.dtype) -> None:
        frames, tokens, width = table.cos_FTD.shape
        if frames % chunk_frames:
            raise ValueError(f"a table of {frames} frames is not a whole number of chunks of {chunk_frames} frames")
        self.positions = frames // chunk_frames
        self.half = width // 2
        own = (self.positions, 1, chunk_frames * tokens, width)
        by_page = (self.positions * chunk_frames * tokens // page_tokens, 1, page_tokens, width)
        self.cos_C1TD, self.sin_C1TD = (x.to(dtype).reshape(own) for x in table)
        self.cos_N1PD, self.sin_N1PD = (x.reshape(by_page) for x in (self.cos_C1TD, self.sin_C1TD))


def rope_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Write x, rotated in pairs (i, i + D/2), to `out`; all broadcast, `out` must not share memory with x. Returns
    `out`.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    cos, sin = cos[..., :half], sin[..., :half]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out


class PagedAttend:
    """One tick's attention; see the module. Index tensors and buffers are made once here and reused by every layer.

    `pad_pages` widens every context to that many pages whatever the rows need, so that shapes (and with them the
    bits) do not depend on the company. Layer indices are those of the pool.
    """

    def __init__(
        self, pool: KvPool, rope: ChunkRope, rows: Sequence[RowPages], *, pad_pages: int = 0, first_layer: int = 0
    ) -> None:
        shape, device = pool.shape, pool.device
        counts = [len(row.context) for row in rows]
        width = max(pad_pages, *counts)
        limit = (rope.positions - 1) * shape.pages_per_chunk
        if width > limit:
            raise ValueError(
                f"a row sees {width} pages of context; the position table holds {limit} and the row itself"
            )
        index = np.full((len(rows), width), pool.blank_page, dtype=np.int64)
        for number, row in enumerate(rows):
            index[number, : counts[number]] = row.context
        keepers = [number for number, row in enumerate(rows) if row.write]
        write = np.array([rows[number].write for number in keepers], dtype=np.int64)
        self._pool, self._first_layer, self._rows, self._pages = pool, first_layer, len(rows), width
        self._read = torch.from_numpy(index.reshape(-1)).to(device)
        self._write = torch.from_numpy(write.reshape(-1)).to(device)
        self._keepers = None if len(keepers) == len(rows) else torch.tensor(keepers, dtype=torch.int64, device=device)
        self._cos, self._sin = rope.cos_N1PD[:width], rope.sin_N1PD[:width]
        position = torch.tensor([count // shape.pages_per_chunk for count in counts], device=device)
        self._own_cos, self._own_sin = rope.cos_C1TD[position], rope.sin_C1TD[position]
        self._mask = self._ragged_mask(counts, width)
        keys = width * shape.page_tokens + shape.chunk_tokens
        size = (len(rows), shape.num_heads, keys, shape.head_dim)
        self._keys, self._values = (torch.empty(size, dtype=pool.dtype, device=device) for _ in range(2))
        gathered = (len(rows) * width, 2, shape.num_heads, shape.page_tokens, shape.head_dim)
        self._gathered = torch.empty(gathered, dtype=pool.dtype, device=device)

    def _ragged_mask(self, counts: Sequence[int], width: int) -> Tensor | None:
        """Additive (R, 1, 1, K): -inf on padded slots; None if no slot is padded."""
        if min(counts) == width:
            return None
        shape = self._pool.shape
        bias = np.zeros((len(counts), width * shape.page_tokens + shape.chunk_tokens), dtype=np.float32)
        for row, count in enumerate(counts):
            bias[row, count * shape.page_tokens : width * shape.page_tokens] = -np.inf
        return torch.from_numpy(bias).to(self._pool.device, self._pool.dtype)[:, None, None, :]

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        """See `models.interface.Attend`."""
        layer -= self._first_layer
        context = self._pages * self._pool.shape.page_tokens
        q_RHTD, k_RHTD, v_RHTD = (x.transpose(1, 2) for x in (q_RTHD, k_RTHD, v_RTHD))
        if context:
            self._read_context(layer, context)
        rope_into(self._keys[:, :, context:], k_RHTD, self._own_cos, self._own_sin)
        self._values[:, :, context:] = v_RHTD
        query = rope_into(torch.empty_like(q_RHTD), q_RHTD, self._own_cos, self._own_sin)
        self._store(layer, k_RHTD, v_RHTD)
        return attention(query, self._keys, self._values, self._mask).transpose(1, 2)

    def _read_context(self, layer: int, context: int) -> None:
        """Gather the context's pages, rope the keys, and lay both out by head."""
        shape = self._pool.shape
        pages = self._pool.gather(layer, self._read, out=self._gathered).unflatten(0, (self._rows, self._pages))
        paged = (self._rows, shape.num_heads, self._pages, shape.page_tokens, shape.head_dim)
        keys = self._keys[:, :, :context].view(paged).transpose(1, 2)
        rope_into(keys, pages[:, :, 0], self._cos, self._sin)
        self._values[:, :, :context].view(paged).transpose(1, 2).copy_(pages[:, :, 1])

    def _store(self, layer: int, k_RHTD: Tensor, v_RHTD: Tensor) -> None:
        """Write the rows' own KV, un-roped, to their pages."""
        shape = self._pool.shape
        if self._keepers is not None:
            k_RHTD, v_RHTD = k_RHTD.index_select(0, self._keepers), v_RHTD.index_select(0, self._keepers)
        split = (shape.pages_per_chunk, shape.page_tokens)
        k, v = (x.unflatten(2, split).transpose(1, 2).flatten(0, 1) for x in (k_RHTD, v_RHTD))
        self._pool.scatter(layer, self._write, k, v)


def attention(q_RHTD: Tensor, k_RHKD: Tensor, v_RHKD: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention (R, H, T, D); `mask` is additive and broadcasts to (R, H, T, K).

    In bf16 on a CPU two batched products and a softmax are about twice as fast as the fused kernel, whose blocks are
    converted to fp32; elsewhere the fused kernel is used.
    """
    if q_RHTD.dtype is not torch.bfloat16 or q_RHTD.device.type != "cpu":
        return F.scaled_dot_product_attention(q_RHTD, k_RHKD, v_RHKD, attn_mask=mask)
    scores = (q_RHTD * (1.0 / math.sqrt(q_RHTD.shape[-1]))) @ k_RHKD.transpose(-1, -2)
    if mask is not None:
        scores += mask
    return torch.softmax(scores, dim=-1, out=scores) @ v_RHKD
