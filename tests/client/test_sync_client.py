"""The blocking client against the real server: what the interface promises, and never a hang."""

from __future__ import annotations

import itertools
import socket
import threading
import time

import numpy as np
import pytest

from physis_client import (
    Capacity,
    Client,
    InvalidAction,
    InvalidState,
    NotFound,
    PhysisError,
    SessionEnded,
    Timeout,
    TooLarge,
    Transport,
    Unauthorized,
)
from physis_stream.core import errors as core_errors
from physis_stream.core.ids import SessionId
from physis_stream.server.settings import ServerSettings
from physis_stream.testing.fake_service import FakeEngineService, start_of
from physis_stream.testing.serving import QUICK, serving_in_thread

from .conftest import WORLD


def test_models_are_listed(client):
    (world,) = client.models()
    assert (world.name, world.height, world.width, world.fps, world.chunk_frames) == (WORLD, 96, 96, 10.0, 3)
    assert world.action["names"] == ["x", "y"]


# Lockstep


def test_a_lockstep_session_shows_its_start_and_steps(client):
    with client.open_session(WORLD, seed=3) as session:
        first = session.observe()
        assert (first.index, first.epoch) == (0, 0)
        assert first.state == pytest.approx(dict(zip("xy", start_of(3), strict=True)))
        chunk = session.step([0.5, 0.5])
        assert (chunk.index, chunk.frames.shape, chunk.frames.dtype) == (1, (3, 96, 96, 3), np.uint8)
        assert chunk.frames.flags.c_contiguous
        assert chunk.applied == (1,)
        assert chunk.reward is not None
        assert chunk.timing["total"] > 0
        assert session.observe() is chunk


def test_two_sessions_with_the_same_seed_and_actions_agree_bit_for_bit(client):
    with client.open_session(WORLD, seed=4) as a, client.open_session(WORLD, seed=4) as b:
        for action in ([1.0, 0.0], [0.0, -1.0]):
            assert (a.step(action).frames == b.step(np.float32(action)).frames).all()


@pytest.mark.parametrize(
    "action",
    [[float("nan"), 0.0], [0.0, float("inf")], [1.0], [1.0, 2.0, 3.0], "ab", None, [[0.0, 0.0]], [True, False]],
    ids=repr,
)
def test_a_wrong_action_is_refused_and_nothing_moved(client, engine, action):
    with client.open_session(WORLD, seed=1) as session:
        place = engine.place_of(SessionId(session.id))
        with pytest.raises(InvalidAction):
            session.step(action)
        assert engine.place_of(SessionId(session.id)) == place
        assert session.step([0.0, 0.0]).index == 1


def test_fork_gives_one_or_many_and_they_go_their_own_ways(client):
    with client.open_session(WORLD, seed=1) as session:
        session.step([0.0, 0.0])
        twin = session.fork()
        three = session.fork(3)
        assert len({session.id, twin.id, *(s.id for s in three)}) == 5
        a, b = session.step([1.0, 1.0]), twin.step([-1.0, -1.0])
        assert a.index == b.index == 2
        assert a.state["x"] > b.state["x"]
        assert [child.step([0.0, 0.0]).index for child in three] == [2, 2, 2]


def test_a_snapshot_is_restored(client):
    with client.open_session(WORLD, seed=1) as session:
        mark = session.snapshot()
        one = session.step([1.0, 1.0])
        session.restore(mark)
        again = session.step([1.0, 1.0])
        assert again.epoch == 1
        assert (again.frames == one.frames).all()
        with pytest.raises(NotFound):
            session.restore("0" * 32)


def test_reset_begins_again_from_the_seed(client):
    with client.open_session(WORLD, seed=1) as session:
        session.step([1.0, 1.0])
        first = session.reset(seed=9)
        assert (first.epoch, first.index, session.seed) == (1, 0, 9)
        assert (first.state["x"], first.state["y"]) == pytest.approx(start_of(9))
        assert session.chunk is first
        session.step([1.0, 1.0])
        assert (session.reset().frames == first.frames).all(), "without a seed from the last one"


