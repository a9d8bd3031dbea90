"""Training the transformer: layouts are those of the rules, runs resume, and a team does what one process does."""

import pytest
import torch

from physis_stream.models.attention import Groups
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training.latents import LatentSet
from physis_stream.training.layouts import (
    LAYOUTS,
    draw_levels,
    is_clean,
    layout_rule,
    mislead,
    noised,
    with_own_context,
)
from physis_stream.training.pusht import RECIPE
from physis_stream.training.team import Team
from physis_stream.training.train_state import StateTrainer
from physis_stream.training.train_world import WorldTrainer, pack
from physis_stream.training.trainer import is_state
from physis_stream.training.world_config import WorldTraining

SMALL = WorldTraining(
    width=64, num_layers=2, num_heads=2, frames=8, window=4, steps=6, batch=6, micro_batch=2,
    shares=(1, 1, 1, 1), late_from=1.0,
)  # fmt: skip


def trainer(out, config=SMALL, kind=WorldTrainer):
    random = torch.Generator().manual_seed(0)
    count = 160
    data = LatentSet(
        torch.rand(count, 2, generator=random) * 512,
        torch.randn(count, 6, generator=random),
        torch.arange(count) // 16 * 16,
        torch.randn(count, 4, 12, 12, generator=random).half(),
    )
    torch.manual_seed(1)
    return kind(RECIPE, data, TinyReadout(6, (4,), 4, 12, 12, 8, 16), config, out, compiled=False)


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


@pytest.mark.parametrize("kind", [StateTrainer, WorldTrainer])
def test_the_loss_falls(kind, tmp_path):
    one = trainer(tmp_path, WorldTraining(**{**_fields(SMALL), "steps": 80, "shares": (1, 0, 0, 0)}), kind)
    losses = [one.train_step()["clean_error"] for _ in range(80)]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])


def _fields(config):
    from dataclasses import asdict

    return asdict(config)


@pytest.mark.parametrize("kind", [StateTrainer, WorldTrainer])
def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(kind, tmp_path):
    whole = trainer(tmp_path / "a", kind=kind)
    whole.train(lambda step, losses: None)
    first = trainer(tmp_path / "b", kind=kind)
    for _ in range(3):
        first.train_step()
    first.save()
    second = trainer(tmp_path / "b", kind=kind)
    assert second.step == 3
    second.train(lambda step, losses: None)
    assert torch.equal(parameters(whole), parameters(second))
    assert all(torch.equal(whole.average.values[k], second.average.values[k]) for k in whole.average.values)


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", ["clean", "cascade"])
def test_own_context_replaces_clean_rows_of_targets_and_nothing_else(name, passes, tmp_path):
    one = trainer(tmp_path)
    groups, rule, attend = one.packed[name]
    noise = torch.Generator().manual_seed(0)
    x0, action, _ = pack(groups, one.draw(0, 2, fresh_start=False), one.readout)
    level, rows = draw_levels(name, SMALL, groups, 2, noise).flatten(), is_clean(name, SMALL, groups)
    x_t = noised(x0, torch.randn(x0.shape, generator=noise), level, rows.repeat(2))
    changed = with_own_context(x_t, level, action, one.denoise, groups, rule, attend, noise, 2, passes)
    differs = (x_t != changed).flatten(1).any(1).unflatten(0, (2, -1)).all(0)
    assert torch.equal(differs, rows & (torch.tensor(groups.frames) >= 2))


def test_wrong_pictures_leave_the_state_targets_and_opening_frames_alone():
    groups = Groups.of(layout_rule("clean", SMALL), SMALL.frames)
    frames, clean = torch.tensor(groups.frames), is_clean("clean", SMALL, groups)
    x_t = torch.randn(40 * len(groups.frames), 5, 6, 6, generator=torch.Generator().manual_seed(0))
    wrong = mislead(x_t, clean & (frames > 0), torch.Generator().manual_seed(1), 0.5)
    changed = (x_t != wrong).unflatten(0, (40, -1))
    assert not changed[:, :, -1].any()
    assert not changed[:, ~clean | (frames == 0)].any()
    lied_to = changed.flatten(2).any(2)[:, clean & (frames > 0)]
    assert torch.equal(lied_to.all(1), lied_to.any(1))
    assert 10 <= int(lied_to.any(1).sum()) <= 30
    assert torch.equal(mislead(x_t, clean, torch.Generator(), 0.0), x_t)


def test_clean_rows_are_noised_on_top_and_targets_mixed():
    x0, noise = torch.full((2, 3), 2.0), torch.ones(2, 3)
    found = noised(x0, noise, torch.tensor([0.25, 0.25]), torch.tensor([True, False]))
    assert found.tolist() == [[2.25] * 3, [1.75] * 3]


def test_each_stage_moves_its_part_and_the_second_takes_over_the_first(tmp_path):
    state = trainer(tmp_path, kind=StateTrainer)
    before = {name: p.clone() for name, p in state.transformer.named_parameters()}
    state.train(lambda step, losses: None)
    assert all(is_state(name) for name, p in state.transformer.named_parameters() if not torch.equal(before[name], p))
    picture = trainer(tmp_path)
    picture.train_step()
    for name, parameter in picture.transformer.named_parameters():
        if is_state(name):
            assert torch.equal(parameter, state.average.values[name])


@pytest.mark.parametrize("kind", [StateTrainer, WorldTrainer])
def test_training_on_own_context_runs(kind, tmp_path):
    one = trainer(tmp_path, WorldTraining(**{**_fields(SMALL), "own_context": 1.0, "own_passes": 2}), kind)
    losses = [one.train_step() for _ in range(6)]
    assert all(value < 100 for step in losses for value in step.values())


def test_a_checkpoint_is_never_half_written(tmp_path):
    one = trainer(tmp_path)
    one.save()
    assert [path.name for path in tmp_path.iterdir()] == ["world.pt"]


@pytest.mark.parametrize("kind", [StateTrainer, WorldTrainer])
def test_a_team_of_two_takes_the_steps_that_one_takes(kind, tmp_path):
    one, shared = trainer(tmp_path / "a", kind=kind), trainer(tmp_path / "b", kind=kind)
    team = Team(shared, 2)
    try:
        for _ in range(3):
            mine, ours = one.train_step(), team.step()
            assert ours == pytest.approx(mine, rel=1e-3)
    finally:
        team.close()
    assert (parameters(one) - parameters(shared)).abs().max() < 1e-3
