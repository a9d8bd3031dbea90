"""When the next chunk of a realtime session may open: just in time, so that its control is as fresh as it can be.

    due(k)  = anchor + k chunks        the moment when the client shows chunk k's first frame
    open(k) = due(k) - predicted time from being openable to ready - margin

A chunk is never begun while the one before it is ready and not nearly due, so at most one chunk of lead exists and
controls are never seconds late. A chunk that comes late by more than half a chunk moves the anchor: the client's clock
stood still meanwhile, and there is no burst to catch up. Production time is estimated as in RFC 6298, by mean and mean
deviation; one stall is believed up to two chunks. It knows no clock; all times are ns.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the cost model expects now: a chunk from its opening to its frames, and one tick of the device."""

    production_ns: int
    tick_ns: int


class Pacer:
    """Due times and opening times of one realtime session."""

    __slots__ = ("_anchor_chunk", "_anchor_ns", "_chunk_ns", "_deviation_ns", "_least_margin_ns", "_mean_ns")

    def __init__(self, chunk_ns: int, margin_ns: int) -> None:
        self._chunk_ns = chunk_ns
        self._least_margin_ns = min(margin_ns, chunk_ns)
        self._anchor_chunk = 0
        self._anchor_ns = 0
        self._mean_ns: int | None = None
        self._deviation_ns = 0

    def twin(self) -> Pacer:
        """A pacer that has learnt the same and keeps its own time from now on."""
        other = Pacer(self._chunk_ns, self._least_margin_ns)
        other._anchor_chunk, other._anchor_ns = self._anchor_chunk, self._anchor_ns
        other._mean_ns, other._deviation_ns = self._mean_ns, self._deviation_ns
        return other

    def margin_ns(self, forecast: Forecast) -> int:
        """How long before its due time a chunk aims to be ready; at most one chunk.

        Four deviations as in RFC 6298, and never less than two ticks: others' work may just have begun, twice.
        """
        return min(max(4 * self._deviation_ns, 2 * forecast.tick_ns, self._least_margin_ns), self._chunk_ns)

    def anchor(self, chunk: int, due_ns: int) -> None:
        """Begin, or begin again after a pause: this chunk is due then."""
        self._anchor_chunk, self._anchor_ns = chunk, due_ns

    def due_ns(self, chunk: int) -> int:
        return self._anchor_ns + (chunk - self._anchor_chunk) * self._chunk_ns

    def lead_ns(self, forecast: Forecast) -> int:
        """How long before it is due a chunk wants to open; the forecast stands in until one has been observed."""
        return (forecast.production_ns if self._mean_ns is None else self._mean_ns) + self.margin_ns(forecast)

    def open_ns(self, chunk: int, *, previous_ready: bool, forecast: Forecast, early_ns: int = 0) -> int:
        """The earliest moment to open this chunk, or `early_ns` before it as far as there may be lead."""
        due = self.due_ns(chunk)
        open_ns = due - self.lead_ns(forecast) - early_ns
        if previous_ready:
            open_ns = max(open_ns, due - self._chunk_ns - self.margin_ns(forecast))
        return open_ns

    def ready(self, chunk: int, asked_ns: int, now_ns: int) -> bool:
        """Note that a chunk that could open at `asked_ns` is ready now; True if it is late.

        A chunk late by more than half a chunk moves the anchor. Less than that a client's jitter buffer hides: if time
        started anew from every small slip, the slips would add up and the buffer would run dry.
        """
        self._observe(now_ns - asked_ns)
        late_ns = now_ns - self.due_ns(chunk)
        if late_ns > self._chunk_ns // 2:
            self.anchor(chunk, now_ns)
        return late_ns > 0

    def _observe(self, took_ns: int) -> None:
        if self._mean_ns is None:
            self._mean_ns, self._deviation_ns = took_ns, took_ns // 4
            return
        took_ns = min(took_ns, self._mean_ns + 2 * self._chunk_ns)
        self._deviation_ns += (abs(took_ns - self._mean_ns) - self._deviation_ns) // 4
        self._mean_ns += (took_ns - self._mean_ns) // 8
