"""Who owns which page of KV memory: a ledger of page ids, and one table a session. It knows ids and counts, no memory.

The KV of one (chunk, version) is written exactly once and never changed, so a fork shares pages by reference count
and writes its own chunks to pages of its own. How long a version is kept follows from the context rule: version v of
chunk x is freed when chunk x + reach(v) has finished, and that is the one moment of eviction.

    chunk        0        x-window ...      x        x+1 ...
                 [sink]   [ window of c   ) c in flight
    versions     committed only             0 1 .. S as its rows run
                 never freed                freed when chunk x + reach(v) finishes

Reservation: a session is admitted with `Retention.pages_per_session`, the most it can ever own, so it never runs out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from physis_stream.core.context_rule import ContextRule
from physis_stream.core.ids import ChunkIndex, PageId
from physis_stream.core.pipeline import wavefront_depth
from physis_stream.core.spec import WorldSpec


class PageLedger:
    """Page ids 0..num_pages-1 with reference counts. Freed pages are reused last-in first-out."""

    def __init__(self, num_pages: int) -> None:
        if num_pages < 0:
            raise ValueError(f"num_pages must not be negative, got {num_pages}")
        self.num_pages = num_pages
        self._free = [PageId(page) for page in range(num_pages - 1, -1, -1)]
        self._owners: dict[PageId, int] = {}
        self._reserved = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_owned(self) -> int:
        """Distinct pages with at least one owner."""
        return len(self._owners)

    @property
    def num_reserved(self) -> int:
        return self._reserved

    def reserve(self, num_pages: int) -> bool:
        """Promise pages to an owner; False (and nothing changed) when the pool cannot keep the promise."""
        if self._reserved + num_pages > self.num_pages:
            return False
        self._reserved += num_pages
        return True

    def unreserve(self, num_pages: int) -> None:
        """Take back a promise that `reserve` made."""
        assert 0 <= num_pages <= self._reserved, "more pages unreserved than were reserved"
        self._reserved -= num_pages

    def allocate(self, num_pages: int) -> tuple[PageId, ...]:
        """Take pages with one owner each. Reservation is the caller's duty: running out here is an engine fault."""
        assert num_pages <= len(self._free), f"page pool exhausted: {num_pages} wanted, {len(self._free)} free"
        pages = tuple(self._free.pop() for _ in range(num_pages))
        for page in pages:
            self._owners[page] = 1
        return pages

    def share(self, pages: Iterable[PageId]) -> None:
        """Add an owner to each page."""
        for page in pages:
            self._owners[page] += 1

    def free(self, pages: Iterable[PageId]) -> None:
        """Remove an owner from each page; a page without owners returns to the pool."""
        for page in pages:
            owners = self._owners[page] - 1
            if owners:
                self._owners[page] = owners
            else:
                del self._owners[page]
                self._free.append(page)

    def owners(self, page: PageId) -> int:
        return self._owners.get(page, 0)

    def check_integrity(self) -> None:
        """Raise AssertionError unless free + owned = total, nothing is both, and counts are positive."""
        assert len(self._free) + len(self._owners) == self.num_pages, "free + owned pages differ from the total"
        assert len(set(self._free)) == len(self._free), "a page is free twice"
        assert not self._owners.keys() & set(self._free), "a page is free and owned"
        assert all(count > 0 for count in self._owners.values()), "an owned page has no owner"
        assert 0 <= self._reserved <= self.num_pages, "more pages are promised than exist"
        assert len(self._owners) <= self._reserved, "more pages are owned than were promised"


