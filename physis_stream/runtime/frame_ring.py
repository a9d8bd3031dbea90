"""Frames across a process boundary: a ring of slots in shared memory, written by the engine's process, read by the
server's.

    [ heartbeat: int64 ns ][ one byte a slot: 0 free, 1 full ][ slot 0 ][ slot 1 ] ...

The writer fills a free slot and sets its byte, the reader copies the frames out and clears it: each byte has one
writer at a time, so no lock is needed. Messages travel as pickles in which large arrays are replaced by their slot;
where no slot is free, or an array is too big, it stays in the pickle. The reader's process makes the memory and is
the one to unlink it.
"""

from __future__ import annotations

import io
import pickle
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np

MIN_BYTES = 4096
"""Arrays below this stay in the pickle: a slot would not pay."""
_HEADER = 8


class FrameRing:
    """One end of the ring. Make it with `create` in the reading process, and with `attach` in the writing one."""

    def __init__(self, memory: SharedMemory, num_slots: int, slot_bytes: int) -> None:
        self._memory, self._num_slots, self._slot_bytes = memory, num_slots, slot_bytes
        buffer = np.ndarray((memory.size,), np.uint8, memory.buf)
        self._beat = buffer[:_HEADER].view(np.int64)
        self._full = buffer[_HEADER : _HEADER + num_slots]
        begin = _begin(num_slots)
        self._slots = buffer[begin : begin + num_slots * slot_bytes].reshape(num_slots, slot_bytes)
        self._next = 0

    @classmethod
    def create(cls, num_slots: int, slot_bytes: int) -> FrameRing:
        """Make the memory, all slots free."""
        memory = SharedMemory(create=True, size=_begin(num_slots) + num_slots * slot_bytes)
        ring = cls(memory, num_slots, slot_bytes)
        ring._full[:] = 0
        ring._beat[0] = 0
        return ring

    @classmethod
    def attach(cls, name: str, num_slots: int, slot_bytes: int) -> FrameRing:
        """Open memory that the reading process made."""
        return cls(SharedMemory(name=name), num_slots, slot_bytes)

    @property
    def name(self) -> str:
        return self._memory.name

    @property
    def num_full(self) -> int:
        """Slots whose frames have not been read yet."""
        return int(self._full.sum())

    @property
    def heartbeat_ns(self) -> int:
        return int(self._beat[0])

    def beat(self, now_ns: int) -> None:
        """Show that the writing process lives."""
        self._beat[0] = now_ns

    def put(self, array: np.ndarray[Any, np.dtype[np.uint8]]) -> int | None:
        """Copy a uint8 array into the next slot and return its number; None if it does not fit or the slot is not
        free.
        """
        slot = self._next
        if array.nbytes > self._slot_bytes or self._full[slot]:
            return None
        self._slots[slot, : array.nbytes] = array.reshape(-1)
        self._full[slot] = 1
        self._next = (slot + 1) % self._num_slots
        return slot

    def take(self, slot: int, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Copy an array out of a slot and free the slot."""
        array = self._slots[slot, : int(np.prod(shape))].reshape(shape).copy()
        self._full[slot] = 0
        return array

    def dump(self, message: object) -> bytes:
        """Pickle a message, its large uint8 arrays in slots."""
        stream = io.BytesIO()
        _Pickler(self, stream).dump(message)
        return stream.getvalue()

    def load(self, content: bytes) -> Any:
        """Unpickle a message of `dump`, freeing its slots. Only for messages of the process at the other end."""
        return _Unpickler(self, io.BytesIO(content)).load()

    def close(self, *, unlink: bool) -> None:
        """Let go of the memory; `unlink` removes it, which is the reading process's duty. Idempotent."""
        if self._num_slots:
            self._num_slots = 0
            del self._beat, self._full, self._slots
            self._memory.close()
            if unlink:
                self._memory.unlink()


class _Pickler(pickle.Pickler):
    def __init__(self, ring: FrameRing, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._ring = ring

    def persistent_id(self, obj: Any) -> tuple[int, tuple[int, ...]] | None:
        if not isinstance(obj, np.ndarray) or obj.dtype != np.uint8 or obj.nbytes < MIN_BYTES:
            return None
        slot = self._ring.put(np.ascontiguousarray(obj))
        return None if slot is None else (slot, obj.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, ring: FrameRing, stream: io.BytesIO) -> None:
        super().__init__(stream)
        self._ring = ring

    def persistent_load(self, pid: Any) -> Any:
        slot, shape = pid
        return self._ring.take(slot, shape)


def _begin(num_slots: int) -> int:
    """Where the first slot begins: after heartbeat and flags, on a cache line."""
    return -(-(_HEADER + num_slots) // 64) * 64
