"""Every bound on what a client may send or hold, in one place, and the bucket that bounds rates.

The bucket is given `now`; nothing here reads a clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes unless the name says otherwise; rates are per second."""

    json_body: int = 64 << 10
    binary_body: int = 8 << 20
    control_message: int = 16 << 10
    websocket_message: int = 1 << 20
    sdp: int = 64 << 10
    sdp_candidates: int = 64
    sdp_media_sections: int = 4
    prompt_chars: int = 2_000
    step_many_items: int = 256
    fork_count: int = 64
    snapshots_per_session: int = 16
    sessions: int = 1_024
    peers_per_session: int = 4
    viewers_per_session: int = 16
    sockets_per_session: int = 4
    event_streams_per_session: int = 4
    channels_per_peer: int = 4
    requests_in_flight: int = 64
    control_rate: float = 240.0
    control_burst: int = 480
    action_rate: float = 240.0
    action_burst: int = 240
    offer_rate: float = 0.5
    offer_burst: int = 20
    open_rate: float = 16.0
    open_burst: int = 64
    unacked_chunks: int = 4


class TokenBucket:
    """Allows `burst` at once and `rate` per second after."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._level = float(burst)
        self._then: float | None = None

    def take(self, now_s: float) -> float | None:
        """Take one; return None if it was there, else the seconds until it will be."""
        if self._then is not None:
            self._level = min(self._burst, self._level + (now_s - self._then) * self._rate)
        self._then = now_s
        if self._level >= 1.0:
            self._level -= 1.0
            return None
        return (1.0 - self._level) / self._rate
