"""The plan of one tick, as data, and its result. A plan can be recorded, replayed and checked without a model.

    Plan = state ops (in order)  ->  one batch of rows  ->  decodes of the chunks whose last step is among the rows

It knows no tensors and no devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from physis_stream.core.ids import ChunkIndex, Epoch, EventId, PageId, SessionId, SnapshotId, TickIndex
from physis_stream.core.spec import Action


class Role(StrEnum):
    """DENOISE: step s of S. COMMIT: clean KV of a finished chunk. PRIME: clean KV of a given latent (chunk 0)."""

    DENOISE = "denoise"
    COMMIT = "commit"
    PRIME = "prime"


@dataclass(frozen=True, slots=True)
class Control:
    """What a chunk was opened with; fixed for all its steps."""

    action: Action
    prompt: str | None = None
    applied: tuple[EventId, ...] = ()


@dataclass(frozen=True, slots=True)
class ContextChunk:
    """One earlier chunk that a row attends to: its pages, sink first then the window in logical order, oldest first.

    `position` is the window-relative chunk position for RoPE (0 for the oldest in view).
    """

    chunk: ChunkIndex
    version: int
    position: int
    pages: tuple[PageId, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One work item W(session, chunk, step) of a batch.

    `step` is also the version of the KV that it makes: PRIME and COMMIT make the rule's committed version. `context`
    is what it reads, `write` the pages that its own KV goes to (empty where no later row reads this version, as the
    denoising steps of the clean discipline), `position` its own window-relative position (= number of chunks in
    view), `noise_key` the address of the noise that makes this step's input: at step 0 the start noise, later the
    re-noising of x0; None for PRIME and COMMIT, whose inputs are clean.
    """

    session: SessionId
    epoch: Epoch
    chunk: ChunkIndex
    step: int
    role: Role
    position: int
    context: tuple[ContextChunk, ...]
    write: tuple[PageId, ...]
    control: Control
    noise_key: int | None


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode this chunk after the rows of the same tick; `first` starts the VAE state afresh."""

    session: SessionId
    epoch: Epoch
    chunk: ChunkIndex
    first: bool


@dataclass(frozen=True, slots=True)
class StartState:
    """Make a session's tensors anew for an epoch: start latent by seed or from its image, fresh VAE state."""

    session: SessionId
    epoch: Epoch
    seed: int


@dataclass(frozen=True, slots=True)
class CloneState:
    """Copy tensors at a committed boundary to another session or snapshot, by reference where immutable."""

    source: SessionId | SnapshotId
    target: SessionId | SnapshotId


@dataclass(frozen=True, slots=True)
class DropState:
    """Forget the tensors of a session or snapshot."""

    target: SessionId | SnapshotId


StateOp = StartState | CloneState | DropState


@dataclass(frozen=True, slots=True)
class Plan:
    """One tick on one worker.

    All rows share `shape_key`. May hold state ops alone, of any shape; then `shape_key` is empty.
    """

    tick: TickIndex
    shape_key: str
    ops: tuple[StateOp, ...]
    rows: tuple[Row, ...]
    decodes: tuple[Decode, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """Outcome of a plan. `failed` maps sessions to the reason; rows of other sessions count as done.

    A snapshot whose CloneState failed is named there as well, by its id.

    Durations are wall time in nanoseconds; `model_ns` covers rows and decodes, the rest of the tick is overhead.
    """

    tick: TickIndex
    failed: tuple[tuple[SessionId | SnapshotId, str], ...] = ()
    rows_ns: int = 0
    decode_ns: int = 0
