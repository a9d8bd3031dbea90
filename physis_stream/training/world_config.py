"""Size of a world's transformer and of its training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorldTraining:
    """`shares` are the layouts' odds: clean, cascade, open, same_step; from the share `late_from` of the steps on,
    `late_shares` and `own_context` take over: dynamics first, then what is served. `batch` counts sequences of `frames`
    frames; a state's sequence is cheap, so its stage has many more. In a share `distrust` of the sequences the pictures
    of clean rows are wrong while their state is right. `first_share` of a clean layout's targets are at t = 1.
    `clean_below` is the transformer's: 1.0 lets target rows see their own picture."""

    patch: int = 3
    width: int = 256
    num_layers: int = 6
    num_heads: int = 4
    levels: tuple[float, ...] = (1.0, 0.95, 0.9)
    window: int = 6
    frames: int = 10
    context_noise: float = 0.35
    shares: tuple[float, ...] = (1.0, 0.0, 0.0, 0.0)
    late_shares: tuple[float, ...] = (0.4, 0.4, 0.1, 0.1)
    late_from: float = 0.6
    steps: int = 4000
    batch: int = 32
    micro_batch: int = 8
    learning_rate: float = 2e-3
    decay_share: float = 0.3
    own_context: float = 0.0
    own_passes: int = 1
    distrust: float = 0.0
    first_share: float = 0.4
    clean_below: float = 0.36
    average_steps: int = 150
    seed: int = 0
