"""The loop with a real (small) model: calls are answered, faults stay where they arose, nothing is left behind."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from physis_stream.core import commands
from physis_stream.core.commands import OpenSession, Pace
from physis_stream.core.errors import Capacity, EngineError, InvalidAction, InvalidState, NotFound, SessionEnded
from physis_stream.core.ids import EventId, SessionId, SnapshotId
from physis_stream.models.tiny.weights import tiny_random
from physis_stream.runtime.messages import Answer, AskCommand, AskStats, AskStatus, AskSteps, StepItem
from physis_stream.runtime.served_model import ServedModel, serve
from physis_stream.runtime.service import ChunkOut, SessionStatus
from tests.oracles.player import Player, wander

A, B, C = (SessionId(name) for name in "abc")
WORLD = tiny_random(window=3)


def served() -> ServedModel:
    return serve(WORLD)


def free_of_everything(player: Player) -> bool:
    player.run()
    player.loop.check_integrity()
    stats, store = player.loop.stats(), player.loop.executor.store
    return stats.sessions == stats.pages_used == len(store) == store.latents.num_used == store.decoder.num_used == 0


def steps(player: Player, *items: StepItem) -> Answer:
    player.loop.ask(AskSteps(77, list(items)))
    player.run()
    return player.answers.pop(77, Answer(-1))


@dataclasses.dataclass
class Poison:
    """A denoiser that breaks when told: `nan_at` a session's action, or an exception for the whole batch."""

    nan_at: float | None = None
    raises: str | None = None

    def __call__(self, x_RCHW, t_R, action_RA, attend):
        if self.raises is not None:
            raise RuntimeError(self.raises)
        velocity = WORLD.transformer(x_RCHW, t_R, action_RA, attend)
        if self.nan_at is not None:
            velocity[action_RA[:, 0] == self.nan_at] = torch.nan
        return velocity


# Faults of one session stay with it


def test_a_row_that_is_not_finite_fails_its_session_alone():
    poison = Poison()
    player = Player(dataclasses.replace(served(), denoiser=poison), deterministic=True, fixed_rows=4)
    whole = Player(served(), deterministic=True, fixed_rows=4)
    for name, seed in (("a", 1), ("b", 2)):
        player.open(name, seed)
        whole.open(name, seed)
    for action in wander(3):
        player.step(a=action, b=action)
        whole.step(a=action, b=action)
    poison.nan_at = 13.0
    first = steps(player, StepItem(A, EventId(10), (13.0, 0.0)), StepItem(B, EventId(10), (99.0, 0.0)))
    assert first.error is not None
    assert "not finite" in first.error.message
    whole.step(a=(13.0, 0.0), b=(99.0, 0.0))
    assert torch.equal(player.frames("b"), whole.frames("b"))
    assert player.loop.desk.register.live(A).state == "failed"
    assert [notice.kind for notice in player.notices if notice.session == A][-1] == "error"
    again = steps(player, StepItem(A, EventId(11), (1.0, 1.0)))
    assert isinstance(again.error, InvalidState)


def test_after_a_failure_reset_works_and_shows_no_trace_of_it():
    poison = Poison(nan_at=13.0)
    player = Player(dataclasses.replace(served(), denoiser=poison), deterministic=True, fixed_rows=4)
    player.open("a", 1)
    steps(player, StepItem(A, EventId(1), (13.0, 0.0)))
    player.command(commands.ResetSession(A, 1))
    found = steps(player, StepItem(A, EventId(2), (50.0, 60.0))).value
    whole = Player(served(), deterministic=True, fixed_rows=4)
    whole.open("a", 1)
    assert np.array_equal(found[0].frames, whole.step(a=(50.0, 60.0))[0].frames)


