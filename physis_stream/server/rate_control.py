"""How many bits a second a video stream may take: free, quality first, until a receiver loses packets.

Then it is held below what was sent, and below what the receiver believes its path carries; without further loss it
grows until it is free again. The belief alone (REMB) holds nobody back: on a free path it only follows what is sent.
Streams under `FLOOR_BPS` are never held: their loss is not their own doing. Given `now`; each change costs a
keyframe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

FLOOR_BPS = 400_000
LEAST_BPS = 150_000
SHARE = 0.85
LOSSY, CLEAN = 0.05, 0.02
GROWTH = 1.25
SETTLE_S, GROW_S = 1.0, 3.0
WINDOW_S = 1.0


@dataclass(frozen=True, slots=True)
class Path:
    """What one receiver last reported: the share of packets lost, and the bits a second it believes in (None.

    Unsaid).
    """

    loss: float = 0.0
    room_bps: float | None = None


class RateControl:
    """`target` is the limit in bits a second, or None while the stream may take what it wants."""

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()
        self._target: int | None = None
        self._changed_s = float("-inf")
        self._wanted = 0.0

    def sent(self, now_s: float, num_bytes: int) -> None:
        self._sent.append((now_s, num_bytes))

    def rate(self, now_s: float) -> float:
        """Bits a second over the last second."""
        while self._sent and self._sent[0][0] <= now_s - WINDOW_S:
            self._sent.popleft()
        return 8 * sum(num_bytes for _, num_bytes in self._sent) / WINDOW_S

    def target(self, now_s: float, path: Path) -> int | None:
        """Decide anew, given the worst path of all receivers."""
        rate, since_s = self.rate(now_s), now_s - self._changed_s
        if since_s < SETTLE_S:
            return self._target
        if path.loss > LOSSY:
            if self._target is None:
                if rate <= FLOOR_BPS:
                    return None
                self._wanted = rate
            used = rate if self._target is None else self._target
            room = used if path.room_bps is None else path.room_bps
            return self._change(now_s, max(LEAST_BPS, int(SHARE * min(used, room))))
        if self._target is not None and path.loss < CLEAN and since_s >= GROW_S:
            grown = int(self._target * GROWTH)
            return self._change(now_s, None if grown > self._wanted else grown)
        return self._target

    def _change(self, now_s: float, target: int | None) -> int | None:
        if target != self._target:
            self._target, self._changed_s = target, now_s
        return target


def worst(paths: list[Path]) -> Path:
    """The most loss and the least room among receivers; one stream serves them all."""
    rooms = [path.room_bps for path in paths if path.room_bps is not None]
    return Path(max((path.loss for path in paths), default=0.0), min(rooms, default=None))