def test_step_many_is_one_call_in_order(client, engine):
    sessions = [client.open_session(WORLD, seed=n) for n in range(3)]
    engine.calls.clear()
    chunks = client.step_many(sessions, [[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert engine.calls.count("step_many") == 1
    assert [chunk.action for chunk in chunks] == [(1.0, 0.0), (0.0, 1.0), (-1.0, 0.0)]
    assert sessions[1].observe() is chunks[1]
    mixed = [s.step([0.0, 0.0]).index for s in sessions]
    assert mixed == [2, 2, 2], "calls over both ways count together"


def test_step_many_moves_nothing_if_one_action_is_bad(client, engine):
    sessions = [client.open_session(WORLD) for _ in range(2)]
    places = [engine.place_of(SessionId(s.id)) for s in sessions]
    with pytest.raises(InvalidAction):
        client.step_many(sessions, [[1.0, 1.0], [1.0]])
    with pytest.raises(InvalidState, match="as many actions"):
        client.step_many(sessions, [[1.0, 1.0]])
    assert [engine.place_of(SessionId(s.id)) for s in sessions] == places


def test_an_image_starts_a_session(client):
    with client.open_session(WORLD, image=np.zeros((96, 96, 3), np.uint8)) as session:
        assert session.step([0.0, 0.0]).index == 1
    with pytest.raises(PhysisError, match="image"):
        client.open_session(WORLD, image=np.zeros((5, 5, 3), np.uint8))


# Realtime


def test_frames_come_with_rising_pts_and_name_the_action_that_they_show(client):
    with client.open_session(WORLD, seed=1, mode="realtime") as session:
        coming = session.frames()
        next(coming)
        event = session.act([1.0, 1.0])
        seen = [next(coming) for _ in range(12)]
        assert all(a.pts < b.pts and a.frame_id < b.frame_id for a, b in itertools.pairwise(seen))
        assert all(f.rgb.shape == (96, 96, 3) and f.rgb.flags.c_contiguous for f in seen)
        assert sum(event in f.applied for f in seen) == 3, "the frames of one chunk"


def test_pause_is_patient_and_resume_goes_on(client):
    with client.open_session(WORLD, mode="realtime") as session:
        coming = session.frames(timeout=0.4)
        next(coming)
        session.pause()
        assert session.state == "paused"
        threading.Timer(0.8, session.resume).start()
        last = [next(coming) for _ in range(9)][-1]
        assert last.frame_id > 3


def test_frames_that_do_not_come_are_a_timeout_not_a_hang(client, engine):
    with client.open_session(WORLD, mode="realtime") as session:
        coming = session.frames(timeout=0.3)
        next(coming)
        engine.crash()
        began = time.monotonic()
        with pytest.raises(Timeout):
            list(coming)
        assert time.monotonic() - began < 2.0
        engine.alive = True


def test_interrupt_puts_the_rest_action_in_place(client, engine):
    with client.open_session(WORLD, mode="realtime") as session:
        session.act([1.0, 1.0])
        session.interrupt()
        assert engine._sessions[SessionId(session.id)].target == (0.0, 0.0)


def test_a_prompt_is_an_event_too(client, engine):
    with client.open_session(WORLD, mode="realtime") as session:
        assert session.set_prompt("a red square") > 0
        assert engine._sessions[SessionId(session.id)].prompt == "a red square"
        with pytest.raises(TooLarge):
            session.set_prompt("x" * 3000)


def test_after_a_reset_no_frame_of_the_old_epoch_comes(client):
    with client.open_session(WORLD, seed=1, mode="realtime") as session:
        coming = session.frames()
        next(coming)
        session.act([1.0, 1.0])
        [next(coming) for _ in range(6)]
        session.reset(seed=2)
        chunk_of_old = 3
        fresh = [next(coming) for _ in range(chunk_of_old + 6)][chunk_of_old:]
        assert all((f.state["x"], f.state["y"]) != (1.0, 1.0) for f in fresh)


def test_events_call_back_in_order_on_a_thread_of_their_own(client):
    heard, done = [], threading.Event()

    def note(body):
        heard.append((body["state"], threading.current_thread().name))
        session.status()
        if body["state"] == "streaming":
            done.set()

    with client.open_session(WORLD, mode="realtime") as session:
        session.on("status", note)
        session.pause()
        session.resume()
        assert done.wait(3.0), "a callback may call the session itself"
        assert [state for state, _ in heard] == ["paused", "streaming"]
        assert {name for _, name in heard} == {"physis callbacks"}
        with pytest.raises(InvalidState):
            session.on("nothing", print)


def test_a_failed_session_is_told_by_an_event(client, server, engine):
    heard = []
    with client.open_session(WORLD, mode="realtime") as session:
        session.on("error", heard.append)
        server.call(lambda: engine.fail_session(SessionId(session.id), "a tick failed"))
        deadline = time.monotonic() + 3.0
        while not heard and time.monotonic() < deadline:
            time.sleep(0.01)
        assert heard[0]["error"]["message"] == "a tick failed"
        assert session.state == "failed"


def test_a_slow_reader_gets_the_newest_chunks(client):
    with client.open_session(WORLD, mode="realtime") as session:
        coming = session.frames()
        next(coming)
        time.sleep(0.7)
        old = [next(coming) for _ in range(2)][-1]
        fresh = next(coming)
        assert fresh.frame_id - old.frame_id > 6
        assert session._buffer.dropped > 3


# Ends


def test_close_is_idempotent_frees_the_slot_and_ends_the_loop(client, engine):
    session = client.open_session(WORLD, mode="realtime")
    coming = session.frames()
    next(coming)
    session.close()
    session.close()
    assert engine.live_sessions() == []
    assert len(list(coming)) <= 2, "what was left of the chunk, then the end"
    with pytest.raises(SessionEnded) as caught:
        session.step([0.0, 0.0])
    assert caught.value.reason == "closed"
    assert not caught.value.recoverable


def test_a_session_that_the_server_ends_says_why(client, server, engine):
    session = client.open_session(WORLD, mode="realtime")
    coming = session.frames()
    next(coming)
    ended = engine.close_session
    server.call(lambda: __import__("asyncio").ensure_future(ended(SessionId(session.id), "evicted")))
    with pytest.raises(SessionEnded) as caught:
        list(coming)
    assert caught.value.reason == "evicted"
    with pytest.raises(SessionEnded):
        session.act([0.0, 0.0])


def test_closing_the_client_closes_its_sessions(server, engine):
    client = Client(server.url)
    client.open_session(WORLD)
    client.open_session(WORLD, mode="realtime")
    client.close()
    client.close()
    assert engine.live_sessions() == []
    with pytest.raises(Transport):
        client.models()


def test_a_session_may_be_taken_up_elsewhere_by_id_and_token(client, server):
    session = client.open_session(WORLD, seed=1)
    session.step([1.0, 1.0])
    assert client.session(session.id) is session
    with Client(server.url) as other:
        again = other.session(session.id, session.token)
        assert again.step([1.0, 1.0]).index == 2
        with pytest.raises(Unauthorized):
            other.session(session.id, "wrong")
        with pytest.raises(NotFound):
            other.session("0" * 32, session.token)
        again.close()
        with pytest.raises(SessionEnded):
            other.session(session.id, session.token)


def test_the_queue_is_waited_for_and_refused_on_wish(server, engine, client):
    engine.max_sessions = 1
    first = client.open_session(WORLD)
    with pytest.raises(Capacity) as caught:
        client.open_session(WORLD, wait=False)
    assert caught.value.retry_after_s is not None
    threading.Timer(0.3, first.close).start()
    second = client.open_session(WORLD, queue_timeout=3.0)
    assert second.step([0.0, 0.0]).index == 1
    with pytest.raises(Timeout):
        client.open_session(WORLD, queue_timeout=0.3)
    assert engine.live_sessions() == [second.id], "who gave up waiting waits no more"


def test_an_abandoned_session_can_be_taken_up_again(client, server, engine):
    session = client.open_session(WORLD, seed=1)
    session.step([0.0, 0.0])
    session.abandon()
    session.abandon()
    with pytest.raises(SessionEnded, match="abandoned"):
        session.step([0.0, 0.0])
    again = client.session(session.id, session.token)
    assert again.step([0.0, 0.0]).index == 2
    again.abandon()
    deadline = time.monotonic() + 3.0
    while engine.live_sessions() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert engine.live_sessions() == [], "nobody took it up"


def test_stats_are_the_engines_facts(client):
    client.open_session(WORLD)
    assert client.stats()["sessions"] == 1


# Failures


def test_a_wrong_host_fails_within_the_timeout():
    began = time.monotonic()
    with pytest.raises(Transport):
        Client("http://127.0.0.1:1", timeout=2.0).models()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Timeout):
            Client(url, timeout=0.3).models()
        with pytest.raises(PhysisError):
            Client("http://no-such-host.invalid", timeout=2.0).models()
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8080", "http://", "nonsense"])
def test_a_url_that_is_none_is_refused_at_once(url):
    with pytest.raises(Transport):
        Client(url)


def test_a_server_that_is_not_ours_is_a_typed_error():
    with socket.socket() as odd:
        odd.bind(("127.0.0.1", 0))
        odd.listen()

        def answer():
            peer, _ = odd.accept()
            peer.recv(4096)
            peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
            peer.close()

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(Transport):
            Client(f"http://127.0.0.1:{odd.getsockname()[1]}", timeout=2.0).models()


def test_a_call_that_takes_too_long_is_a_timeout_and_the_session_goes_on(client, engine):
    with client.open_session(WORLD) as session:
        session.step([0.0, 0.0])
        engine.delay_s["step_many"] = 1.5
        began = time.monotonic()
        with pytest.raises(Timeout):
            session.step([1.0, 1.0], timeout=0.2)
        assert time.monotonic() - began < 1.2
        del engine.delay_s["step_many"]
        assert session.step([0.0, 0.0]).index == 3, "the late step was made, its answer let go"


def test_a_server_that_stops_in_mid_loop_ends_every_call_with_a_typed_error(engine):
    outcome = []
    with serving_in_thread(engine) as server:
        client = Client(server.url, timeout=3.0)
        session, lockstep = client.open_session(WORLD, mode="realtime"), client.open_session(WORLD)
        coming = session.frames()
        next(coming)

        def loop():
            try:
                for _ in coming:
                    pass
            except PhysisError as error:
                outcome.append(error)

        thread = threading.Thread(target=loop)
        thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert isinstance(outcome[0], (SessionEnded, Transport))
    began = time.monotonic()
    with pytest.raises((SessionEnded, Transport)):
        lockstep.step([0.0, 0.0])
    with pytest.raises(Transport):
        client.models()
    client.close()
    assert time.monotonic() - began < 3.0


def test_a_connection_cut_in_mid_step_is_transport_and_the_next_call_reconnects(client, engine):
    session = client.open_session(WORLD, seed=1)
    session.step([0.0, 0.0])
    engine.delay_s["step_many"] = 0.3
    cut = threading.Timer(0.1, lambda: session._link._socket.socket.shutdown(socket.SHUT_RDWR))
    cut.start()
    began = time.monotonic()
    with pytest.raises(Transport) as caught:
        session.step([0.0, 0.0], timeout=3.0)
    assert time.monotonic() - began < 2.0
    assert caught.value.recoverable
    del engine.delay_s["step_many"]
    assert session.step([0.0, 0.0]).index >= 2, "the session was kept for us"


def test_the_engines_refusals_arrive_as_their_families(client, engine):
    with client.open_session(WORLD) as session:
        for error, family in [
            (core_errors.Capacity("full", retry_after_s=7.0), Capacity),
            (core_errors.InvalidState("no"), InvalidState),
            (core_errors.EngineDown("dead"), Transport),
        ]:
            engine.refuse_next["reset"] = error
            with pytest.raises(family) as caught:
                session.reset()
            assert caught.value.message == error.message
            assert caught.value.request_id
            assert caught.value.retry_after_s == error.retry_after_s


# Access


def test_url_and_token_come_from_the_environment(monkeypatch):
    token = "a-token-of-some-length"
    settings = ServerSettings(token=token, timers=QUICK)
    with serving_in_thread(FakeEngineService(pace=0.2), settings) as server:
        monkeypatch.setenv("PHYSIS_URL", server.url)
        monkeypatch.delenv("PHYSIS_TOKEN", raising=False)
        with Client() as nobody, pytest.raises(Unauthorized):
            nobody.models()
        monkeypatch.setenv("PHYSIS_TOKEN", token)
        with Client() as client, client.open_session(WORLD) as session:
            assert session.step([0.0, 0.0]).index == 1
            assert [c.index for c in client.step_many([session], [[0.0, 0.0]])] == [2]
        with Client(token="another-token-altogether") as wrong, pytest.raises(Unauthorized):
            wrong.open_session(WORLD)


def test_methods_may_be_called_from_many_threads(client):
    with client.open_session(WORLD) as session:
        found, failures = [], []

        def work():
            try:
                found.extend(session.step([0.0, 0.0]).index for _ in range(10))
            except PhysisError as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not failures
        assert sorted(found) == list(range(1, 41))


def test_no_thread_is_left_behind(server):
    def ours():
        return [t.name for t in threading.enumerate() if t.name.startswith("physis")]

    with Client(server.url) as client:
        session = client.open_session(WORLD, mode="realtime")
        session.on("status", print)
        session.observe()
        assert len(ours()) == 2
    deadline = time.monotonic() + 3.0
    while ours() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ours() == []
