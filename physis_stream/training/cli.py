"""`physis-stream train`: from a Gymnasium environment to a world folder that can be served, in stages that resume.

    OUT/data/shard_*      frames, actions, states          skipped once complete
    OUT/plays/            more actions and states          skipped once complete; if there is a state to learn
    OUT/codec.pt          codec and readout in training    resumed
    OUT/latents/          the data set through the codec   skipped once complete
    OUT/readout.pt        the readout, fitted to latents   skipped once there
    OUT/state.pt          the state's part of the transformer in training      resumed
    OUT/world.pt          the picture's part in training   resumed
    OUT/world/            the result: profile, weights, starts, evaluation.json

Stopping at any point and running the same command again goes on from the last checkpoint.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE_STAGE: dict[str, Any] = {
    "batch": 512, "micro_batch": 256, "own_context": 0.4, "own_passes": 6, "late_shares": (0.6, 0.4, 0.0, 0.0),
    "first_share": 0.9, "decay_share": 0.6, "average_steps": 200,
}  # fmt: skip
WORLD_STAGE: dict[str, Any] = {
    "batch": 48, "micro_batch": 8, "own_context": 0.1, "own_passes": 2, "distrust": 0.7, "first_share": 0.05,
    "shares": (0.2, 0.0, 0.0, 0.0, 0.8), "late_shares": (0.65, 0.15, 0.0, 0.0, 0.2), "decay_share": 0.6,
}  # fmt: skip
STATE_LEVELS = (1.0, 0.5, 0.4)
PICTURE_STAGE: dict[str, Any] = {
    "batch": 24, "micro_batch": 4, "own_context": 0.4, "own_passes": 2, "decay_share": 0.6,
}  # fmt: skip
PICTURE_LEVELS = (1.0, 0.95, 0.9)
"""For pictures whose state is the reward alone: there is nothing to follow, so the picture carries itself."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each stage is. `quick` is a proof that the recipe runs end to end, not a usable world."""

    frames: int = 256_000
    plays: int = 1_280_000
    codec_steps: int = 3_000
    readout_steps: int = 4_000
    state_steps: int = 6_000
    world_steps: int = 6_000
    width: int = 256
    num_layers: int = 6


