"""Train a world's transformer under the context rules that it will be served with.

A batch is one *layout*: a rule, packed as the engine would leave its KV. Every version of every frame is in the
sequence, each at its own level with its own noise, and the boolean table of the rule says who sees whom, so what a step
sees in training is what it sees when served. Layouts are drawn by share:

    clean      one target a frame at a random level over a clean row a frame: the cheapest way to learn the dynamics
    cascade    S targets a frame around the served levels and the clean row, attending along the diagonal
    open       cascade without the clean row
    same_step  all frames of a sequence at one level

Clean rows carry a little noise, told to the model as their level, so that a rollout's own errors look familiar. A
sequence opens with one frame that is given (an episode's first, at rest) or with two (anywhere: two frames show the
velocity). A share `own_context` of the batches sees the model's own estimates as clean rows, after 1 to `own_passes`
passes: a model that is exact for one frame after true ones still dissolves when it is fed with its own. The error is
that of x0, weighted towards what moves; a small head on the middle block regresses the simulator's state at every
level and is dropped afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.noise_schedule import add_noise
from physis_stream.models.rope import rope_table
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training import checkpoint
from physis_stream.training.latents import LatentSet, SequenceDraw, Sequences
from physis_stream.training.optim import Average, MuonAdam, parameter_groups, rate
from physis_stream.training.recipe import Recipe


@dataclass(frozen=True, slots=True)
class WorldTraining:
    """Size of the transformer and of the run. `shares` are the layouts' odds: clean, cascade, open, same_step; from the
    share `late_from` of the steps on, `late_shares` take over: dynamics first, then the rules that are served."""

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
    state_weight: float = 0.1
    own_context: float = 0.0
    own_passes: int = 1
    average_steps: int = 150
    seed: int = 0


Denoise = Callable[[Tensor, Tensor, Tensor, DenseAttention], Tensor]
"""Latents, levels, actions, attention to velocities, as `TinyWorldTransformer` maps them."""
ROBUST = 0.1
"""Where a cell's error turns from squared to linear. The mean of several possible pictures, which a squared error asks
for, is a smear, and smears are what the next frame is made from; a linear error asks for the likeliest. Pseudo-Huber,
as in consistency training (Song and Dhariwal, 2023, arXiv 2310.14189)."""
LAYOUTS = ("clean", "cascade", "open", "same_step")


def layout_rule(name: str, config: WorldTraining) -> ContextRule:
    """The rule that a layout trains; clean and same_step pack one target a frame, whose level is drawn."""
    num_steps = len(config.levels)
    rules = {
        "clean": ContextRule(Discipline.CLEAN, 1, config.window, commit=True),
        "cascade": ContextRule(Discipline.CASCADE, num_steps, config.window, commit=True),
        "open": ContextRule(Discipline.CASCADE, num_steps, config.window, commit=False),
        "same_step": ContextRule(Discipline.SAME_STEP, 1, config.window, commit=False),
    }
    return rules[name]


def draw_levels(name: str, config: WorldTraining, groups: Groups, count: int, noise: torch.Generator) -> Tensor:
    """Draw the level of every group of `count` sequences, (B, G)."""

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=noise)

    versions, frames = torch.tensor(groups.versions), torch.tensor(groups.frames)
    size = (count, len(versions))
    limit = config.context_noise * uniform(count, 1)
    clean = limit * uniform(*size)
    if name in ("clean", "same_step"):
        # Of the targets, 40% start from pure noise, where the dynamics are learned, 40% lie about the levels that are
        # served after it, and the rest anywhere, so that a profile may choose other levels.
        shape = size if name == "clean" else (count, 1)
        later = torch.tensor(config.levels[1:] or (1.0,))
        served = later[(len(later) * uniform(*shape)).long().clamp_max(len(later) - 1)] + 0.1 * (uniform(*shape) - 0.5)
        other = torch.where(uniform(*shape) < 0.67, served.clamp(0.1, 1.0), 1 - 0.85 * uniform(*shape).square())
        level = torch.where(uniform(*shape) < 0.4, 1.0, other).expand(size)
    else:
        centre = torch.tensor([*config.levels, 0.0])[versions]
        level = (centre + 0.2 * (uniform(*size) - 0.5)).clamp(0.1, 1.0)
        level = torch.where(versions == 0, torch.ones(()), level)
    is_clean = (frames < groups.primed) | (versions == (1 if name == "clean" else len(config.levels)))
    return torch.where(is_clean, clean, level)


class StateProbe(nn.Module):
    """The auxiliary head: tokens of one row (R, T, D) to normalised state targets."""

    def __init__(self, width: int, tokens: int, targets: int) -> None:
        super().__init__()
        self.narrow = nn.Linear(width, 32)
        self.out = nn.Linear(32 * tokens, targets)

    def forward(self, tokens_RTD: Tensor) -> Tensor:
        """Return (R, targets)."""
        guess: Tensor = self.out(nn.functional.silu(self.narrow(tokens_RTD)).flatten(1))
        return guess


class WorldLoss(nn.Module):
    """Transformer and probe as one module from a packed batch to its losses; the unit that is compiled."""

    def __init__(self, transformer: TinyWorldTransformer, probe: StateProbe) -> None:
        super().__init__()
        self.transformer, self.probe = transformer, probe

    def forward(
        self, x_t: Tensor, x0: Tensor, level: Tensor, action: Tensor, weight: Tensor, state: Tensor,
        target: Tensor, attend: DenseAttention,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Return the weighted error of x0, averaged over the rows where `target` (R,) is 1, and the probe's error over
        all rows: a clean row has to know what its own latents show, since that is what later frames read from it."""
        model = self.transformer
        tokens, modulation = model.embed(x_t, level, action)
        middle = tokens
        for index, block in enumerate(model.blocks):
            tokens = block(tokens, modulation, attend)
            if index == len(model.blocks) // 2:
                middle = tokens
        found = x_t - level.clamp_min(0.02)[:, None, None, None] * model.head(tokens, modulation)
        cell = (found - x0).square().mean(1, keepdim=True)
        robust = (cell + ROBUST**2).sqrt() - ROBUST
        error = (weight * robust).mean((1, 2, 3)) / level.clamp_min(0.5)
        guess = (self.probe(middle).float() - state).square().mean(1)
        return (error * target).sum() / target.sum(), guess.mean()


