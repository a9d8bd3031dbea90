"""A clock that moves only when told to."""

from __future__ import annotations


class FakeClock:
    """Nanoseconds since an arbitrary start; never goes back."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns

    def advance(self, by_ns: int) -> int:
        """Move forward; return the new time. Raises ValueError for a negative step."""
        if by_ns < 0:
            raise ValueError(f"time does not go back: advance by {by_ns} ns")
        self.now_ns += by_ns
        return self.now_ns

    def advance_to(self, at_ns: int) -> int:
        """Move forward to `at_ns`; stay if it has passed already."""
        self.now_ns = max(self.now_ns, at_ns)
        return self.now_ns
