"""Addressed randomness: every random number of a session is looked up by where it is used, never drawn from a stream.

The address is (seed, chunk, step). It holds no session id, so a fork or a replay from the same seed sees the same
noise; and no output epoch, so a session that was reset to a seed repeats a session that was opened with it, and a
restored session goes on as it would have. It knows no tensors: the runtime seeds a generator with the key.
"""

from __future__ import annotations

import hashlib

_NOISE = b"noise"
_START = b"start"


def _digest_u64(purpose: bytes, *numbers: int) -> int:
    text = b":".join([purpose, *(str(number).encode() for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def noise_key(seed: int, chunk: int, step: int) -> int:
    """The 64-bit address of the noise that makes this step's input; the same on every machine."""
    return _digest_u64(_NOISE, seed, chunk, step)


def start_index(seed: int, num_starts: int) -> int:
    """Which of a world's `num_starts` stored starts this seed begins with; raises ValueError where there is none."""
    if num_starts < 1:
        raise ValueError(f"a world needs at least one start, got {num_starts}")
    return _digest_u64(_START, seed) % num_starts
