"""Small world specs for tests: real rules and page arithmetic, no model behind them."""

from __future__ import annotations

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.core.spec import ActionSpec, Combine, WorldSpec


def toy_rule(
    discipline: Discipline = Discipline.CASCADE, *, num_steps: int = 3, window: int = 4, commit: bool | None = None
) -> ContextRule:
    """A rule of this discipline; `commit` defaults to what the discipline needs, or prefers."""
    if commit is None:
        commit = discipline is not Discipline.SAME_STEP
    return ContextRule(discipline, num_steps, window, commit)


def toy_action(dim: int = 1, combine: Combine = Combine.LATEST) -> ActionSpec:
    """Actions in -1..1 at rest in 0."""
    names = tuple(f"axis{index}" for index in range(dim))
    return ActionSpec((-1.0,) * dim, (1.0,) * dim, (0.0,) * dim, names, combine)


def toy_spec(
    rule: ContextRule | None = None,
    *,
    world: str = "toy",
    fps: float = 10.0,
    chunk_frames: int = 1,
    sink: int = 0,
    pages_per_chunk: int = 2,
    combine: Combine = Combine.LATEST,
) -> WorldSpec:
    """A world of 8x8 pixels; its shape key is its name."""
    return WorldSpec(
        world=world,
        rule=rule or toy_rule(),
        action=toy_action(combine=combine),
        fps=fps,
        chunk_frames=chunk_frames,
        height=8,
        width=8,
        sink=sink,
        pages_per_chunk=pages_per_chunk,
        page_bytes=64,
        fixed_bytes=256,
        shape_key=world,
    )
