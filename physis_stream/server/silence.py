"""Tells absence from a pause: a peer that has sent nothing for a while, although it had to, is gone.

Given the count of packets received and `now`. When we ourselves were held up, what came meanwhile is still unread, so
the time that we missed does not count against the peer.
"""

from __future__ import annotations


class Silence:
    """`look` is to be called every `every_s`; it says when nothing has come for `silence_s`."""

    def __init__(self, silence_s: float, every_s: float, now_s: float) -> None:
        self._silence_s = silence_s
        self._every_s = every_s
        self._received = -1
        self._heard_s = now_s
        self._looked_s = now_s

    def look(self, now_s: float, received: int) -> bool:
        """Return whether the peer is gone; `received` is the number of packets that ever came from it."""
        late_s = max(0.0, now_s - self._looked_s - 2 * self._every_s)
        self._looked_s = now_s
        if received != self._received:
            self._received, self._heard_s = received, now_s
        else:
            self._heard_s += late_s
        return now_s - self._heard_s > self._silence_s
