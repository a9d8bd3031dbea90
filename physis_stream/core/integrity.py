"""Checks that the engine core's books agree with each other; for tests, and for whoever suspects them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from physis_stream.core.ids import PageId
from physis_stream.core.kv_pages import PageLedger, PageTable
from physis_stream.core.roster import Roster
from physis_stream.core.served_world import ServedWorld
from physis_stream.core.session import QueuedStep, Session, State


def check_integrity(roster: Roster, num_runnable: int) -> None:
    """Raise AssertionError unless pages, promises, sessions and the run queue agree."""
    ledgers = {id(world.ledger): world.ledger for world in roster.worlds.values()}
    for ledger in ledgers.values():
        ledger.check_integrity()
        _check_pages(roster, ledger)
    for session in roster.sessions.values():
        _check_session(session)
    assert roster.queue.keys() == {s.id for s in roster.sessions.values() if s.state is State.QUEUED}, "queue is off"
    assert num_runnable == sum(len(s.waiting) for s in roster.sessions.values()), "the run queue holds a stranger"
    assert roster.outstanding is not None or not (roster.held_tables or roster.held_ends), "an idle core holds back"


def _check_pages(roster: Roster, ledger: PageLedger) -> None:
    """Each page has exactly the owners that name it, and each promise has somebody to whom it was made."""
    named: Counter[PageId] = Counter()
    for world, table in _tables(roster):
        if world.ledger is ledger:
            for _, _, pages in table.entries():
                named.update(pages)
    assert len(named) == ledger.num_owned, "a page is owned by nobody here"
    assert all(ledger.owners(page) == count for page, count in named.items()), "a page's owners are miscounted"
    promised = sum(pages for world, pages in _promises(roster) if world.ledger is ledger)
    assert promised == ledger.num_reserved, f"{ledger.num_reserved} pages are promised, {promised} accounted for"


def _tables(roster: Roster) -> Iterator[tuple[ServedWorld, PageTable]]:
    for session in roster.sessions.values():
        yield session.world, session.table
    for snapshot in roster.snapshots.values():
        yield snapshot.world, snapshot.table
    yield from ((session.world, table) for session, table in roster.held_tables)


def _promises(roster: Roster) -> Iterator[tuple[ServedWorld, int]]:
    for session in roster.sessions.values():
        if session.state is not State.QUEUED:
            yield session.world, session.world.retention.pages_per_session
        for entry in session.agenda:
            if not isinstance(entry, QueuedStep):
                yield session.world, entry.promised_pages
    for snapshot in roster.snapshots.values():
        yield snapshot.world, snapshot.promised_pages
    for session, _ in roster.held_ends:
        yield session.world, session.world.retention.pages_per_session


def _check_session(session: Session) -> None:
    world, chunks = session.world, [flight.chunk for flight in session.in_flight]
    assert len(chunks) <= world.depth, f"{session.id} has more chunks in flight than its rule allows"
    assert chunks == list(range(session.finished + 1, session.next_chunk)), f"{session.id} has a gap in flight"
    assert session.table.num_pages <= world.retention.pages_per_session, f"{session.id} owns more than was promised"
    done = [flight.done for flight in session.in_flight]
    assert all(a >= b for a, b in pairwise(done)), f"{session.id} has a chunk overtaken"
    if session.state in (State.QUEUED, State.FAILED):
        assert not chunks, f"{session.id} is {session.state} and has work in flight"
        assert session.table.num_pages == 0, f"{session.id} is {session.state} and owns pages"
    for flight in session.in_flight:
        assert not (flight.running and flight.chunk in session.waiting), f"{session.id} runs a row that waits as well"
    assert all(item.live for item in session.waiting.values()), f"{session.id} waits with a dead item"
