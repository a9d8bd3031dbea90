"""The capacity benchmark measures what it says: a fair baseline, honest viewers, a search that finds the edge."""

from __future__ import annotations

import pytest
import torch

from physis_stream.bench import capacity
from physis_stream.bench.open_loop import Load, Verdict, Viewer, judge
from physis_stream.bench.sequential import SequentialSession
from physis_stream.models.paged_attention import ChunkRope
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.runtime.clock import ProcessorClock
from physis_stream.runtime.frame_decoder import FrameDecoder
from tests.oracles.player import Player
from tests.oracles.reference import transparent
from tests.oracles.test_paged_is_dense import difference


def test_the_baseline_dreams_what_the_engine_dreams_under_the_clean_rule():
    """Past the window too: the baseline does the same work, so its time may be compared."""
    model = transparent(tiny_random(window=3), "clean")
    player = Player(model)
    player.open("a", seed=5)
    with torch.inference_mode():
        decoder = FrameDecoder(model.codec, None)
        session = SequentialSession(
            model, decoder, ChunkRope(1, *model.token_grid, model.kv.head_dim, model.dtype, placeless=1), 5
        )
    session.next_chunk(model.spec.action.initial)
    for number in range(9):
        action = (50.0 * number, 20.0)
        frames = session.next_chunk(action)
        chunk = player.step(a=action)[0]
        assert difference(session.latent[0], player.latents("a")[-1]) < 1e-5
        assert abs(frames.astype(int) - chunk.frames.astype(int)).max() <= 1


LOAD = Load(sessions=1, chunk_s=0.1, ramp_s=0.0, hold_s=1.0)


@pytest.mark.parametrize(
    ("came_s", "on_time", "due"),
    [
        ([0.05 + 0.1 * k for k in range(10)], 9, 9),
        ([0.05 + 0.1 * k for k in range(5)] + [0.66, 0.7, 0.8, 0.9], 8, 9),
        ([0.05, 0.15, 0.25], 3, 9),
        ([0.05] * 12, 9, 9),
        ([], 0, 10),
    ],
)
def test_a_viewer_counts_what_came_before_it_was_shown(came_s, on_time, due):
    """First chunk at 0.05 s: chunk k is shown at 0.15 + 0.1 k, nine of them before 1.0 s."""
    assert Viewer(0.0, came_s).score(LOAD) == (on_time, due)


def test_the_service_level_is_all_but_a_hundredth_on_time_and_a_first_chunk_within_two_seconds():
    assert Verdict(0.99, 2.0).holds
    assert not Verdict(0.989, 0.1).holds
    assert not Verdict(1.0, 2.1).holds
    starved = judge(LOAD, [Viewer(0.0, [0.05 + 0.1 * k for k in range(10)]), Viewer(0.0)])
    assert starved.attainment == pytest.approx(9 / 19)
    assert not starved.holds


def test_arrivals_are_a_poisson_process_of_its_own():
    load = Load(sessions=2000, chunk_s=0.1, ramp_s=10.0, hold_s=1.0, seed=3)
    arrivals = load.arrivals()
    gaps = torch.tensor(arrivals).diff()
    assert arrivals == load.arrivals() == sorted(arrivals)
    assert float(gaps.mean()) == pytest.approx(0.005, rel=0.05)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("edge", [0, 1, 2, 7, 23, 40])
@pytest.mark.parametrize("guess", [1, 8, 30])
def test_the_search_finds_the_edge_from_anywhere(edge, guess):
    tried = []

    def server(load: Load) -> list[Viewer]:
        tried.append(load.sessions)
        came = [0.05 + 0.1 * k for k in range(12)] if load.sessions <= edge else []
        return [Viewer(0.0, came) for _ in range(load.sessions)]

    effort = capacity.Effort(rounds=1, ramp_s=0.0, hold_s=1.0, chunks=1)
    found, attained = capacity._largest(server, guess, 0.1, effort, 0, "test", lambda line: None)
    assert found == edge
    assert attained == (1.0 if edge else 0.0)
    assert len(tried) < 50


def test_the_processors_clock_skips_waiting():
    clock = ProcessorClock()
    before = clock.now_ns()
    clock.sleep_until_ns(before + 3_600_000_000_000)
    assert 3600.0 <= (clock.now_ns() - before) / 1e9 < 3601.0
