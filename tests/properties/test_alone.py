"""In company or alone, live or replayed, forked or restored: the same seed and the same actions make the same frames.

A random crowd lives through forks, snapshots, restores, resets, failures and closes. Meanwhile each session's history
since its seed is kept from the facts alone. At the end every session is replayed by itself, from its seed.
"""

from __future__ import annotations

import random

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.context_rule import Discipline
from physis_stream.core.errors import EngineError
from physis_stream.core.events import (
    ChunkReady,
    SessionClosed,
    SessionForked,
    SnapshotRestored,
    SnapshotTaken,
    StateChanged,
)
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.core.limits import Limits
from physis_stream.core.plan import StartState
from physis_stream.core.spec import Action, WorldSpec
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.random_clients import RandomClients
from physis_stream.testing.simulation import Simulation
from physis_stream.testing.toy_worlds import toy_rule, toy_spec

Past = tuple[int, tuple[Action, ...], str]
"""A seed, the actions of all chunks since, and the label of the newest frame."""


class Chronicle:
    """Each session's past, kept from plans and facts as they come."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.pasts: dict[SessionId, Past] = {}
        self.marks: dict[SnapshotId, Past] = {}
        self.actions: dict[tuple[SessionId, int, int], Action] = {}
        self.seeds: dict[tuple[SessionId, int], int] = {}
        self.num_plans = self.num_facts = 0

    def catch_up(self) -> None:
        for plan in self.sim.plans[self.num_plans :]:
            for op in plan.ops:
                if isinstance(op, StartState):
                    self.seeds[op.session, op.epoch] = op.seed
            for row in plan.rows:
                self.actions[row.session, row.epoch, row.chunk] = row.control.action
        for fact in self.sim.facts[self.num_facts :]:
            self._note(fact)
        self.num_plans, self.num_facts = len(self.sim.plans), len(self.sim.facts)

    def _note(self, fact) -> None:
        match fact:
            case ChunkReady():
                label = self.sim.executor.frames[fact.session, fact.epoch, fact.chunk]
                if fact.chunk == 0:
                    self.pasts[fact.session] = (self.seeds[fact.session, fact.epoch], (), label)
                else:
                    seed, actions, _ = self.pasts[fact.session]
                    action = self.actions[fact.session, fact.epoch, fact.chunk]
                    self.pasts[fact.session] = (seed, (*actions, action), label)
            case SessionForked():
                for child in fact.children:
                    self.pasts[child] = self.pasts[fact.session]
            case SnapshotTaken():
                self.marks[fact.snapshot] = self.pasts[fact.session]
            case SnapshotRestored():
                self.pasts[fact.session] = self.marks[fact.snapshot]
            case StateChanged(state="starting" | "failed") | SessionClosed():
                self.pasts.pop(fact.session, None)
            case _:
                pass


def alone(spec: WorldSpec, seed: int, actions: tuple[Action, ...]) -> str:
    """The label of the last frame of a session that has the engine to itself, one step after the other."""
    sim = Simulation(spec)
    name = SessionId("alone")
    sim.submit(cmd.OpenSession(name, seed, Pace.LOCKSTEP))
    sim.run_idle()
    for event, action in enumerate(actions):
        sim.submit(cmd.StepChunk(name, EventId(event), action))
        sim.run_idle()
    return sim.frames(name)[-1]


def crowd_command(clients: RandomClients, dice: random.Random) -> cmd.Command:
    """What the crowd wants, without prompts and with few who stop or leave, so that pasts grow long."""
    endings = (cmd.CloseSession, cmd.ResetSession, cmd.PauseSession, cmd.SuspendSession)
    while True:
        command = clients.command()
        prompted = isinstance(command, cmd.SubmitControl) and command.prompt is not None
        if not prompted and not (isinstance(command, endings) and dice.random() < 0.8):
            return command


def live(spec: WorldSpec, dice: random.Random, seed: int) -> Chronicle:
    """A crowd's life on one engine, up to some moment in it."""
    costs = FakeCosts(base_ns=dice.choice([1_000_000, 30_000_000]), row_ns=dice.choice([0, 2_000_000]))
    sim = Simulation(spec, Limits(max_sessions=8, max_rows=dice.choice([2, 6, 32])), costs)
    clients, chronicle = RandomClients(seed), Chronicle(sim)
    for _ in range(600):
        fate = dice.random()
        if fate < 0.5:
            command = crowd_command(clients, dice)
            try:
                sim.submit(command)
                clients.taken(command)
            except EngineError:
                pass
        elif fate < 0.955:
            if sim.tick_going_on:
                sim.end_tick()
            else:
                sim.start_tick()
        elif fate < 0.96:
            sim.executor.fail_next(clients.session())
        else:
            sim.run_for(0.1)
        chronicle.catch_up()
    return chronicle


@pytest.mark.parametrize("discipline", list(Discipline))
def test_every_session_of_a_crowd_made_the_frames_that_it_makes_alone(discipline):
    compared = 0
    for seed in range(15):
        dice = random.Random(seed)
        rule = toy_rule(discipline, num_steps=dice.randint(1, 3), window=dice.randint(1, 4))
        spec = toy_spec(rule, sink=dice.randint(0, 2))
        for past_seed, actions, label in live(spec, dice, seed).pasts.values():
            assert alone(spec, past_seed, actions) == label
            compared += len(actions)
    assert compared >= 500, "crowds that did next to nothing prove next to nothing"
