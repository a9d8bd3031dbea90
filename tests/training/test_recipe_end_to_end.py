"""The recipe runs on an environment it has never seen, resumes, and leaves a world that can be served."""

import argparse
import json

import pytest
import torch

from physis_stream.training import cli
from physis_stream.training.evaluate import sampling_of
from physis_stream.training.rollout import Rollout
from physis_stream.worlds import load_world


def arguments(*argv):
    parser = argparse.ArgumentParser()
    cli.configure(parser)
    return parser.parse_args(argv)


@pytest.mark.slow
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_any_environment_becomes_a_world_and_a_second_run_goes_on(env_id, tmp_path, capsys):
    base = ("--env", env_id, "--out", str(tmp_path), "--size", "48", "--quick", "--threads", "2")
    assert cli.run(arguments(*base, "--world-steps", "20")) == 0
    first = json.loads((tmp_path / "world" / "evaluation.json").read_text())
    frames = (tmp_path / "data" / "shard_00" / "frames.npy").stat().st_mtime_ns
    assert cli.run(arguments(*base, "--world-steps", "40")) == 0
    assert (tmp_path / "data" / "shard_00" / "frames.npy").stat().st_mtime_ns == frames
    assert set(first["psnr"]) == {"1", "10", "30"}
    world = load_world(tmp_path / "world")
    assert world.profile.name == env_id.lower()
    rollout = Rollout(world.transformer, sampling_of(world))
    rollout.prime(world.starts.latents[:2], torch.tensor(world.profile.action.default).expand(2, -1))
    for _ in range(10):
        latents = rollout.step(world.starts.actions[:2])
    assert torch.isfinite(latents).all()
    assert "serve it with" in capsys.readouterr().out


def test_the_arguments_have_the_plans_defaults():
    args = arguments("--env", "CartPole-v1", "--out", "runs/x")
    assert (args.size, args.seed, args.quick) == (96, 0, False)
    assert args.frames is None


def test_an_environment_that_does_not_exist_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match="no environment"):
        cli.run(arguments("--env", "Nowhere-v0", "--out", str(tmp_path / "x"), "--quick"))
    assert not (tmp_path / "x").exists()
