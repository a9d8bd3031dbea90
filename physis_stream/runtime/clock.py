"""The only place that reads the time. Everyone else is given `now_ns`, or a Clock by whoever starts them.

Times are nanoseconds of a monotonic clock; on Linux all processes of a machine share it, so that a parent can judge
the age of its child's heartbeat.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Something that tells the time and can wait."""

    def now_ns(self) -> int:
        """Return monotonic nanoseconds."""
        ...

    def sleep_until_ns(self, wake_ns: int) -> None:
        """Return at `wake_ns`, or at once if that has passed."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def sleep_until_ns(self, wake_ns: int) -> None:
        wait_ns = wake_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(wait_ns / 1e9)


class ProcessorClock:
    """Time that this thread has computed, plus the time it meant to sleep, which is skipped.

    For measurements of one thread on a machine that others use as well: what they take does not count.
    """

    def __init__(self) -> None:
        self._slept_ns = 0

    def now_ns(self) -> int:
        return time.thread_time_ns() + self._slept_ns

    def sleep_until_ns(self, wake_ns: int) -> None:
        self._slept_ns += max(0, wake_ns - self.now_ns())


class ManualClock:
    """A clock that moves when it is told to, or when somebody sleeps; `tick_ns` passes with every reading."""

    def __init__(self, now_ns: int = 0, *, tick_ns: int = 0) -> None:
        self._now_ns, self._tick_ns = now_ns, tick_ns

    def now_ns(self) -> int:
        self._now_ns += self._tick_ns
        return self._now_ns

    def sleep_until_ns(self, wake_ns: int) -> None:
        self._now_ns = max(self._now_ns, wake_ns)

    def advance_ns(self, span_ns: int) -> None:
        """Let `span_ns` pass."""
        if span_ns < 0:
            raise ValueError(f"time does not run backwards: {span_ns}")
        self._now_ns += span_ns
