"""Hypothesis strategies for worlds, limits and costs; needs `hypothesis`, which the package itself does not.

They stay small on purpose: three steps, windows of a few chunks and few pages reach every boundary within a few ticks.
"""

from __future__ import annotations

from hypothesis import strategies as st

from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.core.limits import Limits
from physis_stream.core.spec import Combine, WorldSpec
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.toy_worlds import toy_spec


@st.composite
def context_rules(draw: st.DrawFn, max_steps: int = 4, max_window: int = 5) -> ContextRule:
    """Any legal rule up to these sizes, windows of no chunk included."""
    discipline = draw(st.sampled_from(Discipline))
    commit = {Discipline.CLEAN: st.just(True), Discipline.SAME_STEP: st.just(False)}.get(discipline, st.booleans())
    return ContextRule(
        discipline, draw(st.integers(1, max_steps)), draw(st.integers(0, max_window)), commit=draw(commit)
    )


@st.composite
def world_specs(draw: st.DrawFn, world: str = "toy") -> WorldSpec:
    """A toy world of any rule, with or without sinks, at 5 to 50 chunks a second."""
    return toy_spec(
        draw(context_rules()),
        world=world,
        fps=draw(st.sampled_from([5.0, 10.0, 50.0])),
        sink=draw(st.integers(0, 3)),
        pages_per_chunk=draw(st.integers(1, 3)),
        combine=draw(st.sampled_from(Combine)),
    )


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    """Few sessions, a short queue, few snapshots, narrow batches: everything runs out soon."""
    return Limits(
        max_sessions=draw(st.integers(1, 6)),
        max_queued=draw(st.integers(0, 3)),
        max_snapshots=draw(st.integers(0, 2)),
        max_rows=draw(st.integers(1, 8)),
        max_queued_steps=draw(st.integers(1, 6)),
    )


@st.composite
def costs(draw: st.DrawFn) -> FakeCosts:
    """From a device that is far from busy to one that cannot keep up."""
    return FakeCosts(
        base_ns=draw(st.sampled_from([0, 100_000, 5_000_000, 40_000_000])),
        row_ns=draw(st.sampled_from([0, 100_000, 3_000_000])),
        decode_ns=draw(st.sampled_from([0, 1_000_000])),
        overhead_ns=draw(st.sampled_from([0, 50_000])),
    )
