"""Training the transformer: layouts are those of the rules, runs resume, and a team does what one process does."""

import pytest
import torch

from physis_stream.models.attention import Groups
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training.latents import LatentSet
from physis_stream.training.pusht import RECIPE
from physis_stream.training.team import Team
from physis_stream.training.train_world import (
    LAYOUTS,
    WorldTrainer,
    WorldTraining,
    draw_levels,
    layout_rule,
    pack,
    with_own_context,
)

SMALL = WorldTraining(
    width=64, num_layers=2, num_heads=2, frames=8, window=4, steps=6, batch=6, micro_batch=2,
    shares=(1, 1, 1, 1), late_from=1.0,
)  # fmt: skip


def trainer(out, config=SMALL):
    random = torch.Generator().manual_seed(0)
    count = 160
    data = LatentSet(
        torch.randn(count, 4, 12, 12, generator=random).half(),
        torch.rand(count, 2, generator=random) * 512,
        torch.randn(count, 6, generator=random),
        torch.arange(count) // 16 * 16,
    )
    torch.manual_seed(1)
    return WorldTrainer(RECIPE, data, TinyReadout(6, (4,), 4, 12, 12, 8, 16), config, out, compiled=False)


def parameters(one):
    return torch.cat([p.detach().flatten() for p in one.loss.parameters()])


@pytest.mark.parametrize("name", LAYOUTS)
def test_levels_follow_the_layout(name):
    groups = Groups.of(layout_rule(name, SMALL), SMALL.frames, 1)
    levels = draw_levels(name, SMALL, groups, 64, torch.Generator().manual_seed(0))
    versions, frames = torch.tensor(groups.versions), torch.tensor(groups.frames)
    assert levels.shape == (64, len(versions))
    assert levels[:, frames == 0].max() <= SMALL.context_noise
    if name == "same_step":
        targets = levels[:, frames > 0]
        assert torch.equal(targets, targets[:, :1].expand_as(targets))
    if name in ("cascade", "open"):
        assert (levels[:, (versions == 0) & (frames > 0)] == 1.0).all()
    if name in ("clean", "cascade"):
        clean = versions == (1 if name == "clean" else 3)
        assert levels[:, clean].max() <= SMALL.context_noise


def test_the_loss_falls(tmp_path):
    one = trainer(tmp_path, WorldTraining(**{**_fields(SMALL), "steps": 80, "shares": (1, 0, 0, 0)}))
    losses = [one.train_step()["clean_error"] for _ in range(80)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def _fields(config):
    from dataclasses import asdict

    return asdict(config)


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path):
    whole = trainer(tmp_path / "a")
    whole.train(lambda step, losses: None)
    first = trainer(tmp_path / "b")
    for _ in range(3):
        first.train_step()
    first.save()
    second = trainer(tmp_path / "b")
    assert second.step == 3
    second.train(lambda step, losses: None)
    assert torch.equal(parameters(whole), parameters(second))
    assert all(torch.equal(whole.average.values[k], second.average.values[k]) for k in whole.average.values)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", ["clean", "cascade"])
def test_own_context_replaces_clean_rows_of_targets_and_nothing_else(name, passes, tmp_path):
    one = trainer(tmp_path)
    groups, attend = one.packed[name]
    noise = torch.Generator().manual_seed(0)
    batch = one.draw(0, 2, fresh_start=False)
    packed = pack(name, groups, batch, one.readout, SMALL, noise, 2)
    rule = layout_rule(name, SMALL)
    changed = with_own_context(packed, one.transformer, groups, rule, attend, noise, 2, passes)
    differs = (packed[0] != changed[0]).flatten(1).any(1).unflatten(0, (2, -1)).all(0)
    clean = (torch.tensor(groups.versions) == rule.num_steps) & (torch.tensor(groups.frames) >= 2)
    assert torch.equal(differs, clean)
    assert all(torch.equal(a, b) for a, b in zip(packed[1:], changed[1:], strict=True))


def test_training_on_own_context_runs(tmp_path):
    one = trainer(tmp_path, WorldTraining(**{**_fields(SMALL), "own_context": 1.0, "own_passes": 2}))
    losses = [one.train_step() for _ in range(6)]
    assert all(value < 100 for step in losses for value in step.values())


def test_a_checkpoint_is_never_half_written(tmp_path):
    one = trainer(tmp_path)
    one.save()
    assert [path.name for path in tmp_path.iterdir()] == ["world.pt"]


def test_a_team_of_two_takes_the_steps_that_one_takes(tmp_path):
    one, shared = trainer(tmp_path / "a"), trainer(tmp_path / "b")
    team = Team(shared, 2)
    try:
        for _ in range(3):
            mine, ours = one.train_step(), team.step()
            assert ours == pytest.approx(mine, rel=1e-3)
    finally:
        team.close()
    assert (parameters(one) - parameters(shared)).abs().max() < 1e-3