@dataclass(frozen=True, slots=True)
class Retention:
    """How long versions are kept, derived once from a world's rule and sink.

    `reach[v]` is in chunks; 0: never read.
    """

    reach: tuple[int, ...]
    committed: int
    sink: int
    in_flight: tuple[int, ...]
    pages_per_chunk: int

    @classmethod
    def of(cls, spec: WorldSpec) -> Retention:
        rule = spec.rule
        return cls(
            reach=tuple(rule.reach(version) for version in range(rule.rows_per_chunk)),
            committed=rule.committed_version,
            sink=spec.sink,
            in_flight=_in_flight(rule),
            pages_per_chunk=spec.pages_per_chunk,
        )

    def keeps(self, chunk: int, version: int) -> bool:
        """If anybody will read this version; otherwise it is given no pages at all."""
        return self.reach[version] > 0 or (version == self.committed and chunk < self.sink)

    def leaving(self, finished: int) -> Iterator[tuple[ChunkIndex, int]]:
        """The (chunk, version) that nobody reads any more once chunk `finished` has finished."""
        for version, reach in enumerate(self.reach):
            chunk = finished - reach
            if reach > 0 and chunk >= 0 and not (version == self.committed and chunk < self.sink):
                yield ChunkIndex(chunk), version

    @property
    def pages_at_boundary(self) -> int:
        """The most pages a session owns when no chunk is in flight: finished chunks in reach, and the sink."""
        return (sum(self.reach) + self.sink) * self.pages_per_chunk

    @property
    def pages_per_session(self) -> int:
        """The most pages a session ever owns: those at a boundary, and those of the wavefront's chunks."""
        in_flight = sum(
            1 for version in self.in_flight if self.reach[version] > 0 or (version == self.committed and self.sink > 0)
        )
        return self.pages_at_boundary + in_flight * self.pages_per_chunk


def _in_flight(rule: ContextRule) -> tuple[int, ...]:
    """The versions that can exist of chunks in flight while the oldest of them is not finished, over all of them.

    The oldest can be at its last row. A chunk k behind it can have run step s if what s reads of the oldest is
    complete.
    """
    last = rule.rows_per_chunk - 1
    behind = [
        step
        for distance in range(1, wavefront_depth(rule))
        for step in range(last)
        if distance > rule.window or rule.version(step, distance) < last
    ]
    return (*range(last + 1), *behind)


class PageTable:
    """One owner's map (chunk, version) -> pages. Entries are written once; sharing adds an owner, never a copy."""

    __slots__ = ("_entries", "_ledger", "_retention")

    def __init__(self, ledger: PageLedger, retention: Retention) -> None:
        self._ledger = ledger
        self._retention = retention
        self._entries: dict[tuple[int, int], tuple[PageId, ...]] = {}

    @property
    def num_pages(self) -> int:
        return len(self._entries) * self._retention.pages_per_chunk

    def entries(self) -> Iterator[tuple[int, int, tuple[PageId, ...]]]:
        """All (chunk, version, pages), in the order of writing."""
        for (chunk, version), pages in self._entries.items():
            yield chunk, version, pages

    def write(self, chunk: int, version: int) -> tuple[PageId, ...]:
        """Pages for this version's KV; empty if nobody will read it. Each version is asked for once."""
        if not self._retention.keeps(chunk, version):
            return ()
        assert (chunk, version) not in self._entries, f"chunk {chunk} version {version} is written twice"
        pages = self._ledger.allocate(self._retention.pages_per_chunk)
        self._entries[chunk, version] = pages
        return pages

    def read(self, chunk: int, version: int) -> tuple[PageId, ...]:
        """Pages that hold this version; KeyError if it was never written or is evicted (an engine fault)."""
        return self._entries[chunk, version]

    def evict(self, finished: int) -> int:
        """Free what leaves reach when chunk `finished` has finished; return the number of entries freed."""
        freed = 0
        for key in self._retention.leaving(finished):
            pages = self._entries.pop(key, None)
            if pages is not None:
                self._ledger.free(pages)
                freed += 1
        return freed

    def share(self) -> PageTable:
        """A second owner of every page: the start of a fork or snapshot."""
        twin = PageTable(self._ledger, self._retention)
        twin._entries = dict(self._entries)
        for pages in self._entries.values():
            self._ledger.share(pages)
        return twin

    def release(self) -> None:
        """Give up every page. Idempotent."""
        for pages in self._entries.values():
            self._ledger.free(pages)
        self._entries.clear()