def test_a_model_that_raises_fails_the_sessions_of_that_batch_and_not_the_engine():
    poison = Poison()
    player = Player(dataclasses.replace(served(), denoiser=poison))
    player.open("a", 1)
    poison.raises = "out of memory"
    answer = steps(player, StepItem(A, EventId(1), (1.0, 1.0)))
    assert answer.error is not None
    assert "RuntimeError: out of memory" in answer.error.message
    assert "Traceback" not in answer.error.message
    poison.raises = None
    player.open("b", 2)
    assert len(player.step(b=(1.0, 1.0))) == 1
    player.command(commands.CloseSession(A))
    player.command(commands.CloseSession(B))
    assert free_of_everything(player)


def test_a_decoder_that_raises_fails_only_whom_it_decoded():
    class Codec:
        broken = False

        def __getattr__(self, name):
            return getattr(WORLD.vision, name)

        def decode(self, latents, state):
            if self.broken:
                raise RuntimeError("no codec today")
            return WORLD.vision.decode(latents, state)

    codec = Codec()
    player = Player(dataclasses.replace(served(), codec=codec))
    player.open("a", 1)
    codec.broken = True
    answer = steps(player, StepItem(A, EventId(1), (1.0, 1.0)))
    assert answer.error is not None
    assert "decoding failed" in answer.error.message
    codec.broken = False
    player.command(commands.ResetSession(A, 1))
    assert steps(player, StepItem(A, EventId(2), (1.0, 1.0))).error is None


# Closing, at whatever stage


@pytest.mark.parametrize("turns", range(6))
def test_closing_in_mid_chunk_leaves_no_page_and_no_slot(turns):
    """SG#36475, VO#5295."""
    player = Player(served())
    for seed, name in enumerate("abc"):
        player.open(name, seed)
        for action in wander(4):
            player.queue(name, action)
    player.run(turns)
    player.command(commands.CloseSession(B))
    for name, kept in zip("ac", (A, C), strict=True):
        assert len(player.chunks[name]) == 5, "a neighbour lost chunks"
        player.command(commands.CloseSession(kept))
    assert free_of_everything(player)


def test_a_thousand_sessions_one_after_another_leave_nothing():
    player = Player(served(), max_sessions=2)
    for number in range(60):
        player.open(f"s{number}", number)
        player.queue(f"s{number}", (1.0, 2.0))
        player.run(number % 4)
        player.command(commands.CloseSession(SessionId(f"s{number}")))
    assert free_of_everything(player)
    assert player.loop.executor.store.decoder.tensor.shape[0] <= 8


def test_an_update_for_a_closed_session_does_not_bring_it_back():
    """VO#5388."""
    player = Player(served())
    player.open("a", 1)
    player.command(commands.CloseSession(A))
    answer = player.command(commands.SubmitControl(A, EventId(1), action=(1.0, 1.0)))
    assert isinstance(answer.error, SessionEnded)
    assert isinstance(player.command(commands.ResetSession(A, 1)).error, SessionEnded)
    assert player.command(commands.CloseSession(A)).error is None
    assert free_of_everything(player)


def test_a_step_under_way_is_refused_when_its_session_closes():
    player = Player(served())
    player.open("a", 1)
    call = player.queue("a", (1.0, 1.0))
    player.command(commands.CloseSession(A), run=False)
    player.run()
    assert isinstance(player.answers[call].error, SessionEnded)


# Resets and epochs


@pytest.mark.parametrize("turns", range(5))
def test_nothing_of_the_old_epoch_is_shown_after_a_reset(turns):
    player = Player(served())
    player.open("a", 1)
    calls = [player.queue("a", action) for action in wander(4)]
    player.run(turns)
    heard = len(player.chunks["a"])
    player.command(commands.ResetSession(A, 2))
    assert all(chunk.epoch == 1 for chunk in player.chunks["a"][heard:])
    assert player.chunks["a"][heard].chunk == 0
    answered = [player.answers[call] for call in calls]
    assert all(isinstance(answer.error, InvalidState) or answer.value for answer in answered)
    ids = [chunk.first_frame_id for chunk in player.chunks["a"]]
    assert ids == sorted(set(ids)), "frame ids rise over resets"


