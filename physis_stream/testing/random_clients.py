"""A crowd of clients that ask for anything at any time, right or wrong; the same crowd for the same seed.

    clients = RandomClients(seed); command = clients.command()
    ...submit it...; clients.taken(command) if it was not refused

About one command in a few is wrong on purpose: sessions unknown or over, ids used twice, actions that are not finite.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from physis_stream.core import commands as cmd
from physis_stream.core.ids import EventId, SessionId, SnapshotId


class RandomClients:
    """Makes commands. `sessions` and `snapshots` are all ids that were ever taken, the live and the dead.

    Steps and controls come in bursts for one session, so that chunks pipeline and windows fill.
    """

    def __init__(self, seed: int, *, action_dim: int = 1, worlds: tuple[str | None, ...] = (None,)) -> None:
        self._random = random.Random(seed)
        self._action_dim = action_dim
        self._worlds = worlds
        self._events = 0
        self._closed: set[SessionId] = set()
        self._burst: tuple[Callable[[SessionId], cmd.Command], SessionId, int] | None = None
        self.sessions: list[SessionId] = []
        self.snapshots: list[SnapshotId] = []
        self._wishes: list[Callable[[], cmd.Command]] = [
            *[self._open] * 2,
            *[self._steps] * 5,
            *[self._controls] * 3,
            *[self._fork, self._snapshot, self._restore],
            self._close,
            self._reset,
            self._pause,
            self._resume,
            self._resume,
            self._suspend,
            self._drop,
            self._playout,
        ]

    def command(self) -> cmd.Command:
        """The next thing that one of them asks for."""
        if self._burst is not None:
            wish, session, left = self._burst
            self._burst = (wish, session, left - 1) if left > 1 else None
            return wish(session)
        return self._random.choice(self._wishes)()

    def taken(self, command: cmd.Command) -> None:
        """Note that a command was not refused, so that later ones can speak of what it made."""
        match command:
            case cmd.OpenSession():
                self.sessions.append(command.session)
            case cmd.ForkSession():
                self.sessions.extend(command.children)
            case cmd.TakeSnapshot():
                self.snapshots.append(command.snapshot)
            case cmd.CloseSession():
                self._closed.add(command.session)
            case _:
                pass

    def farewell(self) -> list[cmd.Command]:
        """Everybody closes, some for the second time."""
        return [cmd.CloseSession(session, "over") for session in self.sessions]

    def session(self) -> SessionId:
        """Somebody who came lately, now and then somebody who has left or was never there."""
        if not self.sessions or self._random.random() < 0.02:
            return SessionId("nobody")
        lately = self.sessions[-8:]
        here = [session for session in lately if session not in self._closed]
        return self._random.choice(here if here and self._random.random() < 0.95 else lately)

    def _mark(self) -> SnapshotId:
        return self._random.choice(self.snapshots[-4:]) if self.snapshots else SnapshotId("no mark")

    def _event(self) -> EventId:
        self._events += self._random.random() < 0.95
        return EventId(self._events)

    def _action(self) -> tuple[float, ...]:
        if self._random.random() < 0.03:
            return (float("nan"),) * self._action_dim
        return tuple(self._random.uniform(-2.0, 2.0) for _ in range(self._action_dim))

    def _open(self) -> cmd.Command:
        reuse = self.sessions and self._random.random() < 0.05
        name = self.session() if reuse else SessionId(f"{len(self.sessions):032x}")
        pace, world = self._random.choice(list(cmd.Pace)), self._random.choice(self._worlds)
        return cmd.OpenSession(name, self._random.randint(0, 3), pace, world, wait=self._random.random() < 0.5)

    def _close(self) -> cmd.Command:
        return cmd.CloseSession(self.session(), "left")

    def _steps(self) -> cmd.Command:
        session = self.session()
        self._burst = (self._step, session, self._random.randint(1, 8))
        return self._step(session)

    def _controls(self) -> cmd.Command:
        session = self.session()
        self._burst = (self._control, session, self._random.randint(1, 3))
        return self._control(session)

    def _step(self, session: SessionId) -> cmd.Command:
        return cmd.StepChunk(session, self._event(), self._action())

    def _control(self, session: SessionId) -> cmd.Command:
        action = self._random.choice([None, self._action(), self._action()])
        prompt = self._random.choice([None, None, "day", "night"])
        return cmd.SubmitControl(session, self._event(), action, prompt)

    def _reset(self) -> cmd.Command:
        return cmd.ResetSession(self.session(), self._random.randint(0, 3))

    def _pause(self) -> cmd.Command:
        return cmd.PauseSession(self.session())

    def _resume(self) -> cmd.Command:
        return cmd.ResumeSession(self.session())

    def _suspend(self) -> cmd.Command:
        return cmd.SuspendSession(self.session())

    def _fork(self) -> cmd.Command:
        count = self._random.randint(1, 3)
        children = tuple(SessionId(f"{len(self.sessions) + index:032x}") for index in range(count))
        return cmd.ForkSession(self.session(), children)

    def _snapshot(self) -> cmd.Command:
        return cmd.TakeSnapshot(self.session(), SnapshotId(f"mark{len(self.snapshots)}"))

    def _restore(self) -> cmd.Command:
        return cmd.RestoreSnapshot(self.session(), self._mark())

    def _drop(self) -> cmd.Command:
        return cmd.DropSnapshot(self._mark())

    def _playout(self) -> cmd.Command:
        return cmd.ReportPlayout(self.session(), self._random.choice([-1, 0, 30_000_000, 10**15]))
