"""The tensors that sessions and snapshots own, beside KV pages: decoder state, start latent, latents of chunks in
flight.

    decoder state   one slab, a slot for each session or snapshot        (slots, ...)     dtype of the codec
    latents         one slab, a slot for each chunk in flight            (slots, 2, C, H, W)  fp32: estimate, noise
    start latents   immutable, shared by reference                       (C, H, W)        fp32

Slabs grow by doubling and are indexed by slot, so that gathering and scattering the rows of a tick is one operation
each. It obeys state ops; who may do what, and when, was decided by core. Nothing here is read before it was written
for its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from physis_stream.core.ids import SessionId, SnapshotId
from physis_stream.core.plan import CloneState, DropState, StartState, StateOp

Owner = SessionId | SnapshotId


class Slab:
    """Rows of equal shape with a free list. `tensor` may be replaced when it grows: index it, never keep it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device, capacity: int = 8) -> None:
        self.tensor = torch.zeros(capacity, *shape, dtype=dtype, device=device)
        self._free = list(range(capacity - 1, -1, -1))

    @property
    def num_used(self) -> int:
        return self.tensor.shape[0] - len(self._free)

    def take(self) -> int:
        """Return a free slot; its content is whatever the last owner left."""
        if not self._free:
            size = self.tensor.shape[0]
            self.tensor = torch.cat((self.tensor, torch.zeros_like(self.tensor)))
            self._free = list(range(2 * size - 1, size - 1, -1))
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        self._free.append(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError if a slot is free twice or does not exist."""
        assert len(set(self._free)) == len(self._free), "a slot is free twice"
        assert all(0 <= slot < self.tensor.shape[0] for slot in self._free), "a free slot does not exist"


@dataclass(slots=True)
class _Owned:
    """What one session or snapshot owns. `held` is the latent of the image it was opened with, if any."""

    decoder_slot: int
    start: Tensor
    held: Tensor | None


class SessionStore:
    """Owners and their slots. `start_latent(seed)` gives the world's start for a seed; `fresh_state` one decoder
    state.
    """

    def __init__(self, latent_shape: Sequence[int], fresh_state: Tensor, start_latent: Callable[[int], Tensor]) -> None:
        self._start_latent, self._fresh_state = start_latent, fresh_state
        self.decoder = Slab(fresh_state.shape, fresh_state.dtype, fresh_state.device)
        self.latents = Slab((2, *latent_shape), torch.float32, fresh_state.device)
        self._owned: dict[Owner, _Owned] = {}
        self._in_flight: dict[Owner, dict[int, int]] = {}
        self._images: dict[SessionId, Tensor] = {}

    def __len__(self) -> int:
        return len(self._owned)

    def hold_image(self, session: SessionId, latent_CHW: Tensor) -> None:
        """Keep the latent of an image for a session that is about to start; `release_image` or `DropState` lets it
        go.
        """
        self._images[session] = latent_CHW

    def release_image(self, session: SessionId) -> None:
        """Let go of an image whose session never started; a no-op otherwise."""
        self._images.pop(session, None)

    def apply(self, op: StateOp) -> None:
        """Obey one state op. Raises KeyError for a source that has no state (an engine fault)."""
        match op:
            case StartState():
                self._start(op)
            case CloneState():
                self._clone(op.source, op.target)
            case DropState():
                self.drop(op.target)

    def _start(self, op: StartState) -> None:
        before = self._owned.get(op.session)
        held = before.held if before is not None else self._images.pop(op.session, None)
        start = held if held is not None else self._start_latent(op.seed)
        slot = before.decoder_slot if before is not None else self.decoder.take()
        self.decoder.tensor[slot] = self._fresh_state
        self._owned[op.session] = _Owned(slot, start, held)
        self._forget_chunks(op.session)

    def _clone(self, source: Owner, target: Owner) -> None:
        origin = self._owned[source]
        before = self._owned.get(target)
        slot = before.decoder_slot if before is not None else self.decoder.take()
        self.decoder.tensor[slot] = self.decoder.tensor[origin.decoder_slot]
        self._owned[target] = _Owned(slot, origin.start, origin.held)
        self._forget_chunks(target)

    def drop(self, owner: Owner) -> None:
        """Free everything of an owner; a no-op for one that has nothing."""
        owned = self._owned.pop(owner, None)
        if owned is not None:
            self.decoder.give_back(owned.decoder_slot)
        self._forget_chunks(owner)
        self._images.pop(SessionId(owner), None)

    def decoder_slot(self, session: SessionId) -> int:
        """The slot of a session's decoder state."""
        return self._owned[session].decoder_slot

    def chunk_slots(self, keys: Sequence[tuple[SessionId, int]]) -> Tensor:
        """The slots of these (session, chunk) in flight, as an index tensor.

        A slot is taken at first use; chunk 0 then begins as the start latent, the others as zeros.
        """
        slots, fresh = [], []
        for session, chunk in keys:
            chunks = self._in_flight.setdefault(session, {})
            slot = chunks.get(chunk)
            if slot is None:
                slot = chunks[chunk] = self.latents.take()
                fresh.append((slot, session, chunk))
            slots.append(slot)
        if fresh:
            self.latents.tensor[[slot for slot, _, _ in fresh]] = 0.0
        for slot, session, chunk in fresh:
            if chunk == 0:
                self.latents.tensor[slot, 0] = self._owned[session].start
        return torch.tensor(slots, device=self.latents.tensor.device)

    def finish_chunk(self, session: SessionId, chunk: int) -> None:
        """Free the slot of a chunk whose last row is done and decoded."""
        slot = self._in_flight.get(session, {}).pop(chunk, None)
        if slot is not None:
            self.latents.give_back(slot)

    def _forget_chunks(self, owner: Owner) -> None:
        for slot in self._in_flight.pop(owner, {}).values():
            self.latents.give_back(slot)

    def check_integrity(self) -> None:
        """Raise AssertionError unless slots in use are exactly those that somebody owns."""
        self.decoder.check_integrity()
        self.latents.check_integrity()
        in_flight = [slot for chunks in self._in_flight.values() for slot in chunks.values()]
        assert self.decoder.num_used == len(self._owned), "decoder slots are in use that nobody owns"
        assert self.latents.num_used == len(in_flight) == len(set(in_flight)), (
            "latent slots are in use that nobody owns"
        )
        assert self._in_flight.keys() <= self._owned.keys(), "a chunk is in flight of nobody"
