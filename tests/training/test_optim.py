"""The optimiser's parts as tables of numbers."""

import pytest
import torch
from torch import nn

from physis_stream.training.optim import Average, MuonAdam, orthogonalise, parameter_groups, rate


@pytest.mark.parametrize("shape", [(8, 8), (8, 32), (32, 8)])
def test_orthogonalised_matrices_have_singular_values_near_one(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(matrix, iterations=8).float())
    assert ((values > 0.5) & (values < 1.4)).all()


@pytest.mark.parametrize(("step", "factor"), [(0, 0.1), (9, 1.0), (50, 1.0), (69, 1.0), (85, 0.5), (100, 0.0)])
def test_the_rate_rises_holds_and_falls(step, factor):
    assert rate(step, 100, warmup=10, decay_share=0.3) == pytest.approx(factor)


def test_both_kinds_of_parameters_find_a_minimum():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    groups = parameter_groups(model.named_parameters(), lambda name, p: p.ndim == 2 and name.startswith("2"))
    optimizer = MuonAdam(groups, 0.01)
    x = torch.randn(64, 4)
    y = (x[:, :1] * x[:, 1:2]).tanh()
    losses = []
    for _ in range(200):
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]


def test_the_average_follows_and_can_be_limited():
    layer = nn.Linear(2, 2)
    average = Average(layer, 10)
    with torch.no_grad():
        layer.weight.fill_(3.0)
        layer.bias.fill_(3.0)
    for _ in range(200):
        average.update(layer, {"weight"})
    assert torch.allclose(average.values["weight"], layer.weight, atol=1e-3)
    assert not torch.allclose(average.values["bias"], layer.bias, atol=1e-3)
