"""How an engine is to be run: one frozen object, checked once. Pickles, so that a child process gets the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

DTYPES = ("auto", "float32", "bfloat16")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`world` is a name that ships or a folder; `discipline` and `commit` choose among the rules of its profile.

    `threads` are torch's; None takes every core that `spare_cores` leaves (a server spares one for its encoders).
    `dtype` "auto" is bfloat16 where the processor multiplies it natively, else float32; deterministic runs are float32.
    `max_utilisation` is the part of real time that realtime sessions may be predicted to need.
    `deterministic` makes a session's bits independent of its company: batches of `fixed_rows`, padded.
    """

    world: str = "pusht"
    discipline: str | None = None
    commit: bool | None = None
    threads: int | None = None
    spare_cores: int = 0
    dtype: str = "auto"
    deterministic: bool = False
    fixed_rows: int = 8
    max_sessions: int = 64
    max_queued: int = 64
    max_snapshots: int = 64
    max_rows: int = 64
    max_utilisation: float = 0.95
    trace: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, got {self.threads}")
        if self.fixed_rows < 1:
            raise ValueError(f"fixed_rows must be at least 1, got {self.fixed_rows}")
        if self.deterministic and self.dtype == "bfloat16":
            raise ValueError("a deterministic engine computes in float32: leave dtype at auto")

    @property
    def num_threads(self) -> int:
        """Torch threads that this configuration asks for on this machine."""
        if self.threads is not None:
            return self.threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, cores - self.spare_cores)

    @property
    def torch_dtype(self) -> Any:
        """The torch dtype of weights and KV."""
        import torch

        if self.deterministic or self.dtype == "float32":
            return torch.float32
        native = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)())
        return torch.bfloat16 if self.dtype == "bfloat16" or native else torch.float32
