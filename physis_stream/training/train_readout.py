"""Fit a readout to finished latents: cheap, since no picture is touched, and repeatable whenever a better one is
wanted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training.latents import LatentSet
from physis_stream.training.optim import Average, MuonAdam, parameter_groups, rate


@dataclass(frozen=True, slots=True)
class ReadoutTraining:
    """Size of the run. Latents get noise of a deviation drawn from 0..`latent_noise`, so that dreamed ones can be read
    too."""

    steps: int = 4000
    batch: int = 256
    learning_rate: float = 2e-3
    latent_noise: float = 0.3
    seed: int = 0


def train_readout(
    readout: TinyReadout, data: LatentSet, config: ReadoutTraining, report: Callable[[int, dict[str, float]], None]
) -> TinyReadout:
    """Train in place from the weights it has; returns it with averaged weights, in eval mode."""
    inner = ("conv_mid", "narrow", "mid.")
    named = list(readout.named_parameters())
    groups = parameter_groups(named, lambda name, p: p.ndim > 1 and any(key in name for key in inner))
    optimizer, average = MuonAdam(groups, config.learning_rate), Average(readout, 200)
    noise = torch.Generator().manual_seed(config.seed)
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * rate(step, config.steps, warmup=50, decay_share=0.5)
        index = torch.randint(len(data.latents), (config.batch,), generator=noise)
        latents = data.latents[index].float()
        strength = config.latent_noise * torch.rand(config.batch, 1, 1, 1, generator=noise)
        latents = latents + strength * torch.randn(latents.shape, generator=noise)
        with torch.autocast("cpu", torch.bfloat16):
            guess = readout.predict(latents)
        loss = torch.nn.functional.smooth_l1_loss(guess.float(), readout.targets(data.states[index]), beta=0.05)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        average.update(readout)
        report(step, {"readout": float(loss.detach())})
    average.copy_to(readout)
    readout.eval()
    return readout
