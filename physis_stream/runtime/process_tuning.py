"""Settings of a whole process that make a tick faster on a CPU. Call them early; they are hints and never fail."""

from __future__ import annotations

import ctypes
import os
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3


def calm_waits() -> None:
    """Let OpenMP threads sleep at barriers instead of spinning: two programs that spin on the same cores starve each
    other.

    OpenMP reads this once, so it must be said before torch is imported; what the user has set stays.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    os.environ.setdefault("KMP_BLOCKTIME", "0")


def calm_threads(threads: int) -> None:
    """As `calm_waits`, and so many threads from the start."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    calm_waits()


def keep_memory() -> None:
    """Keep freed blocks of up to 32 MiB in the process instead of returning them to the system after every operation.

    Activations of a wide batch are beyond malloc's default for mapping memory afresh; without this a tick of 64 rows
    spends a third of its time in page faults. glibc only; elsewhere nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        mallopt(_M_TRIM_THRESHOLD, 512 << 20)
        mallopt(_M_TOP_PAD, 64 << 20)
