"""What follows from a world's rule, tabulated: checked against the rule itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_stream.core.context_rule import Discipline
from physis_stream.core.ids import ChunkIndex
from physis_stream.core.kv_pages import PageLedger, PageTable
from physis_stream.core.plan import Control
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.session import OpenChunk
from physis_stream.testing import strategies
from physis_stream.testing.toy_worlds import toy_rule, toy_spec

NOTHING = Control(())


def served(spec) -> ServedWorld:
    return ServedWorld(spec, PageLedger(10_000))


def flight(chunk: int, done: int, *, primed: bool = False) -> OpenChunk:
    return OpenChunk(ChunkIndex(chunk), NOTHING, 0, 0, primed=primed, done=done)


@pytest.mark.parametrize(
    ("discipline", "commit", "window", "reader"),
    [
        (Discipline.CLEAN, True, 4, (1, 3)),
        (Discipline.CASCADE, True, 4, (2, 1)),
        (Discipline.CASCADE, False, 4, (1, 1)),
        (Discipline.SAME_STEP, False, 4, (1, 1)),
        (Discipline.CASCADE, True, 1, (1, 0)),
    ],
)
def test_how_soon_committed_kv_is_needed(discipline, commit, window, reader):
    """(chunks on, denoising steps from the first that reads it to the end of its chunk)."""
    assert served(toy_spec(toy_rule(discipline, window=window, commit=commit))).commit_reader == reader


@given(spec=strategies.world_specs(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_row_may_run_exactly_when_its_dependencies_are_complete_and_it_overtakes_nobody(spec, data):
    world = served(spec)
    first = data.draw(st.integers(1, 6))
    flights = [
        flight(first + index, data.draw(st.integers(0, world.rows - 1)))
        for index in range(data.draw(st.integers(1, world.depth)))
    ]
    index = data.draw(st.integers(0, len(flights) - 1))
    me, done = flights[index], {other.chunk: other.done for other in flights}
    complete = [
        done.get(ChunkIndex(earlier), world.rows) > version
        for earlier, version in spec.rule.dependencies(me.chunk, me.done)
        if earlier not in (0, me.chunk)
    ]
    sinks = [
        done.get(ChunkIndex(earlier), world.rows) > world.committed
        for earlier in range(1, min(spec.sink, me.chunk - world.window))
    ]
    behind = [other.done > me.done for other in flights[:index]]
    assert world.may_run(flights, index) is all([*complete, *sinks, *behind])


@given(spec=strategies.world_specs())
@settings(max_examples=100, deadline=None)
def test_nothing_runs_before_the_first_chunk_is_primed(spec):
    world = served(spec)
    flights = [flight(0, 0, primed=True)]
    assert world.may_run(flights, 0)
    assert not world.may_run(flights, 1)


@given(spec=strategies.world_specs(), chunk=st.integers(1, 20), data=st.data())
@settings(max_examples=200, deadline=None)
def test_context_is_sink_then_window_oldest_first_and_densely_positioned(spec, chunk, data):
    world = served(spec)
    table = PageTable(world.ledger, world.retention)
    written = {}
    for earlier in range(chunk):
        for version in (world.committed,) if earlier == 0 else range(world.rows):
            if world.retention.keeps(earlier, version):
                written[earlier, version] = table.write(earlier, version)
    step = data.draw(st.integers(0, world.rows - 1))
    context = world.context(table, chunk, step)
    window = range(max(0, chunk - spec.rule.window), chunk)
    sinks = [earlier for earlier in range(spec.sink) if earlier < window.start]
    assert [entry.chunk for entry in context] == [*sinks, *window]
    assert [entry.position for entry in context] == list(range(len(context)))
    for entry in context:
        expected = (
            spec.rule.version(step, chunk - entry.chunk, primed=entry.chunk == 0)
            if entry.chunk in window
            else spec.rule.committed_version
        )
        assert entry.version == expected
        assert entry.pages == written[entry.chunk, entry.version]
