"""Pages: owned exactly, shared by count, evicted once, and never more than was promised."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from physis_stream.core.context_rule import Discipline
from physis_stream.core.kv_pages import PageLedger, PageTable, Retention
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.session import OpenChunk
from physis_stream.testing import strategies
from physis_stream.testing.toy_worlds import toy_rule, toy_spec


def table_of(spec, num_pages: int = 1000) -> tuple[PageTable, PageLedger]:
    ledger = PageLedger(num_pages)
    return PageTable(ledger, Retention.of(spec)), ledger


def test_allocated_pages_are_distinct_and_return_when_freed():
    ledger = PageLedger(10)
    assert ledger.reserve(10)
    first, second = ledger.allocate(4), ledger.allocate(6)
    assert sorted(first + second) == list(range(10))
    assert (ledger.num_free, ledger.num_owned) == (0, 10)
    ledger.free(first)
    ledger.check_integrity()
    assert set(ledger.allocate(4)) == set(first)


def test_a_shared_page_returns_only_when_its_last_owner_gives_it_up():
    ledger = PageLedger(4)
    assert ledger.reserve(4)
    pages = ledger.allocate(2)
    ledger.share(pages)
    ledger.free(pages)
    assert [ledger.owners(page) for page in pages] == [1, 1]
    assert ledger.num_free == 2
    ledger.free(pages)
    assert ledger.num_free == 4
    ledger.check_integrity()


def test_freeing_a_free_page_is_an_engine_fault():
    ledger = PageLedger(2)
    with pytest.raises(KeyError):
        ledger.free([0])


def test_running_out_is_an_engine_fault_because_room_was_promised():
    ledger = PageLedger(2)
    with pytest.raises(AssertionError, match="exhausted"):
        ledger.allocate(3)


def test_promises_never_exceed_the_pool_and_a_refused_one_changes_nothing():
    ledger = PageLedger(10)
    assert ledger.reserve(7)
    assert not ledger.reserve(4)
    assert ledger.num_reserved == 7
    assert ledger.reserve(3)
    ledger.unreserve(10)
    assert ledger.num_reserved == 0


def test_a_pool_cannot_have_a_negative_size():
    with pytest.raises(ValueError, match="negative"):
        PageLedger(-1)


def test_integrity_notices_pages_that_nobody_was_promised():
    ledger = PageLedger(4)
    ledger.allocate(1)
    with pytest.raises(AssertionError, match="promised"):
        ledger.check_integrity()


def test_clean_keeps_one_version_a_chunk_and_gives_denoising_steps_no_pages():
    table, _ = table_of(toy_spec(toy_rule(Discipline.CLEAN)))
    assert [table.write(1, step) for step in range(3)] == [(), (), ()]
    assert len(table.write(1, 3)) == 2


def test_a_version_is_written_once():
    table, _ = table_of(toy_spec(toy_rule(Discipline.CASCADE)))
    table.write(1, 0)
    with pytest.raises(AssertionError, match="twice"):
        table.write(1, 0)


def test_an_evicted_version_cannot_be_read():
    table, ledger = table_of(toy_spec(toy_rule(Discipline.CLEAN, window=2)))
    ledger.reserve(100)
    for chunk in range(4):
        table.write(chunk, 3)
        table.evict(chunk)
    with pytest.raises(KeyError):
        table.read(1, 3)
    assert table.read(2, 3)
    assert table.read(3, 3)
    ledger.check_integrity()


def test_eviction_happens_once_a_chunk_whatever_the_number_of_forwards():
    for discipline in Discipline:
        spec = toy_spec(toy_rule(discipline, window=3))
        retention = Retention.of(spec)
        leaving = list(itertools.chain.from_iterable(retention.leaving(chunk) for chunk in range(40)))
        assert len(set(leaving)) == len(leaving), f"{discipline} evicts something twice"


def test_sink_chunks_stay_for_ever():
    table, ledger = table_of(toy_spec(toy_rule(Discipline.CLEAN, window=2), sink=2))
    ledger.reserve(1000)
    for chunk in range(50):
        table.write(chunk, 3)
        table.evict(chunk)
    assert sorted(chunk for chunk, _, _ in table.entries()) == [0, 1, 48, 49]


def test_a_twin_shares_pages_and_writes_its_own():
    table, ledger = table_of(toy_spec(toy_rule(Discipline.CLEAN)))
    ledger.reserve(100)
    pages = table.write(0, 3)
    twin = table.share()
    assert twin.read(0, 3) == pages
    assert not set(table.write(1, 3)) & set(twin.write(1, 3))
    table.release()
    assert twin.read(0, 3) == pages
    assert ledger.owners(pages[0]) == 1
    twin.release()
    assert ledger.num_owned == 0
    ledger.check_integrity()


def test_releasing_twice_frees_once():
    table, ledger = table_of(toy_spec())
    table.write(1, 0)
    table.release()
    table.release()
    assert ledger.num_free == ledger.num_pages


@given(spec=strategies.world_specs(), hurry=st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_a_session_that_runs_as_far_ahead_as_its_rule_allows_never_exceeds_its_promise(spec, hurry):
    """The greediest wavefront there is: newest chunks first, only every `hurry`-th round the oldest moves."""
    world = ServedWorld(spec, PageLedger(100_000))
    table, flights, opened, most = PageTable(world.ledger, world.retention), [], 0, 0
    table.write(0, world.committed)
    table.evict(0)
    for turn in range(200):
        if len(flights) < world.depth and world.may_run(flights, len(flights)):
            opened += 1
            flights.append(OpenChunk(opened, None, 0, 0))  # type: ignore[arg-type]
        ready = [index for index in range(len(flights)) if world.may_run(flights, index)]
        for index in reversed(ready):
            if index or turn % hurry == 0:
                table.write(flights[index].chunk, flights[index].done)
        most = max(most, table.num_pages)
        for index in reversed(ready):
            if index or turn % hurry == 0:
                flights[index].done += 1
        if flights and flights[0].done == world.rows:
            table.evict(flights.pop(0).chunk)
    assert most <= world.retention.pages_per_session


@given(spec=strategies.world_specs())
@settings(max_examples=200, deadline=None)
def test_what_is_kept_at_a_boundary_is_what_later_chunks_can_read_and_no_more(spec):
    world = ServedWorld(spec, PageLedger(100_000))
    table = PageTable(world.ledger, world.retention)
    finished = 25
    for chunk in range(finished + 1):
        for step in range(world.rows) if chunk else (world.committed,):
            table.write(chunk, step)
        table.evict(chunk)
    read = {
        (earlier, world.version(step, later, earlier))
        for later in range(finished + 1, finished + world.window + 2)
        for step in range(world.rows)
        for earlier in range(finished + 1)
        if world.attends(later, earlier)
    }
    assert {(chunk, version) for chunk, version, _ in table.entries()} == read
    assert table.num_pages <= world.retention.pages_at_boundary
