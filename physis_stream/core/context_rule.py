"""The context rule: for step s of chunk c, which version of chunk c-d is attended to?

One function of the model's profile from which everything else about a KV discipline follows: the rows a chunk costs,
what a work item waits for, how long each version of a chunk's KV must be kept, and where a model may legally be cut.
It knows no tensors and no sessions; training masks, the dense oracle, the page ledger and the scheduler all ask the
same object.

Versions of one chunk's KV:

    version   0      1      ...    S-1     S
    written   step 0 step 1        step S-1  commit row (clean KV at t close to 0; only if the rule commits)

A *primed* chunk (an image that the session was opened with) is known clean from the start: it has the committed
version only, and every step attends to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class Discipline(StrEnum):
    """Names of the rules, as written in a model's profile."""

    CLEAN = "clean"
    CASCADE = "cascade"
    SAME_STEP = "same_step"


@dataclass(frozen=True, slots=True)
class ContextRule:
    """Which version of an earlier chunk a step attends to.

    `num_steps` is S, the denoising steps of a chunk. `commit` adds one row a chunk that writes clean KV; `clean`
    always has it, `same_step` never does, `cascade` may do without (then the last step's KV stands in for the
    committed one). `window` counts the earlier chunks that may be attended to, the chunk itself not included.
    """

    discipline: Discipline
    num_steps: int
    window: int
    commit: bool

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise ValueError(f"num_steps must be at least 1, got {self.num_steps}")
        if self.window < 0:
            raise ValueError(f"window must not be negative, got {self.window}")
        if self.discipline is Discipline.CLEAN and not self.commit:
            raise ValueError("the clean discipline needs its commit row: set commit=true")
        if self.discipline is Discipline.SAME_STEP and self.commit:
            raise ValueError("the same_step discipline has no commit row: set commit=false")

    @property
    def rows_per_chunk(self) -> int:
        """Forwards that one chunk costs: S, and one more if the rule commits."""
        return self.num_steps + int(self.commit)

    @property
    def committed_version(self) -> int:
        """The version that stands for the finished chunk."""
        return self.num_steps if self.commit else self.num_steps - 1

    def version(self, step: int, distance: int, *, primed: bool = False) -> int:
        """The version of the chunk `distance` back that `step` attends to; `step` = S is the commit row."""
        if not 0 <= step < self.rows_per_chunk:
            raise ValueError(f"step must lie in 0..{self.rows_per_chunk - 1}, got {step}")
        if distance < 1:
            raise ValueError(f"distance must be at least 1, got {distance}")
        if primed or self.discipline is Discipline.CLEAN:
            return self.committed_version
        if self.discipline is Discipline.SAME_STEP:
            return step
        return min(step + distance - 1, self.committed_version)

    def reach(self, version: int) -> int:
        """The greatest distance at which `version` is still attended to by any step; 0 if never."""
        return max(
            (d for d in range(1, self.window + 1) for s in range(self.rows_per_chunk) if self.version(s, d) == version),
            default=0,
        )

    def dependencies(self, chunk: int, step: int) -> Iterator[tuple[int, int]]:
        """The (chunk, step) items that must be complete before this one: its own earlier step, and the KV it reads.

        Chunks below 0 are not listed; what lies before the epoch does not exist.
        """
        if step > 0:
            yield chunk, step - 1
        for distance in range(1, min(self.window, chunk) + 1):
            yield chunk - distance, self.version(step, distance)
