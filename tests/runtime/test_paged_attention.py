"""Pages, phases and turns: what the paged attention reads, against attention written out by hand."""

from __future__ import annotations

import pytest
import torch

from physis_stream.models.kv_pool import KvPool, KvShape
from physis_stream.models.paged_attention import ChunkRope, PagedAttend, RowPages, attention
from physis_stream.models.rope import rope_table, rotate

H, D, T, PAGES = 2, 12, 4, 40


def pool(page_tokens: int = T, dtype: torch.dtype = torch.float32, layers: int = 1) -> KvPool:
    return KvPool(KvShape(layers, H, D, page_tokens, T), PAGES, dtype, max_rows=4)


def qkv(rows: int, seed: int) -> list[torch.Tensor]:
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, T, H, D, generator=source) for _ in range(3)]


def write_chunks(memory: KvPool, pages: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Chunk c, at phase c, to pages[c]; returns the un-roped keys and values."""
    rope, chunks = ChunkRope(1, 2, 2, D, memory.dtype), []
    for chunk, own in enumerate(pages):
        q, k, v = qkv(1, seed=100 + chunk)
        PagedAttend(memory, rope, [RowPages([], own, phase=chunk)])(0, q, k, v)
        chunks.append((k[0], v[0]))
    return chunks


def by_hand(q, k, v, context) -> torch.Tensor:
    """One row over its context and itself, at positions 0..n of a plain table."""
    table = rope_table(len(context) + 1, 2, 2, D)
    chunks = [*context, (k, v)]
    turn = [lambda x, p=p: rotate(x, table.cos_FTD[p][:, None], table.sin_FTD[p][:, None]) for p in range(len(chunks))]
    keys = torch.cat([turn[p](key) for p, (key, _) in enumerate(chunks)])
    values = torch.cat([value for _, value in chunks])
    scores = torch.einsum("thd,khd->htk", turn[-1](q), keys) / D**0.5
    return torch.einsum("htk,khd->thd", scores.softmax(-1), values)


@pytest.mark.parametrize("page_tokens", [4, 2, 1])
def test_rows_of_different_context_share_a_batch(page_tokens):
    memory, per = pool(page_tokens), T // page_tokens
    pages = [list(range(30 - per * (c + 1), 30 - per * c)) for c in range(5)]
    chunks = write_chunks(memory, pages)
    views = [range(2, 5), range(5), range(0)]
    phases = [5, 5, 0]
    rows = [
        RowPages([page for c in view for page in pages[c]], [], phase=phase)
        for view, phase in zip(views, phases, strict=True)
    ]
    q, k, v = qkv(3, seed=1)
    found = PagedAttend(memory, ChunkRope(1, 2, 2, D, torch.float32), rows)(0, q, k, v)
    for row, view in enumerate(views):
        wanted = by_hand(q[row], k[row], v[row], [chunks[c] for c in view])
        torch.testing.assert_close(found[row], wanted, rtol=1e-5, atol=1e-6)
    memory.check_integrity()


def test_a_sink_keeps_its_distance_to_the_window_for_ever():
    """Chunk 0 in view of chunk 1,000,003: turned by what has left, so that it stands right before the window."""
    memory, far = pool(), 1_000_003
    chunks = write_chunks(memory, [[0]])
    rope = ChunkRope(1, 2, 2, D, torch.float32)
    q, k, v = qkv(1, seed=7)
    PagedAttend(memory, rope, [RowPages([], [1], phase=far - 1)])(0, q, k, v)
    neighbour = (k[0], v[0])
    q, k, v = qkv(1, seed=8)
    row = RowPages([0, 1], [], phase=far, turned=1, turn=far - 2)
    found = PagedAttend(memory, rope, [row])(0, q, k, v)
    wanted = by_hand(q[0], k[0], v[0], [chunks[0], neighbour])
    torch.testing.assert_close(found[0], wanted, rtol=1e-5, atol=1e-6)


def test_positions_beyond_any_table_cost_no_precision():
    """VO#6838, FD#318: a rollout of a million chunks attends as one of three does."""
    rope, outputs = ChunkRope(1, 2, 2, D, torch.float32), []
    for start in (0, 1_000_000):
        memory = pool()
        for offset, seed in enumerate((1, 2)):
            q, k, v = qkv(1, seed)
            PagedAttend(memory, rope, [RowPages([], [offset], phase=start + offset)])(0, q, k, v)
        q, k, v = qkv(1, 3)
        outputs.append(PagedAttend(memory, rope, [RowPages([0, 1], [], phase=start + 2)])(0, q, k, v))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-5, atol=1e-6)


def test_padding_to_a_fixed_width_does_not_show():
    memory = pool()
    write_chunks(memory, [[0], [1]])
    q, k, v = qkv(1, seed=2)
    rope = ChunkRope(1, 2, 2, D, torch.float32)
    plain, padded = (
        PagedAttend(memory, rope, [RowPages([0, 1], [], phase=2)], pad_pages=pad)(0, q, k, v) for pad in (0, 9)
    )
    torch.testing.assert_close(plain, padded, rtol=1e-6, atol=1e-6)


def test_a_page_that_held_nonsense_is_safe_to_write_and_then_read():
    memory = pool()
    memory.write(0, torch.tensor([0]), torch.full((1, H, T, D), torch.nan), torch.full((1, H, T, D), torch.nan))
    chunks = write_chunks(memory, [[0]])
    q, k, v = qkv(1, seed=2)
    rope = ChunkRope(1, 2, 2, D, torch.float32)
    found = PagedAttend(memory, rope, [RowPages([0], [], phase=1)], pad_pages=3)(0, q, k, v)
    torch.testing.assert_close(found[0], by_hand(q[0], k[0], v[0], chunks), rtol=1e-5, atol=1e-6)


def test_bf16_products_agree_with_the_fused_kernel():
    source = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, H, count, 32, generator=source) for count in (T, 24, 24))
    mask = torch.zeros(3, 1, 1, 24)
    mask[1, ..., 8:16] = -torch.inf
    exact = attention(q, k, v, mask)
    rough = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), mask.bfloat16())
    torch.testing.assert_close(rough.float(), exact, rtol=0.05, atol=0.02)


def test_a_page_size_that_does_not_divide_the_chunk_is_refused_naming_both():
    """VO#6475."""
    with pytest.raises(ValueError, match=r"1560 tokens .* pages of 16 tokens"):
        KvShape(1, 1, 8, 16, 1560)


def test_a_batch_wider_than_the_pool_was_made_for_is_refused():
    memory = pool()
    with pytest.raises(ValueError, match="row 4"):
        PagedAttend(memory, ChunkRope(1, 2, 2, D, torch.float32), [RowPages() for _ in range(5)])


def test_page_bytes_are_what_the_tensors_take():
    shape = KvShape(3, H, D, T, T)
    assert shape.page_bytes(torch.float32) == 3 * 2 * H * T * D * 4
    assert shape.page_bytes(torch.bfloat16) == 3 * 2 * H * T * D * 2
