"""How a batch is laid out: a context rule, packed as the engine would leave its KV.

Every version of every frame is in the sequence, each at its own level with its own noise, and the boolean table of the
rule says who sees whom, so what a step sees in training is what it sees when served.

    clean      one target a frame at a random level over a clean row a frame: the cheapest way to learn the dynamics
    cascade    S targets a frame around the served levels and the clean row, attending along the diagonal
    open       cascade without the clean row
    same_step  all frames of a sequence at one level
    alone      every frame for itself at the levels after the first: drawing a picture from its own state

Clean rows carry a little noise on top, told to the model as their level, so that a rollout's own errors look familiar;
served, they carry none and are told a fixed level. Targets are mixtures (1 - t) x0 + t noise, and lie at levels above
those of clean rows, so that the level alone says which of the two a row is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.noise_schedule import add_noise
from physis_stream.training.world_config import WorldTraining

Denoise = Callable[[Tensor, Tensor, Tensor, DenseAttention], Tensor]
"""Noisy rows, levels, actions and attention to estimates of x0."""
LAYOUTS = ("clean", "cascade", "open", "same_step", "alone")


def layout_rule(name: str, config: WorldTraining) -> ContextRule:
    """The rule that a layout trains; clean and same_step pack one target a frame, whose level is drawn."""
    num_steps = len(config.levels)
    rules = {
        "clean": ContextRule(Discipline.CLEAN, 1, config.window, commit=True),
        "alone": ContextRule(Discipline.CLEAN, 1, config.window, commit=True),
        "cascade": ContextRule(Discipline.CASCADE, num_steps, config.window, commit=True),
        "open": ContextRule(Discipline.CASCADE, num_steps, config.window, commit=False),
        "same_step": ContextRule(Discipline.SAME_STEP, 1, config.window, commit=False),
    }
    return rules[name]


def is_clean(name: str, config: WorldTraining, groups: Groups) -> Tensor:
    """Return which groups (G,) are clean rows: given frames, and the version that a rule commits."""
    rule = layout_rule(name, config)
    frames, versions = torch.tensor(groups.frames), torch.tensor(groups.versions)
    return (frames < groups.primed) | (rule.commit & (versions == rule.num_steps))


def draw_levels(name: str, config: WorldTraining, groups: Groups, count: int, noise: torch.Generator) -> Tensor:
    """Draw the level of every group of `count` sequences, (B, G)."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=noise)

    versions = torch.tensor(groups.versions)
    size = (count, len(versions))
    limit = config.context_noise * uniform(count, 1)
    clean = limit * uniform(*size)
    if name in ("clean", "same_step", "alone"):
        # Of the targets, `first_share` start from pure noise, where the dynamics are learned; two thirds of the others
        # lie about the levels that are served after it, the rest anywhere, so that a profile may choose other levels.
        shape = (count, 1) if name == "same_step" else size
        first = 0.0 if name == "alone" else config.first_share
        later = torch.tensor(config.levels[1:] or (1.0,))
        served = later[(len(later) * uniform(*shape)).long().clamp_max(len(later) - 1)] + 0.1 * (uniform(*shape) - 0.5)
        other = torch.where(uniform(*shape) < 0.67, served.clamp(0.4, 1.0), 1 - 0.6 * uniform(*shape).square())
        level = torch.where(uniform(*shape) < first, 1.0, other).expand(size)
    else:
        centre = torch.tensor([*config.levels, 0.0])[versions]
        level = (centre + 0.2 * (uniform(*size) - 0.5)).clamp(0.4, 1.0)
        level = torch.where(versions == 0, torch.ones(()), level)
    return torch.where(is_clean(name, config, groups), clean, level)


def noised(x0: Tensor, noise: Tensor, level_R: Tensor, clean_R: Tensor) -> Tensor:
    """Noise rows (R, ...): mixtures for targets, x0 + t noise for clean rows."""
    mixed = add_noise(x0, noise, level_R)
    shape = (-1,) + (1,) * (x0.ndim - 1)
    return torch.where(clean_R.view(shape), x0 + level_R.view(shape) * noise, mixed)


@torch.no_grad()
def with_own_context(
    x_t: Tensor, level: Tensor, action: Tensor, model: Denoise, groups: Groups, rule: ContextRule,
    attend: DenseAttention, noise: torch.Generator, first_target: int, passes: int, deviation: float = 1.0,
) -> Tensor:  # fmt: skip
    """Replace the clean rows of `x_t` by what the model itself makes of their frames at the last step, with noise of
    `deviation` times their level.

    A pass is one more forward over the whole packed sequence at once, instead of a rollout frame by frame: after n
    passes a frame carries the errors of a rollout of n frames, which is what the next frame has to forgive. Opening
    frames stay true.
    """
    order = list(zip(groups.frames, groups.versions, strict=True))
    source = list(range(len(order)))
    for place, (frame, version) in enumerate(order):
        if frame >= first_target and version == rule.num_steps:
            source[place] = order.index((frame, version - 1))
    shape = (-1,) + (1,) * (x_t.ndim - 1)
    replaced = torch.tensor([place != origin for place, origin in enumerate(source)]).repeat(len(x_t) // len(order))
    for _ in range(passes):
        own = model(x_t, level, action, attend).unflatten(0, (-1, len(order)))[:, source].flatten(0, 1)
        noisy = own + deviation * level.view(shape) * torch.randn(own.shape, generator=noise)
        x_t = torch.where(replaced.view(shape), noisy, x_t)
    return x_t


def mislead(x_t: Tensor, clean_G: Tensor, noise: torch.Generator, share: float) -> Tensor:
    """Make the pictures of the rows `clean_G`, all channels but the last, wrong in a `share` of the sequences: noise,
    the first frame's for ever, or another sequence's, a third each. What is to be drawn then follows from the state
    alone."""
    rows = x_t.unflatten(0, (-1, len(clean_G)))
    picture = rows[:, :, :-1]
    static = torch.randn(picture.shape, generator=noise)
    lies = torch.stack((static, picture[:, :1].expand_as(picture), picture.roll(1, 0)))
    kind = torch.randint(3, (len(rows),), generator=noise)
    lie = lies[kind, torch.arange(len(rows))]
    lied_to = torch.rand(len(rows), generator=noise) < share
    wrong = (lied_to[:, None] & clean_G)[:, :, None, None, None]
    return torch.cat((torch.where(wrong, lie, picture), rows[:, :, -1:]), 2).flatten(0, 1)
