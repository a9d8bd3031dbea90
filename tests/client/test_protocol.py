"""The session protocol without I/O: each message becomes exactly one thing, epochs and states are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from physis_client import wire
from physis_client.chunks import Chunk, chunk_from_message, status_from_message, world_from_message
from physis_client.errors import InvalidState, VersionMismatch
from physis_client.protocol import (
    Answered,
    ChunkArrived,
    ChunkBuffer,
    Greeted,
    Happened,
    Refused,
    SessionProtocol,
)
from physis_client.wire import WireError
from physis_stream.server.dialogue import world_object
from physis_stream.testing.fake_service import FakeEngineService

SESSION = {
    "id": "a", "model": "m", "mode": "realtime", "state": "streaming", "epoch": 0, "chunks": 1, "queue_position": 0,
    "ended_reason": None,
}  # fmt: skip
WORLD = world_object(FakeEngineService().world)


def chunk_message(epoch=0, chunk=1, first=3, **more):
    frames = np.zeros((3, 4, 4, 3), np.uint8)
    return {
        "type": "chunk", "frames": frames, "epoch": epoch, "chunk": chunk, "first_frame_id": first, "applied": [1],
        "action": [0.5], "state": {"x": 1.0}, "reward": None, "timing_ms": {"total": 2.0}, **more,
    }  # fmt: skip


def error(code):
    return {"code": code, "message": "m", "recoverable": True, "retry_after_s": None, "request_id": "r"}


def receive(protocol, **message):
    return protocol.receive(wire.encode(message))


def test_requests_are_numbered_and_carry_their_fields():
    protocol = SessionProtocol()
    numbers = []
    for kind in ("step", "pause"):
        number, message = protocol.request(kind, {"event": 7})
        assert wire.decode(message) == {"id": number, "type": kind, "event": 7}
        numbers.append(number)
    assert numbers == [1, 2]
    assert wire.decode(protocol.hello()) == {"type": "hello", "version": 1}


def test_hello_brings_the_world_and_the_state():
    protocol = SessionProtocol()
    greeted = receive(protocol, type="hello", ok=True, world=WORLD, session={**SESSION, "epoch": 2})
    assert isinstance(greeted, Greeted)
    assert (greeted.world.name, greeted.state, greeted.epoch) == ("fake-square", "streaming", 2)
    assert (protocol.state, protocol.epoch) == ("streaming", 2)


def test_a_refused_hello_is_its_error():
    refused = receive(SessionProtocol(), type="hello", ok=False, error=error("version_mismatch"))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, VersionMismatch)


def test_answers_name_their_request_and_refusals_are_typed():
    protocol = SessionProtocol()
    good = receive(protocol, re=1, ok=True, snapshot="s")
    assert isinstance(good, Answered)
    assert (good.number, good.body["snapshot"], good.error) == (1, "s", None)
    bad = receive(protocol, re=2, ok=False, error=error("invalid_state"))
    assert isinstance(bad.error, InvalidState)
    nameless = receive(protocol, re=None, ok=False, error=error("invalid_request"))
    assert isinstance(nameless, Refused)


def test_chunks_are_acknowledged_by_their_first_frame():
    protocol = SessionProtocol()
    arrived = receive(protocol, **chunk_message(first=12))
    assert isinstance(arrived, ChunkArrived)
    assert wire.decode(protocol.ack(arrived.chunk)) == {"type": "ack", "frame_id": 12}


def test_after_a_reset_is_answered_older_chunks_are_stale():
    protocol = SessionProtocol()
    number, _ = protocol.request("reset", {"seed": 1})
    assert not receive(protocol, **chunk_message(epoch=0)).stale
    receive(protocol, re=number, ok=True, session={**SESSION, "epoch": 1})
    assert protocol.epoch == 1
    assert receive(protocol, **chunk_message(epoch=0)).stale
    assert not receive(protocol, **chunk_message(epoch=1)).stale


def test_a_refused_reset_begins_no_epoch():
    protocol = SessionProtocol()
    number, _ = protocol.request("reset", {})
    receive(protocol, re=number, ok=False, error=error("invalid_state"))
    assert protocol.epoch == 0


def test_a_chunk_or_a_status_may_begin_the_epoch_too():
    protocol = SessionProtocol()
    receive(protocol, **chunk_message(epoch=2))
    receive(protocol, event="status", state="paused", epoch=3)
    assert (protocol.epoch, protocol.state) == (3, "paused")
    assert receive(protocol, **chunk_message(epoch=2)).stale


def test_the_end_is_remembered_with_its_reason():
    protocol = SessionProtocol()
    happened = receive(protocol, event="ended", reason="evicted")
    assert isinstance(happened, Happened)
    assert (protocol.state, protocol.ended_reason) == ("ended", "evicted")


@pytest.mark.parametrize(
    "message",
    [
        {"type": "what"},
        {},
        {"event": 3},
        {"type": "chunk"},
        {"type": "hello", "ok": True},
        {"type": "hello", "ok": True, "world": WORLD, "session": {}},
        {"type": "hello", "ok": True, "world": {"name": "x"}, "session": SESSION},
        chunk_message(frames=[1, 2]),
        chunk_message(frames=np.zeros((3, 4, 4, 4), np.uint8)),
        chunk_message(frames=np.zeros((3, 4, 4, 3), np.float32)),
        chunk_message(applied=None),
        chunk_message(state=[1]),
        chunk_message(epoch="x"),
    ],
    ids=lambda m: str(m)[:40],
)
def test_a_message_of_no_known_kind_is_a_typed_error(message):
    with pytest.raises(WireError):
        receive(SessionProtocol(), **message)


def test_text_is_not_spoken_here():
    with pytest.raises(WireError):
        SessionProtocol().receive("hello")


def test_a_newer_server_may_add_fields():
    assert world_from_message({**WORLD, "colour": "blue"}).name == "fake-square"
    assert status_from_message({**SESSION, "mood": "good"}).state == "streaming"
    assert chunk_from_message({**chunk_message(), "sound": b""}).index == 1


def a_chunk(index, epoch=0):
    return Chunk(np.zeros((2, 4, 4, 3), np.uint8), epoch, index, 2 * index, (), (), {}, None)


def test_the_buffer_keeps_the_newest_two_and_counts_the_rest():
    buffer = ChunkBuffer(2)
    for index in range(5):
        buffer.put(a_chunk(index))
    assert [c.index for c in buffer.waiting] == [3, 4]
    assert (buffer.newest.index, buffer.dropped) == (4, 3)


def test_what_a_dropped_chunk_applied_is_told_with_the_next():
    buffer = ChunkBuffer(2)
    for index in range(5):
        buffer.put(replace(a_chunk(index), applied=(index,)))
    assert [c.applied for c in buffer.waiting] == [(0, 1, 2, 3), (4,)]


def test_the_buffer_forgets_the_old_epoch():
    buffer = ChunkBuffer(2)
    buffer.put(a_chunk(5))
    buffer.begin_epoch(1)
    assert (list(buffer.waiting), buffer.newest) == ([], None)
    buffer.put(a_chunk(6))
    buffer.put(a_chunk(0, epoch=1))
    assert [c.epoch for c in buffer.waiting] == [1]


def test_a_chunk_splits_into_contiguous_frames_with_rising_pts():
    frames = list(Chunk(np.zeros((3, 4, 5, 3), np.uint8), 0, 1, 6, (4,), (), {"x": 1.0}, None).split(10.0))
    assert [f.frame_id for f in frames] == [6, 7, 8]
    assert [f.pts for f in frames] == pytest.approx([0.6, 0.7, 0.8])
    assert all(f.rgb.flags.c_contiguous and f.rgb.shape == (4, 5, 3) for f in frames)
    assert all(f.applied == (4,) and f.state == {"x": 1.0} for f in frames)