def test_a_reset_while_the_first_chunk_is_on_its_way_keeps_what_is_asked_after_it():
    player = Player(served())
    player.loop.ask(AskCommand(1, OpenSession(A, 1, Pace.LOCKSTEP)))
    player.loop.ask(AskCommand(2, commands.ResetSession(A, 2)))
    player.loop.ask(AskSteps(3, [StepItem(A, EventId(1), (1.0, 1.0))]))
    player.run()
    answer = player.answers[3]
    assert answer.error is None
    assert isinstance(answer.value, list)
    assert answer.value[0].epoch == 1


def test_the_decoder_remembers_nothing_of_an_earlier_epoch():
    """VO#6533: state on the module, two sessions bleed into each other."""
    player = Player(served(), deterministic=True, fixed_rows=4)
    player.open("b", 9)
    player.open("a", 1)
    for action in wander(5):
        player.step(a=action, b=action[::-1])
    player.command(commands.ResetSession(A, 1))
    player.step(a=(5.0, 6.0))
    fresh = Player(served(), deterministic=True, fixed_rows=4)
    fresh.open("a", 1)
    fresh.step(a=(5.0, 6.0))
    assert torch.equal(player.frames("a")[-2:], fresh.frames("a"))


# Calls and refusals


def test_a_repeated_step_is_answered_with_the_same_chunk_and_moves_nothing():
    """VO#6443: a client retries."""
    player = Player(served())
    player.open("a", 1)
    item = StepItem(A, EventId(4), (1.0, 1.0))
    first, second = steps(player, item), steps(player, item)
    assert first.value[0].frames is second.value[0].frames
    assert len(player.chunks["a"]) == 2
    player.loop.ask(AskSteps(50, [StepItem(A, EventId(5), (2.0, 1.0))]))
    player.loop.ask(AskSteps(51, [StepItem(A, EventId(5), (2.0, 1.0))]))
    player.run()
    assert player.answers[50].value[0].chunk == player.answers[51].value[0].chunk == 2
    stale = steps(player, StepItem(A, EventId(4), (1.0, 1.0)))
    assert isinstance(stale.error, InvalidState)
    assert "event 4" in stale.error.message


@pytest.mark.parametrize("bad", [(1.0,), (1.0, float("nan")), (1.0, float("inf")), (1.0, 2.0, 3.0)])
def test_one_wrong_item_refuses_the_batch_before_any_session_moves(bad):
    player = Player(served())
    player.open("a", 1)
    player.open("b", 2)
    answer = steps(player, StepItem(A, EventId(1), (1.0, 1.0)), StepItem(B, EventId(1), bad))
    assert isinstance(answer.error, InvalidAction)
    assert len(player.chunks["a"]) == len(player.chunks["b"]) == 1


def test_what_is_unknown_is_not_found_and_twice_in_a_batch_is_refused():
    player = Player(served())
    player.open("a", 1)
    assert isinstance(steps(player, StepItem(C, EventId(1), (1.0, 1.0))).error, NotFound)
    twice = StepItem(A, EventId(1), (1.0, 1.0))
    assert isinstance(steps(player, twice, twice).error, InvalidAction)
    assert isinstance(player.command(commands.RestoreSnapshot(A, SnapshotId("none"))).error, NotFound)
    assert isinstance(player.command(commands.StepChunk(A, EventId(1), (1.0, 1.0))).error, InvalidState)


def test_a_full_engine_queues_who_waits_and_refuses_who_does_not():
    player = Player(served(), max_sessions=1)
    player.open("a", 1)
    refused = player.command(OpenSession(B, 1, Pace.LOCKSTEP, wait=False))
    assert isinstance(refused.error, Capacity)
    assert refused.error.retry_after_s is not None
    queued = player.command(OpenSession(C, 1, Pace.LOCKSTEP))
    assert isinstance(queued.value, SessionStatus)
    assert (queued.value.state, queued.value.queue_position) == ("queued", 1)
    player.command(commands.CloseSession(A))
    player.loop.ask(AskStatus(5, C))
    player.run()
    assert player.answers[5].value.state == "ready"
    assert player.answers[5].value.queue_position == 0


