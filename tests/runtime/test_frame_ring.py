"""Frames through shared memory: exact, bounded, released, and gone when nobody holds them."""

from __future__ import annotations

from multiprocessing.shared_memory import SharedMemory

import numpy as np
import pytest

from physis_stream.runtime.frame_ring import FrameRing
from physis_stream.runtime.messages import Answer
from physis_stream.runtime.service import ChunkOut


@pytest.fixture
def ends():
    reader = FrameRing.create(3, 8192)
    writer = FrameRing.attach(reader.name, 3, 8192)
    yield reader, writer
    writer.close(unlink=False)
    reader.close(unlink=True)


def picture(seed: int, size: int = 8192) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 255, size, np.uint8)


def test_a_message_arrives_as_it_was_and_frees_its_slots(ends):
    reader, writer = ends
    chunk = ChunkOut("s", 0, 1, 1, picture(1, 6912).reshape(1, 48, 48, 3), (3,), (0.5,), {"x": 1.0}, None)
    content = writer.dump([Answer(7, [chunk])])
    assert len(content) < 2000, "the frames travel beside the message"
    assert reader.num_full == 1
    found = reader.load(content)[0].value[0]
    assert reader.num_full == 0
    assert np.array_equal(found.frames, chunk.frames)
    assert found.frames.flags.c_contiguous
    assert found.frames.flags.writeable
    assert found.applied == (3,)


def test_when_the_ring_is_full_frames_travel_in_the_message(ends):
    reader, writer = ends
    arrays = [picture(seed) for seed in range(5)]
    contents = [writer.dump(array) for array in arrays]
    assert reader.num_full == 3
    for array, content in zip(arrays, contents, strict=True):
        assert np.array_equal(reader.load(content), array)
    assert reader.num_full == 0


def test_an_array_beyond_a_slot_and_a_small_one_stay_in_the_message(ends):
    reader, writer = ends
    for size in (100, 10_000):
        assert np.array_equal(reader.load(writer.dump(picture(0, size))), picture(0, size))
    assert reader.num_full == 0


def test_slots_are_used_in_turn_for_ever(ends):
    reader, writer = ends
    for seed in range(50):
        assert np.array_equal(reader.load(writer.dump(picture(seed))), picture(seed))


def test_the_heartbeat_crosses(ends):
    reader, writer = ends
    writer.beat(123_456_789_012_345)
    assert reader.heartbeat_ns == 123_456_789_012_345


def test_closing_twice_is_no_error_and_leaves_no_memory():
    ring = FrameRing.create(2, 4096)
    name = ring.name
    ring.close(unlink=True)
    ring.close(unlink=True)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name=name)
