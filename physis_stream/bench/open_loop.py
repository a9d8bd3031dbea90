"""Sessions that arrive by themselves and watch in real time: the load, and what they saw. Knows no server.

A viewer shows a session's first chunk when it has come and one chunk has been buffered, then one chunk each chunk
time. A chunk is on time if it has come by then. Arrivals are Poisson and do not wait for anybody; time to first
chunk counts from the intended arrival.

    |-- arrivals over `ramp_s` --|-- all watch --|  `hold_s`
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Load:
    """So many sessions, arriving within `ramp_s`; everyone watches until `ramp_s + hold_s`. Times in seconds."""

    sessions: int
    chunk_s: float
    ramp_s: float
    hold_s: float
    seed: int = 0

    @property
    def end_s(self) -> float:
        return self.ramp_s + self.hold_s

    def arrivals(self) -> list[float]:
        """When each session arrives: a Poisson process given its count, that is, sorted uniform times."""
        draw = random.Random(self.seed)
        return sorted(draw.uniform(0.0, self.ramp_s) for _ in range(self.sessions))


@dataclass(slots=True)
class Viewer:
    """One session as its viewer saw it: when it meant to begin, and when each chunk came."""

    arrival_s: float
    came_s: list[float] = field(default_factory=list)

    def due_s(self, chunk: int, chunk_s: float) -> float:
        """When this chunk is shown: one chunk time after the first came, then one by one."""
        return self.came_s[0] + (1 + chunk) * chunk_s

    def score(self, load: Load) -> tuple[int, int]:
        """Chunks on time, and chunks that were due before the end."""
        if not self.came_s:
            return 0, max(1, round((load.end_s - self.arrival_s) / load.chunk_s))
        due = [self.due_s(chunk, load.chunk_s) for chunk in range(len(self.came_s) + round(load.end_s / load.chunk_s))]
        wanted = sum(moment <= load.end_s for moment in due)
        on_time = sum(came <= moment for came, moment in zip(self.came_s[:wanted], due, strict=False))
        return on_time, wanted


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a load went. `holds` is the service level: 99% of chunks on time, every first chunk within 2 s."""

    attainment: float
    worst_first_chunk_s: float

    @property
    def holds(self) -> bool:
        return self.attainment >= 0.99 and self.worst_first_chunk_s <= 2.0


def judge(load: Load, viewers: list[Viewer]) -> Verdict:
    """Sum up what all viewers saw; a session without a chunk counts as waiting until the end."""
    scores = [viewer.score(load) for viewer in viewers]
    waits = [(viewer.came_s[0] if viewer.came_s else load.end_s + 2.0) - viewer.arrival_s for viewer in viewers]
    return Verdict(sum(hit for hit, _ in scores) / max(1, sum(all_ for _, all_ in scores)), max(waits, default=0.0))
