"""What a tick will take, learnt from what ticks took: a table by batch width for each shape, and priors before.

Widths are bucketed by powers of two; each bucket keeps running means of its width and its time, and predictions
interpolate between buckets, so a curve that is affine on one machine and stepped on another is followed alike. Where a
device was measured beforehand (`CostPrior.curve`), what is seen scales that curve: a narrow load then says what a wide
one would take, which its own few widths could not.
A width that was not seen for long is forgotten, a single stall is not believed. It knows no clock and no sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

_WEIGHT = 0.2
"""Share of a new observation in a running mean, once there are enough of them."""

_BELIEF = 4.0
"""A sample counts for at most this many times the mean so far: one stall is no news, several are."""

_MEMORY = 128
"""Ticks of a shape after which a width that was not seen again is forgotten: the device may have changed meanwhile."""


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Cost of a tick before any was seen: base + row * rows + decode * decodes, in nanoseconds. `curve` are measured
    (rows, nanoseconds) by ascending width, and stands for base and row if there is one."""

    base_ns: int = 1_000_000
    row_ns: int = 1_000_000
    decode_ns: int = 1_000_000
    curve: tuple[tuple[int, int], ...] = ()

    def rows_ns(self, rows: float) -> float:
        """Time of this many rows, without decodes."""
        if not self.curve:
            return self.base_ns + self.row_ns * rows
        above = next((place for place, (width, _) in enumerate(self.curve) if width >= rows), len(self.curve) - 1)
        if above == 0:
            return float(self.curve[0][1])
        (x0, y0), (x1, y1) = self.curve[above - 1], self.curve[above]
        return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)


@dataclass(slots=True)
class _Mean:
    """A running mean: plain at first, exponential later."""

    value: float = 0.0
    count: int = 0

    def add(self, sample: float) -> None:
        if self.count >= 4 and self.value > 0.0:
            sample = min(sample, _BELIEF * self.value)
        self.count += 1
        self.value += (sample - self.value) * max(_WEIGHT, 1.0 / self.count)


@dataclass(slots=True)
class _Point:
    """Running means of the width and the time of the ticks in one bucket, and the tick that was last seen in it."""

    rows: _Mean
    ns: _Mean
    seen: int = 0


class _Shape:
    """What is known of one shape bucket."""

    def __init__(self, prior: CostPrior) -> None:
        self.prior = prior
        self.points: dict[int, _Point] = {}
        self.decode = _Mean()
        self.overhead = _Mean()
        self.tick = _Mean()
        self.memo: dict[int, int] = {}

    def add_point(self, rows: int, rows_ns: int) -> None:
        self.memo.clear()
        point = self.points.setdefault(rows.bit_length(), _Point(_Mean(), _Mean()))
        point.rows.add(rows)
        point.ns.add(rows_ns)
        point.seen = self.tick.count
        if self.tick.count % _MEMORY == 0:
            self.points = {
                width: point for width, point in self.points.items() if self.tick.count - point.seen < _MEMORY
            }

    def rows_ns(self, rows: int) -> int:
        cached = self.memo.get(rows)
        if cached is None:
            cached = self.memo[rows] = max(0, round(self._interpolate(rows)))
        return cached

    def _interpolate(self, rows: int) -> float:
        known = sorted((point.rows.value, point.ns.value) for point in self.points.values())
        if not known:
            return self.prior.rows_ns(rows)
        if self.prior.curve:
            return self.prior.rows_ns(rows) * _between([(x, y / self.prior.rows_ns(x)) for x, y in known], rows)
        below = [point for point in known if point[0] <= rows]
        above = [point for point in known if point[0] > rows]
        if below and above:
            (x0, y0), (x1, y1) = below[-1], above[0]
            return y0 + (y1 - y0) * (rows - x0) / (x1 - x0)
        x, y = below[-1] if below else above[0]
        estimate = y + self._slope(known) * (rows - x)
        return estimate if below else max(estimate, y * rows / x)

    def _slope(self, known: list[tuple[float, float]]) -> float:
        (x0, y0), (x1, y1) = known[0], known[-1]
        if x1 > x0:
            return max(0.0, (y1 - y0) / (x1 - x0))
        share = self.prior.row_ns / max(1.0, self.prior.base_ns + self.prior.row_ns * x0)
        return y0 * share


def _between(points: list[tuple[float, float]], x: float) -> float:
    """Interpolate between points sorted by x; flat outside."""
    for (x0, y0), (x1, y1) in pairwise(points):
        if x0 <= x <= x1:
            return y0 + (y1 - y0) * (x - x0) / max(x1 - x0, 1e-9)
    return points[0][1] if x < points[0][0] else points[-1][1]


class CostModel:
    """Predicts ticks and learns from results. Deterministic: the same observations give the same predictions."""

    def __init__(self, priors: Mapping[str, CostPrior] | None = None) -> None:
        self._priors = dict(priors or {})
        self._shapes: dict[str, _Shape] = {}

    def set_prior(self, shape_key: str, prior: CostPrior) -> None:
        """Give a shape another prior; what was seen of it is forgotten."""
        self._priors[shape_key] = prior
        self._shapes.pop(shape_key, None)

    def _shape(self, shape_key: str) -> _Shape:
        shape = self._shapes.get(shape_key)
        if shape is None:
            shape = self._shapes[shape_key] = _Shape(self._priors.get(shape_key, CostPrior()))
        return shape

    def predict_ns(self, shape_key: str, rows: int, decodes: int) -> int:
        """Wall time of a tick of this many rows and decodes, overhead included."""
        shape = self._shape(shape_key)
        decode_ns = shape.decode.value if shape.decode.count else shape.prior.decode_ns
        return shape.rows_ns(rows) + round(decode_ns * decodes + shape.overhead.value)

    def tick_ns(self, shape_key: str) -> int:
        """Wall time of the ticks that this shape has lately had; one row's prediction before the first."""
        shape = self._shape(shape_key)
        return round(shape.tick.value) if shape.tick.count else self.predict_ns(shape_key, 1, 0)

    def observe(self, shape_key: str, rows: int, decodes: int, *, rows_ns: int, decode_ns: int, wall_ns: int) -> None:
        """Learn from a tick. `wall_ns` is from handing out the plan to its completion."""
        if rows < 1:
            return
        shape = self._shape(shape_key)
        shape.add_point(rows, rows_ns)
        if decodes:
            shape.decode.add(decode_ns / decodes)
        shape.overhead.add(max(0, wall_ns - rows_ns - decode_ns))
        shape.tick.add(wall_ns)
