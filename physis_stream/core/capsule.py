"""Core's part of a session's state at a committed boundary, as plain data: enough to fork, restore, replay or move it.

The tensors (KV pages, VAE state, newest latent) are the runtime's part; `kv` says which pages hold which version
here, and on another machine the pages are numbered anew in the same order. It knows no live objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from physis_stream.core.commands import Pace
from physis_stream.core.ids import ChunkIndex, Epoch, PageId
from physis_stream.core.session import Session
from physis_stream.core.spec import Action


@dataclass(frozen=True, slots=True)
class KvEntry:
    """One version of one chunk's KV and the pages that hold it."""

    chunk: ChunkIndex
    version: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Capsule:
    """`next_chunk` is the cursor: the first chunk not made yet.

    Noise follows from `seed` and the chunk's number alone.
    """

    world: str
    pace: Pace
    seed: int
    epoch: Epoch
    next_chunk: ChunkIndex
    num_released: int
    held: Action
    prompt: str | None
    kv: tuple[KvEntry, ...]

    @classmethod
    def of(cls, session: Session) -> Capsule:
        """The state of a session at a committed boundary; the caller has made sure that it is at one."""
        assert session.at_boundary, "a capsule is taken at a committed boundary"
        return cls(
            world=session.world.spec.world,
            pace=session.pace,
            seed=session.seed,
            epoch=session.epoch,
            next_chunk=session.next_chunk,
            num_released=session.num_released,
            held=session.inbox.held,
            prompt=session.inbox.prompt,
            kv=tuple(KvEntry(ChunkIndex(c), v, pages) for c, v, pages in session.table.entries()),
        )

    def to_plain(self) -> dict[str, Any]:
        """As JSON would carry it: dicts, lists, numbers, strings."""
        plain = asdict(self)
        plain["pace"] = self.pace.value
        plain["held"] = list(self.held)
        plain["kv"] = [[entry.chunk, entry.version, list(entry.pages)] for entry in self.kv]
        return plain

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Capsule:
        """The inverse of `to_plain`; raises KeyError or ValueError for what it did not make."""
        return cls(
            world=plain["world"],
            pace=Pace(plain["pace"]),
            seed=plain["seed"],
            epoch=Epoch(plain["epoch"]),
            next_chunk=ChunkIndex(plain["next_chunk"]),
            num_released=plain["num_released"],
            held=tuple(plain["held"]),
            prompt=plain["prompt"],
            kv=tuple(KvEntry(ChunkIndex(c), v, tuple(PageId(p) for p in pages)) for c, v, pages in plain["kv"]),
        )
