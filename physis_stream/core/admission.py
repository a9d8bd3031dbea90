"""May one more session be let in? By bytes, by count, and by time; the answer is a reason, or None for yes.

By bytes: pages of a full window and fixed bytes are promised before the first forward, so a running session never
runs out. By time: the share of real time that all realtime sessions would need, each shape at the batch width that
its sessions would give, must stay below a bound. It knows no queue of sessions and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from physis_stream.core.commands import Pace
from physis_stream.core.cost_model import CostModel
from physis_stream.core.limits import Limits
from physis_stream.core.served_world import ServedWorld


@dataclass(slots=True)
class _Load:
    """Sessions of one world that are admitted."""

    world: ServedWorld
    realtime: int = 0
    lockstep: int = 0

    @property
    def sessions(self) -> int:
        return self.realtime + self.lockstep


class Admission:
    """Counts what is promised. `admit` and `keep` take, `release` and `forget` give back; nothing else changes it."""

    def __init__(self, worlds: Mapping[str, ServedWorld], cost: CostModel, limits: Limits) -> None:
        self._cost = cost
        self._limits = limits
        self._loads = {name: _Load(world) for name, world in worlds.items()}
        self._bytes = 0

    @property
    def num_admitted(self) -> int:
        return sum(load.sessions for load in self._loads.values())

    @property
    def promised_bytes(self) -> int:
        return self._bytes

    def obstacle(self, world: ServedWorld, pace: Pace, count: int = 1) -> str | None:
        """Why `count` more sessions may not come in now; None if they may. Changes nothing."""
        if self.num_admitted + count > self._limits.max_sessions:
            return f"all {self._limits.max_sessions} sessions are taken"
        pages = count * world.retention.pages_per_session
        if world.ledger.num_reserved + pages > world.ledger.num_pages:
            return f"{pages} pages are needed, {world.ledger.num_pages - world.ledger.num_reserved} are not promised"
        memory = self._limits.memory_bytes
        if memory is not None and self._bytes + count * world.session_bytes > memory:
            return f"{count * world.session_bytes} bytes are needed, {memory - self._bytes} are not promised"
        return self._time_obstacle(world, count) if pace is Pace.REALTIME else None

    def _time_obstacle(self, world: ServedWorld, count: int) -> str | None:
        """A first realtime session is let in whatever it needs: alone it makes nobody late but itself."""
        if count == 1 and not any(load.realtime for load in self._loads.values()):
            return None
        need = self.utilisation(world, count)
        if need <= self._bound():
            return None
        return f"realtime sessions would need {need:.0%} of real time, at most {self._bound():.0%} is allowed"

    @property
    def pulse_ns(self) -> int | None:
        """The longest tick with which a chunk's rows, and a wait, fit into its media time; None without realtime."""
        pulses = [load.world.chunk_ns // (load.world.rows + 1) for load in self._loads.values() if load.realtime]
        return min(pulses, default=None)

    @property
    def gather_ns(self) -> int:
        """How much before its time a chunk may be opened to share a batch: nothing while the device is half idle and
        freshness of control is free, two fifths of a chunk's media time once it is three fifths full."""
        chunks = [load.world.chunk_ns for load in self._loads.values() if load.realtime]
        return round(min(chunks, default=0) * min(max(2 * self.utilisation() - 0.8, 0.0), 0.4))

    def utilisation(self, extra_world: ServedWorld | None = None, extra: int = 0) -> float:
        """Predicted share of real time that realtime sessions need, with `extra` more of one world."""
        return sum(
            self._need(load.world, load.realtime + (extra if load.world is extra_world else 0))
            for load in self._loads.values()
        )

    def admit(self, world: ServedWorld, pace: Pace) -> int:
        """Promise a session its pages and bytes; return the pages. The caller has asked `obstacle`."""
        pages = world.retention.pages_per_session
        promised = world.ledger.reserve(pages)
        assert promised, "a session was admitted without room"
        self._count(world, pace, 1)
        self._bytes += world.session_bytes
        return pages

    def release(self, world: ServedWorld, pace: Pace) -> None:
        """Take back what `admit` promised."""
        world.ledger.unreserve(world.retention.pages_per_session)
        self._count(world, pace, -1)
        self._bytes -= world.session_bytes

    def keep(self, world: ServedWorld, num_pages: int) -> bool:
        """Promise a snapshot its pages and fixed bytes; False if there is no room."""
        size = world.snapshot_bytes(num_pages)
        memory = self._limits.memory_bytes
        if memory is not None and self._bytes + size > memory:
            return False
        if not world.ledger.reserve(num_pages):
            return False
        self._bytes += size
        return True

    def forget(self, world: ServedWorld, num_pages: int) -> None:
        """Take back what `keep` promised."""
        world.ledger.unreserve(num_pages)
        self._bytes -= world.snapshot_bytes(num_pages)

    def trim(self, world: ServedWorld, promised: int, num_pages: int) -> None:
        """Lower a snapshot's promise to the pages that it turned out to keep."""
        assert num_pages <= promised, "a snapshot keeps more than it was promised"
        world.ledger.unreserve(promised - num_pages)
        self._bytes -= (promised - num_pages) * world.spec.page_bytes

    def _bound(self) -> float:
        """Where lockstep sessions run, their share of each batch is not for realtime sessions to promise."""
        lockstep = any(load.lockstep for load in self._loads.values())
        return self._limits.max_utilisation * (1.0 - self._limits.lockstep_share * lockstep)

    def _need(self, world: ServedWorld, sessions: int) -> float:
        """Share of real time for `sessions` of one world, batched with each other up to max_rows wide."""
        if sessions == 0:
            return 0.0
        shape = world.spec.shape_key
        width = min(sessions, self._limits.max_rows)
        tick_ns = self._cost.predict_ns(shape, width, 0)
        decode_ns = self._cost.predict_ns(shape, width, 1) - tick_ns
        return sessions * (world.rows * tick_ns / width + decode_ns) / world.chunk_ns

    def _count(self, world: ServedWorld, pace: Pace, change: int) -> None:
        load = self._loads[world.spec.world]
        if pace is Pace.REALTIME:
            load.realtime += change
        else:
            load.lockstep += change
