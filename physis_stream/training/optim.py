"""Optimiser, learning-rate schedule and moving averages of the trainers.

Hidden matrices are stepped by Muon: momentum whose direction is orthogonalised by a Newton-Schulz iteration (Jordan et
al., 2024, https://kellerjordan.github.io/posts/muon), scaled so that one learning rate serves it and Adam alike (Liu et
al., 2025, arXiv 2502.16982). Everything else (first and last layers, biases, gains, tables) is stepped by AdamW. Both
live in one `torch.optim.Optimizer`, so that one state dict resumes a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import torch
from torch import Tensor, nn


def orthogonalise(matrix_MN: Tensor, iterations: int = 5) -> Tensor:
    """Return the nearest semi-orthogonal matrix, roughly: singular values end within about 0.7..1.2; bf16 inside."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix_MN.bfloat16()
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = (x.T if tall else x).to(matrix_MN.dtype)
    return result


class MuonAdam(torch.optim.Optimizer):
    """Muon for the groups with `muon` true, AdamW for the others; see `parameter_groups`."""

    def __init__(self, groups: Iterable[dict[str, object]], lr: float, weight_decay: float = 0.01) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "muon": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Apply one update; gradients must be there."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    self._begin(state, parameter, group["muon"])
                state["step"] += 1
                if group["weight_decay"] and parameter.ndim > 1:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                update = self._muon(parameter.grad, state) if group["muon"] else self._adam(parameter.grad, state)
                parameter.add_(update, alpha=-group["lr"])

    @staticmethod
    def _begin(state: dict[str, Any], parameter: Tensor, muon: bool) -> None:
        state |= {"step": 0, "momentum": torch.zeros_like(parameter)}
        if not muon:
            state["square"] = torch.zeros_like(parameter)

    def begin_all(self) -> None:
        """Make the state of every parameter now rather than at its first gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self._begin(self.state[parameter], parameter, group["muon"])

    @staticmethod
    def _muon(grad: Tensor, state: dict[str, Tensor]) -> Tensor:
        momentum = state["momentum"].lerp_(grad, 0.05)
        flat = grad.lerp(momentum, 0.95).flatten(1)
        return (orthogonalise(flat) * (0.2 * math.sqrt(max(flat.shape)))).view_as(grad)

    @staticmethod
    def _adam(grad: Tensor, state: dict[str, Tensor]) -> Tensor:
        step = float(state["step"])
        first = state["momentum"].lerp_(grad, 0.1) / (1 - 0.9**step)
        second = state["square"].lerp_(grad.square(), 0.03) / (1 - 0.97**step)
        update: Tensor = first / (second.sqrt() + 1e-8)
        return update


def parameter_groups(
    named: Iterable[tuple[str, nn.Parameter]], is_matrix: Callable[[str, Tensor], bool]
) -> list[dict[str, object]]:
    """Split parameters into the Muon group (`is_matrix`) and the AdamW group."""
    items = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    return [
        {"params": [p for name, p in items if is_matrix(name, p)], "muon": True},
        {"params": [p for name, p in items if not is_matrix(name, p)], "muon": False},
    ]


def rate(step: int, total: int, *, warmup: int, decay_share: float = 0.3) -> float:
    """Learning-rate factor: linear warm-up, constant, then linear to zero over the last `decay_share` of `total`."""
    decay = max(1, int(total * decay_share))
    return max(0.0, min(1.0, (step + 1) / max(1, warmup), (total - step) / decay))


class Average:
    """Exponential moving average of a module's parameters, with a start that forgets the initial values quickly."""

    def __init__(self, module: nn.Module, horizon: int) -> None:
        self.horizon, self.count = horizon, 0
        self.values = {name: p.detach().clone() for name, p in module.named_parameters()}

    @torch.no_grad()
    def update(self, module: nn.Module, only: Collection[str] | None = None) -> None:
        """Move towards the module's present parameters (those named in `only`, if given)."""
        self.count += 1
        keep = min(1 - 1 / self.horizon, (1 + self.count) / (10 + self.count))
        for name, parameter in module.named_parameters():
            if only is None or name in only:
                self.values[name].lerp_(parameter.detach(), 1 - keep)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Overwrite the module's parameters with the average."""
        for name, parameter in module.named_parameters():
            parameter.copy_(self.values[name])
