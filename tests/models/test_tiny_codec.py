"""The causal codec: chunked decoding is whole decoding, rows are strangers to each other, state belongs to the
caller."""

import pytest
import torch

from physis_stream.models.tiny.codec import TinyCausalCodec


@pytest.fixture(scope="module")
def codec():
    torch.manual_seed(3)
    return TinyCausalCodec(96, 96, 4, 16, 32).requires_grad_(False).eval()


def clip(batch, frames):
    return torch.randn(batch, frames, 4, 12, 12, generator=torch.Generator().manual_seed(batch * 100 + frames))


@pytest.mark.parametrize("chunks", [[1] * 20, [5, 1, 2, 12], [19, 1]])
def test_decoding_in_chunks_is_decoding_the_whole_clip(codec, chunks):
    latents = clip(2, 20)
    whole, _ = codec.decode(latents, codec.initial_state(2))
    state, parts = codec.initial_state(2), []
    for part in latents.split(chunks, dim=1):
        frames, state = codec.decode(part, state)
        parts.append(frames)
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=0)


def test_the_future_does_not_change_the_past(codec):
    latents = clip(1, 6)
    other = latents.clone()
    other[:, 4:] = 0
    one, _ = codec.decode(latents, codec.initial_state(1))
    two, _ = codec.decode(other, codec.initial_state(1))
    torch.testing.assert_close(one[:, :4], two[:, :4], atol=1e-5, rtol=0)


def test_rows_do_not_know_each_other(codec):
    latents = clip(3, 4)
    together, _ = codec.decode(latents, codec.initial_state(3))
    alone, _ = codec.decode(latents[1:2], codec.initial_state(1))
    torch.testing.assert_close(together[1:2], alone, atol=1e-5, rtol=0)


def test_the_given_state_is_left_alone_and_keeps_its_size(codec):
    state = codec.initial_state(2)
    before = state.clone()
    _, after = codec.decode(clip(2, 3), state)
    assert torch.equal(state, before)
    assert after.shape == state.shape


def test_shapes_and_types(codec):
    latents = codec.encode(torch.zeros(2, 3, 3, 96, 96))
    assert latents.shape == (2, 3, 4, 12, 12)
    frames, _ = codec.decode(latents, codec.initial_state(2))
    assert frames.shape == (2, 3, 3, 96, 96)
    assert frames.dtype == torch.float32


def test_bf16_decodes_nearly_the_same(codec):
    half = TinyCausalCodec(96, 96, 4, 16, 32)
    half.load_state_dict(codec.state_dict())
    for tensor in (*half.parameters(), *half.buffers()):
        tensor.data = tensor.data.bfloat16()
    latents = clip(1, 4)
    fine, _ = codec.decode(latents, codec.initial_state(1))
    with torch.inference_mode():
        coarse, _ = half.decode(latents, half.initial_state(1))
    torch.testing.assert_close(coarse, fine, atol=0.03, rtol=0)


def test_a_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="multiples of 8"):
        TinyCausalCodec(100, 96)
