"""What the stages of a transformer's training share: layouts by step, optimiser, average, checkpoints, the loop.

A stage trains a part of one `TinyWorldTransformer`: the state first, alone (`train_state`), then the picture over it
(`train_world`). Batches are addressed by step and part, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from physis_stream.core.context_rule import ContextRule
from physis_stream.models.attention import DenseAttention, Groups
from physis_stream.models.rope import RopeTable
from physis_stream.models.tiny.model import TinyWorldTransformer
from physis_stream.models.tiny.readout import TinyReadout
from physis_stream.training import checkpoint
from physis_stream.training.latents import LatentSet, Plays, SequenceDraw
from physis_stream.training.layouts import LAYOUTS, draw_levels, is_clean, layout_rule, noised, with_own_context
from physis_stream.training.optim import Average, MuonAdam, parameter_groups, rate
from physis_stream.training.recipe import Recipe
from physis_stream.training.world_config import WorldTraining


def build_transformer(recipe: Recipe, data: LatentSet, readout: TinyReadout, config: WorldTraining) -> Any:
    """Make the transformer that fits a data set's latents and a readout's numbers, with `config.seed`'s weights."""
    torch.manual_seed(config.seed)
    channels, height, width = data.latents.shape[1:]
    return TinyWorldTransformer(
        channels + 1, height, width, patch=config.patch, width=config.width, num_layers=config.num_layers,
        num_heads=config.num_heads, action_low=recipe.action_low, action_high=recipe.action_high,
        state_values=readout.num_targets, clean_below=config.clean_below,
    )  # fmt: skip


def is_matrix(name: str, parameter: Tensor) -> bool:
    """Muon steps the matrices inside the blocks and the conditioning's middle."""
    return parameter.ndim == 2 and (("blocks." in name and "table" not in name) or "condition_mid" in name)


def is_state(name: str) -> bool:
    """Whether a parameter belongs to the state's part of the transformer."""
    return "state_in" in name or "state_out" in name or ".state." in name


