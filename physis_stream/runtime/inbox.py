"""Asks on their way to the engine's loop: many threads put, one takes and waits for as long as it says. No polling."""

from __future__ import annotations

import threading
from collections import deque

from physis_stream.runtime.messages import Ask


class Inbox:
    """A queue that can be closed. `take` returns everything that is there, at once or after waiting."""

    def __init__(self) -> None:
        self._asks: deque[Ask] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, ask: Ask) -> bool:
        """Add an ask; False (and nothing is kept) once closed."""
        with self._changed:
            if self._closed:
                return False
            self._asks.append(ask)
            self._changed.notify()
            return True

    def close(self) -> None:
        """Let the taker know that nothing more will come. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take(self, timeout_s: float) -> list[Ask] | None:
        """Return what is there, waiting up to `timeout_s` for something; None once closed and empty."""
        with self._changed:
            if not self._asks and not self._closed and timeout_s > 0:
                self._changed.wait(timeout_s)
            asks = list(self._asks)
            self._asks.clear()
            return None if self._closed and not asks else asks
