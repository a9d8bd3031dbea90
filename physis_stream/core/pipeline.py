"""The wavefront and the virtual ranks, derived from the context rule and from nothing else.

Give item (chunk c, step s) the time  lag * c + s.  The smallest lag at which every dependency comes strictly earlier
says how far chunks of one session can overlap:

    cascade, same_step (lag 1)              clean (lag = rows)
    c    0 1 2 3 C                          c    0 1 2 3 C
    c+1    0 1 2 3 C                        c+1            0 1 2 3 C
    c+2      0 1 2 3 C

Where the lag is less than a chunk's rows, different steps are at work at the same time, so the model may be cut by
steps over devices; it may always be cut by blocks. It knows no devices, no sessions and no costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from physis_stream.core.context_rule import ContextRule


def wavefront_lag(rule: ContextRule) -> int:
    """Steps by which chunk c+1 must trail chunk c: at least 1, at most the rows of a chunk."""
    lag = 1
    for step in range(rule.rows_per_chunk):
        for distance in range(1, rule.window + 1):
            ahead = rule.version(step, distance) - step + 1
            lag = max(lag, -(-ahead // distance))
    return lag


def wavefront_depth(rule: ContextRule) -> int:
    """Chunks of one session that can be in flight at once."""
    return -(-rule.rows_per_chunk // wavefront_lag(rule))


@dataclass(frozen=True, slots=True)
class LegalCuts:
    """Along which axes of the grid a model under a rule may be cut."""

    steps: bool
    blocks: bool


def legal_cuts(rule: ContextRule) -> LegalCuts:
    """Cutting by blocks is always legal; by steps only where two steps of one session can be at work at once."""
    return LegalCuts(steps=wavefront_depth(rule) > 1, blocks=True)


@dataclass(frozen=True, slots=True)
class VirtualRank:
    """A cell of the grid: rows `step_start..step_stop-1` of a chunk through blocks `block_start..block_stop-1`."""

    step_start: int
    step_stop: int
    block_start: int
    block_stop: int

    @property
    def steps(self) -> range:
        return range(self.step_start, self.step_stop)

    @property
    def blocks(self) -> range:
        return range(self.block_start, self.block_stop)


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """The KV of `version` is written by step range `source` and read by step range `target`, so it must travel."""

    version: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Grid:
    """A model cut into virtual ranks; `step_cuts` and `block_cuts` are inner boundaries, ascending."""

    rule: ContextRule
    num_blocks: int
    step_cuts: tuple[int, ...] = ()
    block_cuts: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _check_cuts("step", self.step_cuts, self.rule.rows_per_chunk)
        _check_cuts("block", self.block_cuts, self.num_blocks)
        if self.step_cuts and not legal_cuts(self.rule).steps:
            raise ValueError(f"a {self.rule.discipline} model may not be cut by steps: its chunks are strictly serial")

    @property
    def step_ranges(self) -> tuple[range, ...]:
        return _ranges(self.step_cuts, self.rule.rows_per_chunk)

    @property
    def block_ranges(self) -> tuple[range, ...]:
        return _ranges(self.block_cuts, self.num_blocks)

    @property
    def ranks(self) -> tuple[VirtualRank, ...]:
        """All cells, in the order in which a work item passes them."""
        return tuple(
            VirtualRank(steps.start, steps.stop, blocks.start, blocks.stop)
            for steps in self.step_ranges
            for blocks in self.block_ranges
        )

    def kv_transfers(self) -> tuple[KvTransfer, ...]:
        """Which versions must travel between step ranges; within a block range, so block cuts never move KV."""
        owner = {step: index for index, steps in enumerate(self.step_ranges) for step in steps}
        moves = {
            KvTransfer(version, owner[version], owner[step])
            for step in range(self.rule.rows_per_chunk)
            for distance in range(1, self.rule.window + 1)
            for version in (self.rule.version(step, distance),)
            if owner[version] != owner[step]
        }
        return tuple(sorted(moves, key=lambda move: (move.version, move.source, move.target)))


def _check_cuts(axis: str, cuts: Sequence[int], stop: int) -> None:
    edges = (0, *cuts, stop)
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError(f"{axis} cuts must rise strictly between 0 and {stop}, got {tuple(cuts)}")


def _ranges(cuts: Sequence[int], stop: int) -> tuple[range, ...]:
    return tuple(range(low, high) for low, high in pairwise((0, *cuts, stop)))
