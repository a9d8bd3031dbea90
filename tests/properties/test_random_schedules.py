"""Thousands of random schedules: a crowd of clients, random costs, failures, and ticks cut anywhere by commands."""

from __future__ import annotations

import json
import random

import pytest

from physis_stream.core.commands import OpenSession, Pace, StepChunk
from physis_stream.core.context_rule import ContextRule, Discipline
from physis_stream.core.errors import EngineError
from physis_stream.core.ids import EventId, SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.replay import Diverged, RecordedCore, replay
from physis_stream.core.spec import Combine, WorldSpec
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.random_clients import RandomClients
from physis_stream.testing.simulation import Simulation
from physis_stream.testing.toy_worlds import toy_spec


def random_world(dice: random.Random, world: str = "toy") -> WorldSpec:
    discipline = dice.choice(list(Discipline))
    commit = {Discipline.CLEAN: True, Discipline.SAME_STEP: False}.get(discipline, dice.random() < 0.5)
    return toy_spec(
        ContextRule(discipline, dice.randint(1, 4), dice.randint(0, 5), commit=commit),
        world=world,
        fps=dice.choice([5.0, 10.0, 50.0]),
        sink=dice.randint(0, 3),
        pages_per_chunk=dice.randint(1, 3),
        combine=dice.choice(list(Combine)),
    )


def random_limits(dice: random.Random) -> Limits:
    return Limits(
        max_sessions=dice.randint(1, 8),
        max_queued=dice.randint(0, 3),
        max_snapshots=dice.randint(0, 3),
        max_rows=dice.choice([1, 2, 5, 16]),
        max_queued_steps=dice.randint(1, 8),
    )


def random_costs(dice: random.Random) -> FakeCosts:
    return FakeCosts(
        base_ns=dice.choice([0, 100_000, 5_000_000, 40_000_000]),
        row_ns=dice.choice([0, 100_000, 3_000_000]),
        decode_ns=dice.choice([0, 1_000_000]),
        overhead_ns=dice.choice([0, 50_000]),
    )


def live_through(sim: Simulation, clients: RandomClients, dice: random.Random, num_acts: int = 120) -> None:
    """Let the crowd ask, the device work and things break, in any order; check the books after every act."""
    for _ in range(num_acts):
        fate = dice.random()
        if fate < 0.45:
            command = clients.command()
            try:
                sim.submit(command)
                clients.taken(command)
            except EngineError:
                pass
        elif fate < 0.9:
            if sim.tick_going_on:
                sim.end_tick()
            else:
                sim.start_tick()
        elif fate < 0.97:
            sim.run_for(dice.choice([0.001, 0.02, 0.25]))
        else:
            sim.executor.fail_next(dice.choice([*clients.snapshots[-3:], clients.session()]))
        sim.core.check_integrity()
    for command in clients.farewell():
        sim.submit(command)


@pytest.mark.parametrize("block", range(8))
def test_every_promise_holds_under_random_schedules_and_nothing_is_left_at_the_end(block):
    for seed in range(block * 250, (block + 1) * 250):
        dice = random.Random(seed)
        sim = Simulation(random_world(dice), random_limits(dice), random_costs(dice))
        live_through(sim, RandomClients(seed), dice)
        sim.check_empty()


def test_worlds_of_different_shapes_share_one_core_without_mixing():
    for seed in range(150):
        dice = random.Random(seed)
        worlds = [random_world(dice, "left"), random_world(dice, "right"), random_world(dice, "middle")]
        sim = Simulation(worlds, random_limits(dice), random_costs(dice))
        live_through(sim, RandomClients(seed, worlds=("left", "right", "middle")), dice)
        sim.check_empty()


def test_a_recorded_trace_replays_to_the_very_same_plans_and_facts():
    for seed in range(100):
        dice = random.Random(seed)
        sim = Simulation(random_world(dice), random_limits(dice), random_costs(dice))
        trace: list[str] = []
        sim.record(lambda record, trace=trace: trace.append(json.dumps(record)))
        live_through(sim, RandomClients(seed), dice)
        replayed = replay(json.loads(line) for line in trace)
        assert replayed.num_plans == len(sim.plans)
        assert replayed.core.stats() == sim.core.stats()


def test_a_trace_that_was_tampered_with_is_found_out():
    sim = Simulation(toy_spec())
    trace: list[dict] = []
    sim.record(trace.append)
    sim.submit(OpenSession(SessionId("a"), 7, Pace.LOCKSTEP))
    sim.submit(StepChunk(SessionId("a"), EventId(1), (0.5,)))
    sim.run_idle()
    replay(trace)
    changed = json.loads(json.dumps(trace))
    plan = next(record for record in changed if record["call"] == "schedule" and record["plan"]["rows"][0]["write"])
    plan["plan"]["rows"][0]["write"] = [0, 0]
    with pytest.raises(Diverged):
        replay(changed)


def test_recording_wraps_a_core_that_behaves_as_before():
    written: list[dict] = []
    core = RecordedCore(Simulation(toy_spec()).core, written.append)
    with pytest.raises(EngineError):
        core.submit(StepChunk(SessionId("nobody"), EventId(1), (0.0,)), 5)
    assert core.schedule(5) is None
    assert core.next_wake_ns(5) is None
    assert [record["call"] for record in written] == ["serve", "submit"]
    assert written[1]["refused"] == "not_found"
