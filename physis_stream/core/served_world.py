"""A world as the engine core serves it: its spec, and everything that follows from the context rule, worked out once.

Which version a step attends to, when an item may run, what it reads. Rules are asked for each work item, so the
answers are tabulated. It knows no scheduling: may-run says that the facts allow an item, not that its time has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from physis_stream.core.ids import ChunkIndex
from physis_stream.core.kv_pages import PageLedger, PageTable, Retention
from physis_stream.core.pipeline import wavefront_depth
from physis_stream.core.plan import ContextChunk
from physis_stream.core.spec import WorldSpec


class Flight(Protocol):
    """What may-run needs to know of a chunk in flight."""

    chunk: ChunkIndex
    primed: bool
    done: int


class ServedWorld:
    """Read-only tables of one world, and the page ledger of its shape bucket."""

    def __init__(self, spec: WorldSpec, ledger: PageLedger) -> None:
        rule = spec.rule
        self.spec = spec
        self.ledger = ledger
        self.retention = Retention.of(spec)
        self.rows = rule.rows_per_chunk
        self.num_steps = rule.num_steps
        self.committed = rule.committed_version
        self.depth = wavefront_depth(rule)
        self.window = rule.window
        self.chunk_ns = spec.chunk_ns
        self.commit_reader = self._first_commit_reader()
        self._versions = tuple(
            tuple(rule.version(step, distance) for distance in range(1, rule.window + 1)) for step in range(self.rows)
        )

    def _first_commit_reader(self) -> tuple[int, int]:
        """How soon a commit row is needed: by the chunk `distance` on, `rows` denoising steps before that is ready."""
        for distance in range(1, self.window + 1):
            for step in range(self.num_steps):
                if self.spec.rule.version(step, distance) == self.committed:
                    return distance, self.num_steps - step
        return 1, 0

    @property
    def session_bytes(self) -> int:
        """Memory that one session is admitted with."""
        return self.retention.pages_per_session * self.spec.page_bytes + self.spec.fixed_bytes

    def snapshot_bytes(self, num_pages: int) -> int:
        return num_pages * self.spec.page_bytes + self.spec.fixed_bytes

    def version(self, step: int, chunk: int, earlier: int) -> int:
        """The version of chunk `earlier` that (chunk, step) attends to; committed for primed and sink chunks."""
        distance = chunk - earlier
        if earlier == 0 or distance > self.window:
            return self.committed
        return self._versions[step][distance - 1]

    def may_run(self, in_flight: Sequence[Flight], index: int) -> bool:
        """If the next row of in_flight[index] finds all that it reads; index = len asks for one not yet open.

        Rows of one session also keep strictly behind the same step of the chunk before, whatever the rule allows.
        """
        if index < len(in_flight):
            chunk, step = in_flight[index].chunk, in_flight[index].done
        else:
            chunk, step = ChunkIndex(in_flight[-1].chunk + 1 if in_flight else 0), 0
        for earlier in in_flight[:index]:
            if earlier.primed or earlier.done <= step:
                return False
            if self.attends(chunk, earlier.chunk) and earlier.done <= self.version(step, chunk, earlier.chunk):
                return False
        return True

    def attends(self, chunk: int, earlier: int) -> bool:
        """If `earlier` is in view of `chunk`: within the window, or a sink."""
        return chunk - earlier <= self.window or earlier < self.spec.sink

    def context(self, table: PageTable, chunk: int, step: int) -> tuple[ContextChunk, ...]:
        """What (chunk, step) reads: sinks beyond the window, then the window, oldest first, densely positioned."""
        window_start = max(0, chunk - self.window)
        view = (*range(min(self.spec.sink, window_start)), *range(window_start, chunk))
        context = []
        for position, earlier in enumerate(view):
            version = self.version(step, chunk, earlier)
            context.append(ContextChunk(ChunkIndex(earlier), version, position, table.read(earlier, version)))
        return tuple(context)