def test_an_image_of_another_size_is_refused_and_a_right_one_is_the_first_frame():
    player = Player(served())
    wrong = np.zeros((10, 10, 3), np.uint8)
    player.loop.ask(AskCommand(1, OpenSession(A, 0, Pace.LOCKSTEP), wrong))
    player.run()
    assert isinstance(player.answers[1].error, InvalidAction)
    pixels = [np.full((96, 96, 3), grey, np.uint8) for grey in (40, 200)]
    for call, (name, image) in enumerate(zip("bc", pixels, strict=True), start=2):
        player.loop.ask(AskCommand(call, OpenSession(SessionId(name), 0, Pace.LOCKSTEP), image))
        player.listen(name)
    first, second = (player.chunks[name][0].frames for name in "bc")
    assert not np.array_equal(first, second)
    player.command(commands.ResetSession(B, 5))
    assert np.array_equal(player.chunks["b"][-1].frames, first), "a reset keeps the image"


def test_a_refused_image_session_lets_go_of_its_image():
    player = Player(served(), max_sessions=1)
    player.open("a", 1)
    image = np.zeros((96, 96, 3), np.uint8)
    player.loop.ask(AskCommand(1, OpenSession(B, 0, Pace.LOCKSTEP, wait=False), image))
    player.run()
    assert isinstance(player.answers[1].error, Capacity)
    assert not player.loop.executor.store._images


def test_a_session_that_leaves_the_queue_takes_its_image_with_it():
    player = Player(served(), max_sessions=1)
    player.open("a", 1)
    player.loop.ask(AskCommand(1, OpenSession(B, 0, Pace.LOCKSTEP), np.zeros((96, 96, 3), np.uint8)))
    assert player.loop.executor.store._images
    player.command(commands.CloseSession(B))
    assert not player.loop.executor.store._images


# Realtime, under a clock that the test moves


def test_a_realtime_session_makes_a_chunk_each_chunk_time_and_applies_the_newest_action():
    player = Player(served())
    player.open("a", 1, Pace.REALTIME)
    for number in range(8):
        player.command(commands.SubmitControl(A, EventId(number + 1), action=(10.0 * number, 5.0)))
        player.clock.advance_ns(100_000_000)
        player.run()
    player.clock.advance_ns(100_000_000)
    player.run()
    chunks = player.chunks["a"]
    assert 8 <= len(chunks) <= 11
    applied = [event for chunk in chunks for event in chunk.applied]
    assert applied == sorted(set(applied))
    assert set(applied) >= set(range(1, 8)), "an accepted action was never applied"
    used = next(chunk for chunk in chunks if 5 in chunk.applied)
    assert used.action[0] >= 40.0


def test_stats_are_what_happened():
    player = Player(served())
    player.open("a", 1)
    player.step(a=(1.0, 1.0))
    player.loop.ask(AskStats(9))
    player.run()
    stats = player.answers[9].value
    assert stats.sessions == 1
    assert stats.rows > stats.ticks / 2 > 0
    assert 0.0 <= stats.overhead_share < 1.0
    assert stats.pages_used > 0
    assert stats.tick_ms_p95 >= stats.tick_ms_p50 > 0


def test_a_chunk_says_what_it_is():
    player = Player(served())
    player.open("a", 1)
    chunk: ChunkOut = player.step(a=(700.0, -3.0))[0]
    assert chunk.action == (512.0, 0.0), "the action as applied, clipped"
    assert chunk.frames.flags.c_contiguous
    assert chunk.frames.dtype == np.uint8
    assert list(chunk.state) == list(WORLD.profile.readout.names)
    assert chunk.reward == chunk.state["reward"]
    assert set(chunk.timing_ms) == {"queue", "denoise", "decode", "total", "batch_rows"}
    assert chunk.timing_ms["total"] >= chunk.timing_ms["queue"] >= 0


def test_errors_pickle_with_all_they_say():
    import pickle

    error = pickle.loads(pickle.dumps(Answer(1, error=Capacity("full", retry_after_s=2.5)))).error
    assert isinstance(error, EngineError)
    assert (error.code, error.message, error.retry_after_s) == ("capacity", "full", 2.5)
