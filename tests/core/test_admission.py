"""Who may come in: by count, by bytes, by time, in order."""

from __future__ import annotations

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.commands import OpenSession, Pace
from physis_stream.core.engine_core import EngineCore
from physis_stream.core.errors import Capacity, InvalidState, NotFound
from physis_stream.core.events import SessionClosed, SessionOpened, SessionQueued
from physis_stream.core.ids import SessionId
from physis_stream.core.kv_pages import Retention
from physis_stream.core.limits import Limits
from physis_stream.core.served_world import ServedWorld
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.simulation import Simulation
from physis_stream.testing.toy_worlds import toy_rule, toy_spec

SPEC = toy_spec()
PAGES = Retention.of(SPEC).pages_per_session


def open_(sim: Simulation, name: str, pace: Pace = Pace.LOCKSTEP, *, wait: bool = True):
    return sim.submit(OpenSession(SessionId(name), 0, pace, wait=wait))


def queue(facts) -> list[tuple[str, int]]:
    return [(fact.session, fact.position) for fact in facts if isinstance(fact, SessionQueued)]


def opened(facts) -> list[str]:
    return [fact.session for fact in facts if isinstance(fact, SessionOpened)]


def test_who_finds_no_room_waits_with_a_position_and_a_reason():
    sim = Simulation(SPEC, Limits(max_sessions=1))
    assert opened(open_(sim, "a")) == ["a"]
    facts = open_(sim, "b")
    assert queue(facts) == [("b", 1)]
    assert "all 1 sessions are taken" in next(f.reason for f in facts if isinstance(f, SessionQueued))
    assert queue(open_(sim, "c")) == [("c", 2)]


def test_the_queue_moves_in_order_and_positions_are_told_anew():
    sim = Simulation(SPEC, Limits(max_sessions=1))
    for name in "abcd":
        open_(sim, name)
    facts = sim.submit(cmd.CloseSession(SessionId("a")))
    assert opened(facts) == ["b"]
    assert queue(facts) == [("c", 1), ("d", 2)]


def test_who_leaves_the_queue_makes_the_others_move_up():
    sim = Simulation(SPEC, Limits(max_sessions=1))
    for name in "abcd":
        open_(sim, name)
    facts = sim.submit(cmd.CloseSession(SessionId("c")))
    assert queue(facts) == [("b", 1), ("d", 2)]
    assert SessionClosed(SessionId("c"), "closed") in facts


def test_nobody_overtakes_the_queue():
    worlds = [toy_spec(world="small"), toy_spec(toy_rule(window=16), world="large")]
    large = Retention.of(worlds[1]).pages_per_session
    sim = Simulation(worlds, Limits(num_pages=large))
    sim.submit(OpenSession(SessionId("a"), 0, Pace.LOCKSTEP, world="large"))
    assert queue(sim.submit(OpenSession(SessionId("b"), 0, Pace.LOCKSTEP, world="large"))) == [("b", 1)]
    assert queue(sim.submit(OpenSession(SessionId("c"), 0, Pace.LOCKSTEP, world="small"))) == [("c", 2)]


def test_a_full_queue_refuses_with_a_reason_and_a_time_to_try_again():
    sim = Simulation(SPEC, Limits(max_sessions=1, max_queued=1, retry_after_s=2.0))
    open_(sim, "a")
    open_(sim, "b")
    with pytest.raises(Capacity, match="others wait first") as refusal:
        open_(sim, "c")
    assert refusal.value.retry_after_s == 4.0
    assert sim.core.stats().queued == 1


def test_who_does_not_want_to_wait_is_refused_at_once():
    sim = Simulation(SPEC, Limits(max_sessions=1))
    open_(sim, "a")
    with pytest.raises(Capacity) as refusal:
        open_(sim, "b", wait=False)
    assert refusal.value.retry_after_s > 0
    assert sim.core.stats().queued == 0


def test_pages_of_a_full_window_are_promised_before_the_first_forward():
    sim = Simulation(SPEC, Limits(num_pages=2 * PAGES + 1))
    open_(sim, "a")
    open_(sim, "b")
    assert sim.core.stats().pages_promised == 2 * PAGES
    assert queue(open_(sim, "c")) == [("c", 1)]


def test_fixed_bytes_count_as_well_as_pages():
    world_bytes = PAGES * SPEC.page_bytes + SPEC.fixed_bytes
    sim = Simulation(SPEC, Limits(memory_bytes=2 * world_bytes + 10, num_pages=10 * PAGES))
    assert opened(open_(sim, "a")) == ["a"]
    assert opened(open_(sim, "b")) == ["b"]
    assert sim.core.stats().bytes_promised == 2 * world_bytes
    facts = open_(sim, "c")
    assert "bytes are needed" in next(f.reason for f in facts if isinstance(f, SessionQueued))