QUICK = Plan(
    frames=2_000,
    plays=4_000,
    codec_steps=120,
    readout_steps=200,
    state_steps=20,
    world_steps=60,
    width=128,
    num_layers=3,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `physis-stream train`."""
    parser.add_argument(
        "--env", required=True, help="a Gymnasium id with rgb_array rendering, or a shipped world's name"
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="DIR", help="where everything goes; resumes from there"
    )
    parser.add_argument("--size", type=int, default=96, help="picture size, a multiple of 24 (default: 96)")
    parser.add_argument("--quick", action="store_true", help="a few minutes: proves the recipe, makes no usable world")
    parser.add_argument("--seed", type=int, default=0, help="of data, weights and batches (default: 0)")
    parser.add_argument("--threads", type=int, default=0, help="torch threads (default: all cores)")
    for field in dataclasses.fields(Plan):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=int, default=None, help=f"default: {field.default}")


def run(args: argparse.Namespace) -> int:
    """Run all stages. Raises ValueError for a wrong environment or size."""
    import torch

    from physis_stream.training.recipes import recipe_for

    torch.set_num_threads(args.threads or os.cpu_count() or 1)
    chosen = {field.name: getattr(args, field.name) for field in dataclasses.fields(Plan)}
    base = QUICK if args.quick else Plan()
    plan = dataclasses.replace(base, **{name: value for name, value in chosen.items() if value is not None})
    recipe = recipe_for(args.env, size=args.size)
    folder = train(args.env, recipe, plan, args.out, args.seed)
    print(f"wrote {folder}; serve it with: physis-stream serve --model {folder}")
    return 0


def _progress(name: str, total: int) -> Callable[[int, dict[str, float]], None]:
    from tqdm import tqdm

    bar = tqdm(total=total, desc=name, mininterval=1.0)
    smooth: dict[str, float] = {}

    def report(step: int, losses: dict[str, float]) -> None:
        for key, value in losses.items():
            smooth[key] = 0.95 * smooth.get(key, value) + 0.05 * value
        bar.update(step + 1 - bar.n)
        bar.set_postfix({key: f"{value:.4f}" for key, value in smooth.items()}, refresh=False)
        if step + 1 >= total:
            bar.close()

    return report


def _play(recipe, plan: Plan, out: Path, seed: int) -> None:  # type: ignore[no-untyped-def]
    """Play what is not there yet: episodes with pictures, and more without for a world that has a state to learn."""
    from physis_stream.training.collect import collect

    def play(name: str, count: int, seed: int, *, pictures: bool) -> None:
        if (out / name / "starts.npy").exists():
            return
        partial = out / "partial"
        collect(recipe, partial, count, seed, _progress(name.partition("/")[0], count), pictures=pictures)
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        partial.rename(out / name)

    play("data/shard_00", plan.frames, seed + 1, pictures=True)
    if len(recipe.state.names) > 1:
        play("plays", plan.plays, seed + 101, pictures=False)


def train(env: str, recipe, plan: Plan, out: Path, seed: int) -> Path:  # type: ignore[no-untyped-def]
    """Run the stages that are not done yet and return the world's folder."""
    import torch

    from physis_stream.models.tiny.model import TinyWorldTransformer
    from physis_stream.models.tiny.weights import save_folder
    from physis_stream.training import checkpoint
    from physis_stream.training.collect import open_shards
    from physis_stream.training.export import make_profile, make_world
    from physis_stream.training.latents import load_latents
    from physis_stream.training.train_codec import CodecTraining, finish_codec, train_codec
    from physis_stream.training.train_readout import ReadoutTraining, train_readout
    from physis_stream.training.world_config import WorldTraining
    from physis_stream.training.world_stage import run_stage

    _play(recipe, plan, out, seed)
    shards = open_shards(out / "data")
    codec_config = CodecTraining(steps=plan.codec_steps, seed=seed)
    codec, readout = train_codec(recipe, codec_config, shards, out, _progress("codec", plan.codec_steps))
    finish_codec(codec, shards)
    data = load_latents(codec, shards, out / "latents")
    if (saved := checkpoint.load(out / "readout.pt")) is not None:
        readout.load_state_dict(saved["readout"])
    else:
        config = ReadoutTraining(steps=plan.readout_steps, seed=seed)
        train_readout(readout, data, config, _progress("readout", plan.readout_steps))
        checkpoint.save(out / "readout.pt", {"readout": readout.state_dict()})
    follows = readout.num_targets > 1
    size = WorldTraining(
        width=plan.width, num_layers=plan.num_layers, num_heads=plan.width // 64, seed=seed,
        levels=STATE_LEVELS if follows else PICTURE_LEVELS, clean_below=0.36 if follows else 1.0,
    )  # fmt: skip
    stages = {
        "state": dataclasses.replace(size, steps=plan.state_steps, **STATE_STAGE),
        "world": dataclasses.replace(size, steps=plan.world_steps, **(WORLD_STAGE if follows else PICTURE_STAGE)),
    }
    codec.save_pretrained(out / "codec")
    readout.save_pretrained(out / "readout")
    for stage, training in stages.items():
        progress = functools.partial(_progress, stage, training.steps)
        run_stage(stage, env, recipe.size, out, training, torch.get_num_threads(), progress)
    transformer = TinyWorldTransformer.from_pretrained(out / "transformer")
    profile = make_profile(recipe, transformer, size.levels, size.window)
    world = make_world(recipe, transformer, codec, readout, profile, num_starts=64)
    save_folder(world, out / "world")
    scores = _evaluate(recipe, world)
    (out / "world" / "evaluation.json").write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(scores, indent=2))
    return out / "world"


def _evaluate(recipe, world) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Score a short set of held-out rollouts by their pictures, which every environment has."""
    from physis_stream.training.evaluate import dream, picture_scores, sampling_of
    from physis_stream.training.heldout import play_heldout

    truth = play_heldout(recipe, 8, 30)
    frames, _ = dream(world, sampling_of(world), truth.frames[:, 0], truth.actions)
    return picture_scores(frames, truth)