class Trainer(ABC):
    """One run of a stage: builds, resumes from `file`, steps, saves. A stage says what it draws (`batch`), how its
    context is changed (`in_context`), which sequences open fresh, and which layouts are worth compiling. `loss` has the
    denoiser as `model`."""

    deviation = 1.0
    """Of the noise on a row at t = 1."""
    compiled_layouts: tuple[str, ...] = ("clean", "cascade")
    """Compiling takes a minute a layout; it pays for those that most batches have."""

    def __init__(
        self, transformer: TinyWorldTransformer, loss: Any, recipe: Recipe, data: Plays, readout: TinyReadout,
        config: WorldTraining, rope: RopeTable, file: Path, *, compiled: bool,
    ) -> None:  # fmt: skip
        self.transformer, self.loss, self.config, self.file = transformer, loss, config, file
        self.run: Any = torch.compile(loss, dynamic=False) if compiled else loss
        self.denoise: Any = torch.compile(loss.model, dynamic=False) if compiled else loss.model
        self.readout = readout.eval()
        self.optimizer = MuonAdam(parameter_groups(loss.named_parameters(), is_matrix), config.learning_rate)
        self.average = Average(transformer, config.average_steps)
        self.draw = SequenceDraw(data, config.frames, recipe.action_default, config.seed)
        self.packed: dict[str, tuple[Groups, ContextRule, DenseAttention]] = {}
        for name in LAYOUTS:
            rule = layout_rule(name, config)
            order = Groups((0,), (0,), 0) if name == "alone" else Groups.of(rule, config.frames)
            attend = DenseAttention(order, rule, rope, torch.bfloat16)
            if name == "alone":
                order = Groups(tuple(range(config.frames)), (0,) * config.frames, 0)
            self.packed[name] = order, rule, attend
        self.step = 0
        if (saved := checkpoint.load(file)) is not None:
            self._restore(saved)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.transformer.load_state_dict(saved["transformer"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.average.values, self.average.count, self.step = saved["average"], saved["count"], saved["step"]
        for state in self.optimizer.state.values():
            state["step"] = self.step

    def save(self) -> None:
        """Write the checkpoint."""
        content = {"transformer": self.transformer.state_dict(), "optimizer": self.optimizer.state_dict()}
        content |= {"average": self.average.values, "count": self.average.count, "step": self.step}
        checkpoint.save(self.file, content | {"config": asdict(self.config)})

    @property
    def num_parts(self) -> int:
        """Micro-batches of one step."""
        return max(1, self.config.batch // self.config.micro_batch)

    def is_late(self, step: int) -> bool:
        """Whether a step belongs to the run's second part, which trains what is served."""
        return step >= self.config.late_from * self.config.steps

    def layout(self, step: int) -> str:
        """Return the layout that all micro-batches of a step have."""
        config = self.config
        shares = config.late_shares if self.is_late(step) else config.shares
        draw = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        return LAYOUTS[int(torch.multinomial(torch.tensor(shares, dtype=torch.float32), 1, generator=draw))]

    def part(self, step: int, part: int) -> Tensor:
        """Add the gradient of one micro-batch, which (step, part) determines, to the parameters'; returns its share of
        the loss."""
        config, name = self.config, self.layout(step)
        address = step * self.num_parts + part
        noise = torch.Generator().manual_seed(config.seed * 1_000_003 + address)
        fresh = self.opens_fresh(part, address)
        groups, rule, attend = self.packed[name]
        first_target = 0 if name == "alone" else 1 if fresh else 2
        x0, action, *more = self.batch(address, groups, fresh=fresh)
        level = draw_levels(name, config, groups, config.micro_batch, noise).flatten()
        clean, frame = is_clean(name, config, groups), torch.tensor(groups.frames)
        target = ((frame >= first_target) & ~clean).float().repeat(config.micro_batch)
        error = self.deviation * torch.randn(x0.shape, generator=noise)
        x_t = noised(x0, error, level, clean.repeat(config.micro_batch))
        pays = name in self.compiled_layouts
        run, denoise = (self.run, self.denoise) if pays else (self.loss, self.loss.model)
        with torch.autocast("cpu", torch.bfloat16):
            own = x_t
            if name != "alone" and (passes := self.own_passes(step, rule, noise)):
                own = with_own_context(
                    x_t, level, action, denoise, groups, rule, attend, noise, first_target, passes, self.deviation
                )
            loss = run(self.in_context(x_t, own, clean, noise), x0, level, action, *more, target, attend)
        (loss / self.num_parts).backward()
        share: Tensor = loss.detach() / self.num_parts
        return share

    @abstractmethod
    def opens_fresh(self, part: int, address: int) -> bool:
        """Return if this micro-batch's sequences begin where episodes do."""

    @abstractmethod
    def batch(self, address: int, groups: Groups, *, fresh: bool) -> tuple[Tensor, ...]:
        """Return clean rows (R, ...), actions (R, A) and whatever else the loss takes before `target`, rows in the
        order of the groups."""

    def in_context(self, x_t: Tensor, own: Tensor, clean: Tensor, noise: torch.Generator) -> Tensor:
        """Return the rows as the loss sees them, of `x_t` and of the same with the model's own estimates as clean
        rows."""
        return own

    def own_passes(self, step: int, rule: ContextRule, noise: torch.Generator) -> int:
        """Draw over how many passes a micro-batch sees its own estimates as context."""
        config = self.config
        if not rule.commit or not self.is_late(step):
            return 0
        if float(torch.rand((), generator=noise)) >= config.own_context:
            return 0
        return 1 + int(torch.randint(config.own_passes, (), generator=noise))

    def set_rate(self) -> None:
        """Set the learning rate of the present step."""
        config = self.config
        factor = rate(self.step, config.steps, warmup=100, decay_share=config.decay_share)
        for group in self.optimizer.param_groups:
            group["lr"] = config.learning_rate * factor

    def train_step(self) -> dict[str, float]:
        """Take one optimiser step on a batch addressed by the step's number; returns the layout's loss."""
        self.set_rate()
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros(())
        for part in range(self.num_parts):
            total += self.part(self.step, part)
        torch.nn.utils.clip_grad_norm_(self.loss.parameters(), 1.0)
        self.optimizer.step()
        self.average.update(self.transformer)
        return self.finish_step(total)

    def finish_step(self, total: Tensor) -> dict[str, float]:
        """Count the step and name its loss."""
        name = self.layout(self.step)
        self.step += 1
        return {f"{name}_error": float(total)}

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