def test_realtime_sessions_are_let_in_only_as_many_as_can_be_served_in_time():
    costs = FakeCosts(base_ns=2_000_000, row_ns=1_000_000, decode_ns=0, overhead_ns=0)
    sim = Simulation(SPEC, costs=costs)
    for index in range(60):
        open_(sim, f"s{index}", Pace.REALTIME)
        sim.run_for(0.3)
    stats = sim.core.stats()
    assert 10 <= stats.sessions <= 24
    assert stats.utilisation <= 0.9
    assert stats.queued > 0
    assert stats.late_chunks <= 0.01 * stats.chunks


def test_what_lockstep_sessions_are_owed_is_not_promised_to_realtime_sessions():
    admitted = {}
    for robots in (0, 1):
        sim = Simulation(SPEC, costs=FakeCosts(base_ns=0, row_ns=2_000_000, decode_ns=0, overhead_ns=0))
        for index in range(robots):
            open_(sim, f"robot{index}")
        for index in range(30):
            open_(sim, f"s{index}", Pace.REALTIME)
            sim.run_for(0.3)
        admitted[robots] = sim.core.stats().sessions - robots
    assert admitted == {0: 11, 1: 8}


def test_one_realtime_session_is_let_in_even_on_a_device_that_is_too_slow_for_it():
    sim = Simulation(SPEC, costs=FakeCosts(base_ns=80_000_000))
    open_(sim, "a", Pace.REALTIME)
    sim.run_for(2.0)
    open_(sim, "b", Pace.REALTIME)
    assert sim.core.stats().sessions == 1
    assert "real time" in str(sim.core.stats().obstacle) or sim.core.stats().queued == 1
    assert len(sim.chunks(SessionId("a"))) >= 4


def test_lockstep_sessions_are_not_held_to_any_clock():
    sim = Simulation(SPEC, costs=FakeCosts(base_ns=80_000_000))
    for index in range(10):
        open_(sim, f"s{index}")
        sim.run_for(0.2)
    assert sim.core.stats().sessions == 10


def test_room_that_a_cheaper_device_brings_is_given_to_the_queue():
    sim = Simulation(SPEC, costs=FakeCosts(base_ns=60_000_000))
    open_(sim, "a", Pace.REALTIME)
    sim.run_for(1.0)
    assert queue(open_(sim, "b", Pace.REALTIME)) == [("b", 1)]
    sim.executor.costs = FakeCosts(base_ns=1_000_000, row_ns=100_000)
    sim.run_for(10.0)
    assert sim.core.stats().queued == 0
    assert len(sim.chunks(SessionId("b"))) > 5


def test_an_id_is_used_once():
    sim = Simulation(SPEC)
    open_(sim, "a")
    with pytest.raises(InvalidState, match="already taken"):
        open_(sim, "a")
    sim.submit(cmd.CloseSession(SessionId("a")))
    with pytest.raises(InvalidState, match="already taken"):
        open_(sim, "a")


def test_an_unknown_world_is_not_found_and_must_be_named_where_there_are_several():
    sim = Simulation([toy_spec(world="left"), toy_spec(world="right")])
    with pytest.raises(NotFound, match="left, right"):
        open_(sim, "a")
    with pytest.raises(NotFound, match="middle"):
        sim.submit(OpenSession(SessionId("a"), 0, Pace.LOCKSTEP, world="middle"))


@pytest.mark.parametrize(
    ("limits", "complaint"),
    [(Limits(num_pages=PAGES - 1), f"needs {PAGES} pages"), (Limits(memory_bytes=100, num_pages=PAGES), "bytes")],
)
def test_a_core_that_could_not_hold_one_session_is_not_made(limits, complaint):
    with pytest.raises(ValueError, match=complaint):
        EngineCore(SPEC, limits)


def test_worlds_must_have_names_of_their_own_and_agree_on_pages_where_they_share_them():
    with pytest.raises(ValueError, match="twice"):
        EngineCore([SPEC, SPEC])
    with pytest.raises(ValueError, match="at least one world"):
        EngineCore([])
    other = toy_spec(world="other", pages_per_chunk=3)
    object.__setattr__(other, "shape_key", "toy")
    with pytest.raises(ValueError, match="share shape"):
        EngineCore([SPEC, other])


def test_the_default_pool_holds_every_session_and_snapshot_that_the_limits_allow():
    core = EngineCore(SPEC, Limits(max_sessions=3, max_snapshots=2))
    retention = Retention.of(SPEC)
    assert core.num_pages() == 3 * retention.pages_per_session + 2 * retention.pages_at_boundary
    assert core.num_pages("toy") == core.num_pages()


def test_a_session_costs_what_the_profile_says():
    core = EngineCore(SPEC)
    world = core._roster.find_world(None)
    assert isinstance(world, ServedWorld)
    assert world.session_bytes == PAGES * SPEC.page_bytes + SPEC.fixed_bytes
