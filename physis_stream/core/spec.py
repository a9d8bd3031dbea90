"""What core knows of a world: shapes as numbers, costs in bytes, the context rule, bounds of actions. No tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from physis_stream.core.context_rule import ContextRule
from physis_stream.core.errors import InvalidAction

Action = tuple[float, ...]


class Combine(StrEnum):
    """What becomes of several live actions that arrive before the next chunk opens.

    LATEST: the newest wins and stays in force until another comes. HOLD: as latest, but each component takes its
    value farthest from `initial` for that one chunk, so that a short tap is not lost. SUM: they are added up and
    clipped to the bounds; nothing new means `initial`.
    """

    LATEST = "latest"
    HOLD = "hold"
    SUM = "sum"


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """Bounds of one action; `initial` applies until the client sends its first."""

    low: Action
    high: Action
    initial: Action
    names: tuple[str, ...]
    combine: Combine = Combine.LATEST

    @property
    def dim(self) -> int:
        return len(self.low)

    def check(self, value: Sequence[float]) -> Action:
        """Return `value` clipped to the bounds; raise InvalidAction for a wrong length or type, or a non-finite."""
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise InvalidAction(f"an action is a list of {self.dim} numbers, got {type(value).__name__}")
        if len(value) != self.dim:
            raise InvalidAction(f"an action has {self.dim} numbers ({', '.join(self.names)}), got {len(value)}")
        for name, number in zip(self.names, value, strict=True):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise InvalidAction(f"action {name} must be a number, got {type(number).__name__}")
            if not math.isfinite(number):
                raise InvalidAction(f"action {name} must be finite, got {number}")
        return tuple(min(max(float(v), lo), hi) for v, lo, hi in zip(value, self.low, self.high, strict=True))


@dataclass(frozen=True, slots=True)
class WorldSpec:
    """The numbers of one world at one resolution.

    `pages_per_chunk` pages of `page_bytes` hold one version of one chunk's KV over all layers; `fixed_bytes` is all
    else a session keeps (VAE state, latents in flight, conditioning). `shape_key` names the shape bucket: rows with
    equal keys stack into one batch and their pages come from one pool. `sink` counts first chunks that are never
    evicted (0: none), beside the rule's window.
    """

    world: str
    rule: ContextRule
    action: ActionSpec
    fps: float
    chunk_frames: int
    height: int
    width: int
    sink: int
    pages_per_chunk: int
    page_bytes: int
    fixed_bytes: int
    shape_key: str

    @property
    def chunk_ns(self) -> int:
        """Media time of one chunk, in nanoseconds."""
        return round(1e9 * self.chunk_frames / self.fps)