def pack(
    name: str, groups: Groups, batch: Sequences, readout: TinyReadout, config: WorldTraining, noise: torch.Generator,
    first_target: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Lay out a batch: the tensors that `WorldLoss` takes before `attend`, rows in the order of the groups.

    Frames below `first_target` are no targets.
    """
    count = batch.latents.shape[0]
    frame = torch.tensor(groups.frames)
    x0 = batch.latents[:, frame].flatten(0, 1)
    before = batch.latents[:, (frame - 1).clamp_min(0)].flatten(0, 1)
    moved = (x0 - before).square().mean(1, keepdim=True)
    weight = 1 + 3 * moved / (moved + 0.5)
    levels = draw_levels(name, config, groups, count, noise)
    is_commit = torch.tensor(groups.versions) == layout_rule(name, config).num_steps
    target = ((frame >= first_target) & ~is_commit).float().expand(count, -1)
    x_t = add_noise(x0, torch.randn(x0.shape, generator=noise), levels.flatten())
    action = batch.actions[:, frame].flatten(0, 1)
    state = readout.targets(batch.states)[:, frame].flatten(0, 1)
    return x_t, x0, levels.flatten(), action, weight, state, target.flatten()


@torch.no_grad()
def with_own_context(
    packed: tuple[Tensor, ...], model: Denoise, groups: Groups, rule: ContextRule, attend: DenseAttention,
    noise: torch.Generator, first_target: int, passes: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Replace the clean rows' latents by what the model itself makes of their frames at the last step.

    A pass is one more forward over the whole packed sequence at once, instead of a rollout frame by frame: after n
    passes a frame carries the errors of a rollout of n frames, which is what the next frame has to forgive. Opening
    frames stay true.
    """
    x_t, x0, level, action, *rest = packed
    order = list(zip(groups.frames, groups.versions, strict=True))
    source = list(range(len(order)))
    for place, (frame, version) in enumerate(order):
        if frame >= first_target and version == rule.num_steps:
            source[place] = order.index((frame, version - 1))
    replaced = torch.tensor([place != origin for place, origin in enumerate(source)]).repeat(len(x_t) // len(order))
    for _ in range(passes):
        found = x_t - level[:, None, None, None] * model(x_t, level, action, attend)
        own = found.unflatten(0, (-1, len(order)))[:, source].flatten(0, 1)
        noisy = add_noise(own, torch.randn(own.shape, generator=noise), level)
        x_t = torch.where(replaced[:, None, None, None], noisy, x_t)
    return x_t, x0, level, action, *rest


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Muon steps the matrices inside the blocks and the conditioning's middle."""
    return parameter.ndim == 2 and (("blocks." in name and "table" not in name) or "condition_mid" in name)


class WorldTrainer:
    """One run: builds, resumes from `out/world.pt`, steps, saves. `compile` fuses small operations where that pays."""

    def __init__(
        self, recipe: Recipe, data: LatentSet, readout: TinyReadout, config: WorldTraining, out: Path,
        *, compiled: bool = True,
    ) -> None:  # fmt: skip
        torch.manual_seed(config.seed)
        self.config, self.out, self.readout = config, out, readout.eval()
        channels, height, width = data.latents.shape[1:]
        self.transformer = TinyWorldTransformer(
            channels, height, width, patch=config.patch, width=config.width, num_layers=config.num_layers,
            num_heads=config.num_heads, action_low=recipe.action_low, action_high=recipe.action_high,
        )  # fmt: skip
        probe = StateProbe(config.width, self.transformer.tokens_per_row, readout.num_targets)
        self.loss = WorldLoss(self.transformer, probe)
        self.run: Any = torch.compile(self.loss, dynamic=False) if compiled else self.loss
        self.denoise: Any = torch.compile(self.transformer, dynamic=False) if compiled else self.transformer
        groups = parameter_groups(self.loss.named_parameters(), is_matrix)
        self.optimizer = MuonAdam(groups, config.learning_rate)
        self.average = Average(self.transformer, config.average_steps)
        self.draw = SequenceDraw(data, config.frames, recipe.action_default, config.seed)
        head_dim = config.width // config.num_heads
        rope = rope_table(config.frames, self.transformer.grid[0], self.transformer.grid[1], head_dim)
        self.packed: dict[str, tuple[Groups, DenseAttention]] = {}
        for name in LAYOUTS:
            rule = layout_rule(name, config)
            order = Groups.of(rule, config.frames)
            self.packed[name] = order, DenseAttention(order, rule, rope, torch.bfloat16)
        self.step = 0
        if (saved := checkpoint.load(out / "world.pt")) is not None:
            self._restore(saved)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.loss.load_state_dict(saved["loss"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.average.values, self.average.count, self.step = saved["average"], saved["count"], saved["step"]
        for state in self.optimizer.state.values():
            state["step"] = self.step

    def save(self) -> None:
        """Write `out/world.pt`."""
        content = {"loss": self.loss.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        content |= {"average": self.average.values, "count": self.average.count, "config": asdict(self.config)}
        checkpoint.save(self.out / "world.pt", content)

    @property
    def num_parts(self) -> int:
        """Micro-batches of one step."""
        return max(1, self.config.batch // self.config.micro_batch)

    def layout(self, step: int) -> str:
        """Return the layout that all micro-batches of a step have."""
        config = self.config
        shares = config.shares if step < config.late_from * config.steps else config.late_shares
        draw = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        return LAYOUTS[int(torch.multinomial(torch.tensor(shares, dtype=torch.float32), 1, generator=draw))]

    def part(self, step: int, part: int) -> Tensor:
        """Add the gradient of one micro-batch, which (step, part) determines, to the parameters'; returns its losses
        (2,)."""
        config, name = self.config, self.layout(step)
        address = step * self.num_parts + part
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + address)
        fresh = part % 3 == 0
        groups, attend = self.packed[name]
        batch = self.draw(address, config.micro_batch, fresh_start=fresh)
        first_target = 1 if fresh else 2
        packed = pack(name, groups, batch, self.readout, config, noise, first_target)
        rule = layout_rule(name, config)
        own = rule.commit and float(torch.rand((), generator=noise)) < config.own_context
        # Compiling takes a minute a layout; it pays for the two that most batches have.
        pays = name in ("clean", "cascade")
        run, denoise = (self.run, self.denoise) if pays else (self.loss, self.transformer)
        with torch.autocast("cpu", torch.bfloat16):
            if own:
                passes = 1 + int(torch.randint(config.own_passes, (), generator=noise))
                packed = with_own_context(packed, denoise, groups, rule, attend, noise, first_target, passes)
            error, guess = run(*packed, attend)
        ((error + config.state_weight * guess) / self.num_parts).backward()
        return torch.stack((error.detach(), guess.detach())) / self.num_parts

    def set_rate(self) -> None:
        """Set the learning rate of the present step."""
        config = self.config
        factor = rate(self.step, config.steps, warmup=100, decay_share=config.decay_share)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * factor

    def train_step(self) -> dict[str, float]:
        """Take one optimiser step on a batch addressed by the step's number; returns the layout's losses."""
        self.set_rate()
        self.optimizer.zero_grad(set_to_none=True)
        totals = torch.zeros(2)
        for part in range(self.num_parts):
            totals += self.part(self.step, part)
        torch.nn.utils.clip_grad_norm_(self.loss.parameters(), 1.0)
        self.optimizer.step()
        self.average.update(self.transformer)
        return self.finish_step(totals)

    def finish_step(self, totals: Tensor) -> dict[str, float]:
        """Count the step and name its losses."""
        name = self.layout(self.step)
        self.step += 1
        return {f"{name}_error": float(totals[0]), f"{name}_state": float(totals[1])}

    def train(
        self,
        report: Callable[[int, dict[str, float]], None],
        save_every_s: float = 180.0,
        step: Callable[[], dict[str, float]] | None = None,
    ) -> None:
        """Step until the run's end, saving every few minutes and at the end. `step` takes one step (see
        `training.team`)."""
        saved_at = time.monotonic()
        while self.step < self.config.steps:
            report(self.step, (step or self.train_step)())
            if time.monotonic() - saved_at > save_every_s:
                self.save()
                saved_at = time.monotonic()
        self.save()
