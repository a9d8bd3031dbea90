"""The transformer: parts make the whole, rows are strangers, precision is a choice."""

import pytest
import torch
import torch.nn.functional as F

from physis_stream.models.noise_schedule import add_noise, estimate, implied_noise
from physis_stream.models.tiny.state_plane import SCALE, gather, noise_share, precondition, spread
from physis_stream.models.tiny.weights import tiny_random


def alone(layer, q, k, v):
    """Each row attends to itself only."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def rows(count, seed=0):
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, 12, 12, generator=random)
    return x, torch.rand(count, generator=random), torch.rand(count, 2, generator=random) * 512


MODEL = tiny_random(num_layers=3).transformer


def test_embed_blocks_and_head_in_turn_are_the_forward():
    x, t, action = rows(5)
    tokens, modulation = MODEL.embed(x, t, action)
    for block in MODEL.blocks[:1]:
        tokens = block(tokens, modulation, alone)
    for block in MODEL.blocks[1:]:
        tokens = block(tokens, modulation, alone)
    assert torch.equal(MODEL.head(tokens, modulation), MODEL(x, t, action, alone))


def test_a_row_is_the_same_alone_and_in_company():
    x, t, action = rows(7)
    together = MODEL(x, t, action, alone)
    single = MODEL(x[3:4], t[3:4], action[3:4], alone)
    torch.testing.assert_close(together[3:4], single, atol=1e-5, rtol=1e-4)


def test_modulation_can_be_cut_along_rows():
    x, t, action = rows(4)
    tokens, modulation = MODEL.embed(x, t, action)
    part = type(modulation)(*(field[1:3] for field in modulation))
    whole = MODEL.blocks[0](tokens, modulation, alone)
    torch.testing.assert_close(MODEL.blocks[0](tokens[1:3], part, alone), whole[1:3], atol=1e-5, rtol=1e-4)


def test_attention_is_asked_once_a_layer_in_order_with_the_promised_shapes():
    seen = []

    def watch(layer, q, k, v):
        seen.append((layer, q.shape, k.shape, v.shape))
        return alone(layer, q, k, v)

    MODEL(*rows(2), watch)
    shape = torch.Size((2, 17, 2, 32))
    assert seen == [(layer, shape, shape, shape) for layer in range(3)]


def test_level_and_action_matter_and_a_clean_row_is_finite():
    x, t, action = rows(1)
    base = MODEL(x, t, action, alone)
    assert not torch.allclose(base, MODEL(x, t, action + 100, alone))
    assert torch.isfinite(MODEL(x, torch.zeros(1), action, alone)).all()


def test_bf16_is_near_fp32():
    half = tiny_random(num_layers=3, dtype=torch.bfloat16).transformer
    x, t, action = rows(4)
    t = t.clamp_min(0.3)
    fine, coarse = MODEL(x, t, action, alone), half(x, t, action, alone)
    assert coarse.dtype == torch.float32
    difference = (estimate(x, fine, t) - estimate(x, coarse, t)).abs()
    assert difference[:, :-1].max() < 0.05
    assert difference[:, -1].max() < 0.02 * SCALE


def test_noising_and_estimating_undo_each_other():
    x0, t, _ = rows(3)
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(1))
    x_t = add_noise(x0, noise, t)
    torch.testing.assert_close(estimate(x_t, noise - x0, t), x0, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(implied_noise(x_t, noise - x0, t), noise, atol=1e-5, rtol=1e-5)


def test_the_state_moves_by_itself_whatever_the_picture_shows():
    x, t, action = rows(5)
    tokens, modulation = MODEL.embed(x, t, action)
    alone_token = MODEL.embed_state(gather(x[:, -1], MODEL.state_values), t, action)
    for block in MODEL.blocks:
        tokens = block(tokens, modulation, alone)
        alone_token = block.state(block.index, alone_token, alone)
    torch.testing.assert_close(tokens[:, -1:], alone_token, atol=1e-5, rtol=1e-5)


def test_the_picture_sees_the_state_and_its_error_stops_there():
    x, t, action = rows(3)
    other = x.clone()
    other[:, -1] += 5.0
    model = tiny_random(num_layers=2).transformer.requires_grad_(True)
    assert not torch.allclose(model(x, t, action, alone)[:, :-1], model(other, t, action, alone)[:, :-1])
    model(x, t, action, alone)[:, :-1].square().sum().backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert "blocks.0.qkv.weight" in moved
    assert not any("state_" in name or ".state." in name for name in moved)


@pytest.mark.parametrize("shape", [(12, 12, 7), (6, 6, 5), (3, 3, 9)])
def test_a_plane_keeps_its_values_and_noise_on_it_averages_out(shape):
    height, width, count = shape
    random = torch.Generator().manual_seed(0)
    values = torch.randn(4000, count, generator=random)
    plane = spread(values, height, width)
    assert plane.shape == (4000, 1, height, width)
    torch.testing.assert_close(gather(plane[:, 0], count), values, atol=1e-5, rtol=1e-5)
    noisy = gather((plane + torch.randn(plane.shape, generator=random))[:, 0], count)
    assert (noisy - values).std() == pytest.approx(noise_share(height, width, count), rel=0.05)


def test_a_known_value_passes_through_a_state_head_and_an_unknown_one_is_the_networks():
    truth, found = torch.randn(2000, 3), torch.randn(2000, 3)
    for level, allowed in ((1.0, None), (0.5, 0.011), (0.1, 0.0012)):
        t = torch.full((2000, 1), level)
        noisy = (1 - t) * truth + t * 0.01 * torch.randn(2000, 3)
        kept = precondition(noisy, torch.zeros(2000, 3), t, 0.01)
        if allowed is None:
            assert torch.allclose(precondition(noisy, found, t, 0.01), found)
        else:
            assert (kept - truth).std() < allowed
