"""The transformer's two stages of `physis-stream train`, state and picture, each in a process of its own.

A team of one process per core is forked, and a process in which torch has used threads should not fork: so a stage
starts from a fresh interpreter and takes everything from files.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path

import torch

from physis_stream.models.tiny.codec import TinyCausalCodec
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training.collect import open_shards
from physis_stream.training.latents import load_latents
from physis_stream.training.recipes import recipe_for
from physis_stream.training.team import Team
from physis_stream.training.train_state import StateTrainer
from physis_stream.training.train_world import WorldTrainer
from physis_stream.training.trainer import Trainer
from physis_stream.training.world_config import WorldTraining

Report = Callable[[int, dict[str, float]], None]
STAGES = {"state": StateTrainer, "world": WorldTrainer}


def _open_trainer(stage: str, env: str, size: int, out: Path, config: WorldTraining) -> Trainer:
    """Build the trainer from what the earlier stages left in `out`, at the newest checkpoint if there is one."""
    codec = TinyCausalCodec.from_pretrained(out / "codec")
    readout = TinyReadout.from_pretrained(out / "readout")
    data = load_latents(codec, open_shards(out / "data"), out / "latents").with_plays(out / "plays")
    # Compiling takes minutes, which a short run would not win back.
    return STAGES[stage](recipe_for(env, size=size), data, readout, config, out, compiled=config.steps > 500)


def _work(
    stage: str, env: str, size: int, out: Path, config: WorldTraining, cores: int, make_report: Callable[[], Report]
) -> None:
    torch.set_num_threads(1)
    trainer = _open_trainer(stage, env, size, out, config)
    if trainer.step < config.steps:
        team = Team(trainer, cores) if cores > 1 else None
        trainer.train(make_report(), step=None if team is None else team.step)
        if team is not None:
            team.close()
    if stage == "world":
        trainer.average.copy_to(trainer.transformer)
        trainer.transformer.save_pretrained(out / "transformer")


def run_stage(
    stage: str, env: str, size: int, out: Path, config: WorldTraining, cores: int, make_report: Callable[[], Report]
) -> None:
    """Train one of `STAGES` until `config.steps` on `cores` processes, going on from its checkpoint `out/STAGE.pt`; the
    last leaves the transformer with averaged weights in `out/transformer`. `make_report` is called in the new process,
    which it must be importable from. Raises RuntimeError if that process ends badly."""
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(stage, env, size, out, config, cores, make_report)
    )
    process.start()
    try:
        process.join()
    except BaseException:
        process.terminate()
        process.join()
        raise
    if process.exitcode:
        raise RuntimeError(
            f"training the {stage} ended with exit code {process.exitcode}; the same command goes on from its last "
            f"checkpoint in {out}"
        )
