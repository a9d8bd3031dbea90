"""Attention of one tick's rows over their paged context: an `Attend` made afresh for each batch.

Rows of different context lengths share the batch. Each row sees its context in logical order (sink first, then the
window, oldest first) and then itself, at window-relative positions 0, 1, ... n. Only differences of positions count,
so a key is roped once, when it is written, at the *phase* of its chunk, and reading costs no arithmetic:

    pages of row r   | context page 0 | ... | context page n-1 | blank ... | own pages |
    phase            |  c - n         | ... |  c - 1           |           |  c        |     c = chunk of the row

A sink keeps its distance while the window moves on: its keys are turned, as they are read, by as many chunks as have
left the view between sink and window. Phases are worked out in double precision for each tick, so there is no table
to run off.

It knows pages by number and no sessions. R rows, H heads, T tokens of a row, D head width, P tokens of a page, N
pages of a row with its own, K = N*P keys of a row, F pairs that turn with frames (the first ones), S pairs that do not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from physis_stream.models.kv_pool import KvPool
from physis_stream.models.rope import axis_frequencies, rope_table


@dataclass(frozen=True, slots=True)
class RowPages:
    """The pages of one row: `context` in logical order, `write` for its own KV (empty: nobody will read it).

    `phase` is the row's chunk; the first `turned` context pages are turned by `turn` chunks. A page is written by
    one row only, and is not read in the tick that writes it.
    """

    context: Sequence[int] = ()
    write: Sequence[int] = ()
    phase: int = 0
    turned: int = 0
    turn: int = 0


class ChunkRope:
    """Rotations of a world's chunks: `frames` latent frames of `rows` x `columns` tokens each and `placeless` ones, in
    pairs (i, i + D/2).
    """

    def __init__(
        self, frames: int, rows: int, columns: int, head_dim: int, dtype: torch.dtype, *, placeless: int = 0
    ) -> None:
        self.half = head_dim // 2
        self._frames, self._dtype = frames, dtype
        self._frequency_F = axis_frequencies(head_dim)[0].numpy()
        still = slice(len(self._frequency_F), self.half)
        table = rope_table(1, rows, columns, head_dim, placeless=placeless)
        self._still = tuple(x[0, :, still].to(dtype) for x in table)

    def own(self, phases: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines (R, 1, T, D/2) of whole chunks at these phases."""
        frame = np.asarray(phases, np.float64)[:, None] * self._frames + np.arange(self._frames)
        angle = frame[:, :, None] * self._frequency_F
        return self._join(np.cos(angle), self._still[0]), self._join(np.sin(angle), self._still[1])

    def turns(self, turns_RN: npt.NDArray[np.int64], page_tokens: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (R, 1, N*P, D/2) that turn pages by whole chunks; pairs of rows and columns stay."""
        angle = np.repeat(turns_RN, page_tokens, axis=1)[:, :, None] * float(self._frames) * self._frequency_F
        padding = ((0, 0), (0, 0), (0, self.half - len(self._frequency_F)))
        cos, sin = np.pad(np.cos(angle), padding, constant_values=1.0), np.pad(np.sin(angle), padding)
        return torch.from_numpy(cos).to(self._dtype)[:, None], torch.from_numpy(sin).to(self._dtype)[:, None]

    def _join(self, moving_RfF: npt.NDArray[np.float64], still_TS: Tensor) -> Tensor:
        """Spread the pairs that turn with frames over a frame's tokens, beside those that do not."""
        rows, frames, tokens = moving_RfF.shape[0], self._frames, still_TS.shape[0]
        moving = torch.from_numpy(moving_RfF).to(self._dtype)[:, :, None].expand(-1, -1, tokens, -1)
        both = torch.cat((moving, still_TS.expand(rows, frames, -1, -1)), dim=-1)
        return both.reshape(rows, 1, frames * tokens, self.half)


def rotate_into(out: Tensor, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Write x (..., D), rotated in pairs (i, i + D/2), to `out`, which shares no memory with x; cos, sin (..., D/2)."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
    return out


def _turned(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Return x (..., D) rotated in pairs (i, i + D/2); the tables are of x's own shape, the sines of first halves
    negative. The bits of `rotate_into`, in operations over whole tensors."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    return (x * cos).addcmul_(swapped, signed_sin)


class PagedAttend:
    """One tick's attention; see the module. Index tensors are made once here and serve every layer.

    `pad_pages` widens every context to that many pages whatever the rows need, so that shapes (and with them the
    bits) do not depend on the company. `first_layer` is the model's layer that the pool's first one belongs to.
    """

    def __init__(
        self, pool: KvPool, rope: ChunkRope, rows: Sequence[RowPages], *, pad_pages: int = 0, first_layer: int = 0
    ) -> None:
        shape = pool.shape
        width = max(pad_pages, *(len(row.context) for row in rows))
        pages = np.full((len(rows), width + shape.pages_per_chunk), pool.blank_page, dtype=np.int64)
        for number, row in enumerate(rows):
            pages[number, : len(row.context)] = row.context
            pages[number, width:] = row.write or pool.scratch_pages(number)
        heads = pages[:, None, :] * shape.num_heads + np.arange(shape.num_heads)[:, None]
        self._pool, self._first_layer, self._rows = pool, first_layer, len(rows)
        self._write = torch.from_numpy(pages[:, width:].reshape(-1)).to(pool.device)
        self._read = torch.from_numpy(heads.reshape(-1)).to(pool.device)
        self._cos, self._sin = self._own_turns(rope, rows)
        self._mask = self._ragged_mask(rows, width)
        self._turned = max(row.turned for row in rows) * shape.page_tokens
        if self._turned:
            self._turn_cos, self._turn_sin = self._turns(rope, rows)

    def _own_turns(self, rope: ChunkRope, rows: Sequence[RowPages]) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines (R, T, H, D) of the rows' own tokens, laid out in full: made once, used by every
        layer."""
        cos, sin = (x.to(self._pool.device).transpose(1, 2) for x in rope.own([row.phase for row in rows]))
        heads = (-1, -1, self._pool.shape.num_heads, -1)
        cos, sin = torch.cat((cos, cos), -1).expand(heads), torch.cat((-sin, sin), -1).expand(heads)
        return cos.contiguous(), sin.contiguous()

    def _ragged_mask(self, rows: Sequence[RowPages], width: int) -> Tensor | None:
        """Additive (R, 1, 1, K): -inf on padded pages; None if there are none."""
        shape = self._pool.shape
        if all(len(row.context) == width for row in rows):
            return None
        bias = np.zeros((len(rows), width + shape.pages_per_chunk, shape.page_tokens), dtype=np.float32)
        for number, row in enumerate(rows):
            bias[number, len(row.context) : width] = -np.inf
        return torch.from_numpy(bias).to(self._pool.device, self._pool.dtype).flatten(1)[:, None, None, :]

    def _turns(self, rope: ChunkRope, rows: Sequence[RowPages]) -> tuple[Tensor, Tensor]:
        turns = np.zeros((len(rows), max(row.turned for row in rows)), dtype=np.int64)
        for number, row in enumerate(rows):
            turns[number, : row.turned] = row.turn
        cos, sin = rope.turns(turns, self._pool.shape.page_tokens)
        return cos.to(self._pool.device), sin.to(self._pool.device)

    def __call__(self, layer: int, q_RTHD: Tensor, k_RTHD: Tensor, v_RTHD: Tensor) -> Tensor:
        """See `models.interface.Attend`."""
        pool, shape, layer = self._pool, self._pool.shape, layer - self._first_layer
        q_RHTD, k_RHTD = (_turned(x, self._cos, self._sin).transpose(1, 2) for x in (q_RTHD, k_RTHD))
        split = (shape.pages_per_chunk, shape.page_tokens)
        k_NHPD, v_NHPD = (x.unflatten(2, split).transpose(1, 2).flatten(0, 1) for x in (k_RHTD, v_RTHD.transpose(1, 2)))
        pool.write(layer, self._write, k_NHPD, v_NHPD)
        flat = (self._rows, shape.num_heads, -1, shape.head_dim)
        k_RHKD, v_RHKD = (x.view(flat) for x in pool.read(layer, self._read))
        if self._turned:
            sinks = k_RHKD[:, :, : self._turned]
            rotate_into(sinks, sinks.clone(), self._turn_cos, self._turn_sin)
        return attention(q_RHTD, k_RHKD, v_RHKD, self._mask).transpose(1, 2)


def attention(q_RHTD: Tensor, k_RHKD: Tensor, v_RHKD: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention (R, H, T, D); `mask` is additive and broadcasts to (R, H, T, K).

    In bf16 on a CPU two batched products with a softmax in fp32 between them are about twice as fast as the fused
    kernel, which converts its blocks; elsewhere the fused kernel is used.
    """
    if q_RHTD.dtype is not torch.bfloat16 or q_RHTD.device.type != "cpu":
        return F.scaled_dot_product_attention(q_RHTD, k_RHKD, v_RHKD, attn_mask=mask)
    scores = (q_RHTD * (1.0 / math.sqrt(q_RHTD.shape[-1]))) @ k_RHKD.transpose(-1, -2)
    if mask is not None:
        scores += mask
    return torch.softmax(scores, dim=-1, dtype=torch.float32).to(torch.bfloat16) @ v_RHKD
