"""Short words for the tests of the core: sessions by name, steps, and what came out."""

from __future__ import annotations

import itertools

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.context_rule import Discipline
from physis_stream.core.events import Event
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.core.limits import Limits
from physis_stream.core.spec import WorldSpec
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.simulation import Simulation
from physis_stream.testing.toy_worlds import toy_spec

DISCIPLINES = list(Discipline)


class Stage(Simulation):
    """A simulation with the verbs of clients as methods; each returns the facts it brought about at once."""

    def __init__(self, spec: WorldSpec | None = None, limits: Limits | None = None, costs: FakeCosts | None = None):
        super().__init__(spec or toy_spec(), limits, costs)
        self._events = itertools.count(1)

    def open(self, name: str, seed: int = 0, pace: Pace = Pace.LOCKSTEP) -> tuple[Event, ...]:
        return self.submit(cmd.OpenSession(SessionId(name), seed, pace))

    def step(self, name: str, *actions: float) -> list[int]:
        """Queue a step for each action; return the event ids."""
        events = [next(self._events) for _ in actions]
        for event, action in zip(events, actions, strict=True):
            self.submit(cmd.StepChunk(SessionId(name), EventId(event), (action,)))
        return events

    def walk(self, name: str, *actions: float) -> None:
        """Queue steps and work until they are done."""
        self.step(name, *actions)
        self.run_idle()

    def control(self, name: str, action: float | None = None, prompt: str | None = None) -> int:
        event = next(self._events)
        value = None if action is None else (action,)
        self.submit(cmd.SubmitControl(SessionId(name), EventId(event), value, prompt))
        return event

    def close(self, name: str) -> tuple[Event, ...]:
        return self.submit(cmd.CloseSession(SessionId(name)))

    def reset(self, name: str, seed: int = 0) -> tuple[Event, ...]:
        return self.submit(cmd.ResetSession(SessionId(name), seed))

    def pause(self, name: str) -> tuple[Event, ...]:
        return self.submit(cmd.PauseSession(SessionId(name)))

    def resume(self, name: str) -> tuple[Event, ...]:
        return self.submit(cmd.ResumeSession(SessionId(name)))

    def fork(self, name: str, *children: str) -> tuple[Event, ...]:
        return self.submit(cmd.ForkSession(SessionId(name), tuple(SessionId(child) for child in children)))

    def snapshot(self, name: str, mark: str) -> tuple[Event, ...]:
        return self.submit(cmd.TakeSnapshot(SessionId(name), SnapshotId(mark)))

    def restore(self, name: str, mark: str) -> tuple[Event, ...]:
        return self.submit(cmd.RestoreSnapshot(SessionId(name), SnapshotId(mark)))

    def told(self, kind: type, name: str | None = None) -> list[Event]:
        """Facts of a kind, of one session or of all, in order."""
        return [fact for fact in self.facts if isinstance(fact, kind) and name in (None, fact.session)]

    def close_all_and_check(self) -> None:
        for name in {fact.session for fact in self.facts}:
            self.submit(cmd.CloseSession(name))
        self.check_empty()
