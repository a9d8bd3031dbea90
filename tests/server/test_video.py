"""Pictures to packets: sharp, even, in order, encoded once for all, nothing of an old epoch, nothing piling up."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import av
import numpy as np
import pytest
from aiortc.mediastreams import MediaStreamError

from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import ChunkOut
from physis_stream.server.feed import SessionFeed
from physis_stream.server.rate_control import Path, RateControl, worst
from physis_stream.server.video_encoder import CLOCK_RATE, VideoEncoder, fit, is_keyframe
from physis_stream.server.video_track import EncodedFrame, EncodedTrack, VideoStream
from physis_stream.testing.fake_service import FakeEngineService, draw

from .conftest import eventually

ID = SessionId("0" * 32)


def busy(time, height=96, width=96):
    """A picture with coloured edges that move, like a small game's."""
    picture = draw((np.cos(time / 5) * 0.6, np.sin(time / 5) * 0.6), height, width)
    picture[height // 3 : height // 3 + 5, width // 4 : width // 2] = (220, 40, 40)
    picture[height // 2 : height // 2 + 9, width // 2 : width // 2 + 9] = (30, 160, 60)
    return picture


def psnr(a, b):
    return 10 * np.log10(255**2 / np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))


def decoded(payloads):
    decoder = av.CodecContext.create("libvpx", "r")
    return [f.to_ndarray(format="rgb24") for payload in payloads for f in decoder.decode(av.Packet(payload))]


def test_a_tiny_world_arrives_crisp_from_the_first_picture_on():
    encoder = VideoEncoder(10.0, double_below=128)
    pictures = [busy(t) for t in range(30)]
    payloads = [encoder.encode(p, 9000 * i, keyframe=False) for i, p in enumerate(pictures)]
    shown = [picture[::2, ::2] for picture in decoded(payloads)]
    assert len(shown) == 30, "one packet a picture, no look-ahead"
    assert min(psnr(a, b) for a, b in zip(pictures, shown, strict=True)) > 50.0
    assert sum(map(len, payloads)) * 8 * 10 / 30 < 500_000, "bits a second"


def test_doubling_keeps_colour_edges_that_plain_vp8_blurs():
    picture = busy(0)
    doubled = decoded([VideoEncoder(10.0, 128).encode(picture, 0, keyframe=True)])[0][::2, ::2]
    plain = decoded([VideoEncoder(10.0, 0).encode(picture, 0, keyframe=True)])[0]
    assert psnr(picture, doubled) > psnr(picture, plain) + 10.0


@pytest.mark.parametrize(
    ("shape", "sides"),
    [
        ((97, 95), (194, 190)),
        ((131, 200), (132, 200)),
        ((200, 131), (200, 132)),
        ((128, 128), (128, 128)),
        ((1, 1), (2, 2)),
    ],
)
def test_sides_are_even_whatever_the_world_is(shape, sides):
    picture = np.random.default_rng(0).integers(0, 255, (*shape, 3), np.uint8)
    fitted = fit(picture, 128)
    assert fitted.shape[:2] == sides
    assert fitted.flags.c_contiguous
    assert (fitted[:: sides[0] // shape[0], :: sides[1] // shape[1]][: shape[0], : shape[1]] == picture).all()


def test_odd_pictures_encode_and_keep_their_last_column():
    picture = np.zeros((131, 133, 3), np.uint8)
    picture[:, -1] = 255
    (shown,) = decoded([VideoEncoder(10.0, 0).encode(picture, 0, keyframe=True)])
    assert shown.shape == (132, 134, 3)
    assert shown[:, 132:].mean() > 100


def test_a_keyframe_comes_first_and_when_asked_for():
    encoder = VideoEncoder(10.0, 128)
    asked = [False, False, True, False]
    payloads = [encoder.encode(busy(i), 9000 * i, keyframe=key) for i, key in enumerate(asked)]
    assert [is_keyframe(p) for p in payloads] == [True, False, True, False]


def test_a_world_that_changes_its_size_starts_over_with_a_keyframe():
    encoder = VideoEncoder(10.0, 128)
    encoder.encode(busy(0), 0, keyframe=False)
    assert is_keyframe(encoder.encode(busy(1, 128, 160), 9000, keyframe=False))


def noisy(time, side=256):
    """A picture that costs bits: fresh blocks of 4 by 4 all over."""
    blocks = np.random.default_rng(time).integers(0, 255, (side // 4, side // 4, 3), np.uint8)
    return blocks.repeat(4, axis=0).repeat(4, axis=1)


def test_a_limit_holds_the_rate_and_its_end_brings_the_quality_back():
    encoder = VideoEncoder(10.0, 0)

    def bits_a_second(first):
        payloads = [encoder.encode(noisy(first + i), 9000 * (first + i), keyframe=False) for i in range(20)]
        return 8 * 10 * sum(map(len, payloads[5:])) / 15, is_keyframe(payloads[0])

    free, _ = bits_a_second(0)
    encoder.limit(300_000)
    encoder.limit(300_000)
    held, began_whole = bits_a_second(20)
    encoder.limit(None)
    again, _ = bits_a_second(40)
    assert free > 1_000_000
    assert held < 450_000
    assert began_whole
    assert again == pytest.approx(free, rel=0.2)


# Rate control


def targets(paths, wanted_bps=2_000_000):
    """The target at the end of each second of a stream that wants this much, under these paths."""
    control, found = RateControl(), []
    for second, path in enumerate(paths):
        for tenth in range(10):
            now = second + tenth / 10
            target = control.target(now, path)
            control.sent(now, int((wanted_bps if target is None else target) / 80))
        found.append(target)
    return found


CLEAR, CHOKED = Path(), Path(loss=0.2)


def test_a_stream_without_loss_is_free_whatever_is_believed_of_its_path():
    assert targets([Path(0.0, 100_000)] * 5) == [None] * 5


def test_a_small_stream_is_never_held():
    assert targets([CHOKED] * 5, wanted_bps=300_000) == [None] * 5


def test_loss_holds_the_stream_below_what_it_sent_and_further_loss_still_lower():
    found = targets([CLEAR, CLEAR, CHOKED, CHOKED, CHOKED])
    assert found[1] is None
    assert found[2] == 1_530_000
    assert found[2] > found[3] > found[4]


def test_a_believed_path_says_how_low():
    assert targets([CLEAR, CLEAR, Path(0.2, 600_000)])[-1] == 510_000


def test_it_is_never_held_below_what_shows_anything():
    assert targets([CLEAR, *[Path(0.9, 1000.0)] * 5])[-1] == 150_000


def test_without_loss_it_grows_in_steps_until_it_is_free():
    found = targets([CLEAR, CLEAR, CHOKED, *[CLEAR] * 12])
    assert found[2] == 1_530_000
    assert found[4] == 1_530_000, "each change costs a keyframe"
    assert None in found[5:]
    assert found[-1] is None


def test_a_little_loss_neither_holds_nor_grows():
    assert targets([CLEAR, CLEAR, CHOKED, *[Path(0.03)] * 8])[-1] == 1_530_000


def test_one_stream_serves_all_so_the_worst_path_counts():
    assert worst([]) == Path()
    assert worst([Path(0.1), Path(0.0, 5e6), Path(0.02, 1e6)]) == Path(0.1, 1e6)


async def test_a_receiver_that_leaves_counts_no_more(stream):
    wide, narrow = read(stream), read(stream)
    stream.report_path(wide, room_bps=9e6)
    stream.report_path(narrow, room_bps=1e6)
    stream.report_path(narrow, loss=0.5)
    assert stream._paths == {wide: Path(0.0, 9e6), narrow: Path(0.5, 1e6)}
    stream.remove_track(narrow)
    stream.report_path(narrow, loss=1.0)
    assert stream._paths == {wide: Path(0.0, 9e6)}


# The track of one peer


def frame(pts, *, key=False, epoch=0):
    return EncodedFrame(b"x", pts, epoch, key, chunk(0))


def a_track(capacity=4):
    sent, starved = [], []
    track = EncodedTrack(capacity, sent.append, lambda: starved.append(1))
    track.reading = True
    return track, sent, starved


async def test_a_track_takes_nothing_before_it_is_read_and_then_asks_for_a_keyframe():
    starved = []
    track = EncodedTrack(4, lambda frame: None, lambda: starved.append(1))
    track.put(frame(0, key=True))
    reader = asyncio.create_task(track.recv())
    await asyncio.sleep(0)
    assert starved == [1]
    track.put(frame(1, key=True))
    assert (await reader).pts == 1


async def test_a_track_begins_with_a_keyframe():
    track, _, _ = a_track()
    track.put(frame(0))
    track.put(frame(1, key=True))
    track.put(frame(2))
    assert [(await track.recv()).pts for _ in range(2)] == [1, 2]
    assert track.dropped == 1


async def test_a_full_track_starts_over_at_a_keyframe_and_asks_for_one():
    track, _, starved = a_track(capacity=2)
    for pts in range(4):
        track.put(frame(pts, key=pts == 0))
    assert starved == [1]
    track.put(frame(9, key=True))
    assert (await track.recv()).pts == 9


async def test_sent_is_told_once_the_sender_comes_back():
    track, sent, _ = a_track()
    track.put(frame(0, key=True))
    track.put(frame(1))
    await track.recv()
    assert sent == []
    await track.recv()
    assert [f.pts for f in sent] == [0]


async def test_a_reset_takes_waiting_frames_away():
    track, _, _ = a_track()
    track.put(frame(0, key=True))
    track.put(frame(1))
    track.drop_before(1)
    track.put(frame(2, epoch=1))
    track.put(frame(3, key=True, epoch=1))
    assert (await track.recv()).pts == 3


async def test_a_stopped_track_ends_its_sender_instead_of_hanging():
    track, _, _ = a_track()
    waiting = asyncio.create_task(track.recv())
    await asyncio.sleep(0)
    track.stop()
    with pytest.raises(MediaStreamError):
        await waiting


# The stream of one session


def chunk(life, epoch=0, index=None, frames=2):
    pictures = np.stack([busy(life * frames + i, 32, 32) for i in range(frames)])
    return ChunkOut(ID, epoch, life if index is None else index, life * frames, pictures, (), (0.0,), {}, None)


@pytest.fixture
async def stream():
    feed = SessionFeed(FakeEngineService(), ID, 0, lambda reason: None)
    executor = ThreadPoolExecutor(1)
    made = VideoStream(feed, fps=20.0, chunk_frames=2, double_below=0, executor=executor)
    made.feed = feed
    yield made
    for track in list(made._tracks):
        made.remove_track(track)
    executor.shutdown()


def read(stream, on_sent=lambda frame: None):
    """A track of the stream whose sender has begun to read."""
    track = stream.add_track(on_sent)
    track.reading = True
    return track


async def taken(track, count, within_s=2.0):
    async with asyncio.timeout(within_s):
        return [await track.recv() for _ in range(count)]


async def test_pts_rise_by_frame_id_at_the_worlds_rate_across_resets(stream):
    track = read(stream)
    packets = []
    for life, epoch in enumerate([0, 0, 1, 1]):
        stream.feed.publish(chunk(life, epoch))
        packets += await taken(track, 2)
    assert [p.pts for p in packets] == [i * CLOCK_RATE // 20 for i in range(8)]
    assert [is_keyframe(bytes(p)) for p in packets] == [True, False, False, False, True, False, False, False]


async def test_two_peers_get_the_very_same_packets_encoded_once(stream):
    first, second = read(stream), read(stream)
    await asyncio.sleep(0)
    stream.feed.publish(chunk(0))
    a, b = await taken(first, 2), await taken(second, 2)
    assert [bytes(p) for p in a] == [bytes(p) for p in b]
    assert stream.encoded == 2


async def test_nobody_watching_means_nothing_is_encoded(stream):
    stream.feed.publish(chunk(0))
    await asyncio.sleep(0.05)
    assert stream.encoded == 0


async def test_who_joins_late_sees_the_present_picture_at_once_even_while_paused(stream):
    stream.feed.publish(chunk(0))
    first = stream.add_track(lambda frame: None)
    await taken(first, 2)
    second = stream.add_track(lambda frame: None)
    (packet,) = await taken(second, 1)
    assert is_keyframe(bytes(packet))
    stream.feed.publish(chunk(1))
    assert (await taken(second, 1))[0].pts > packet.pts, "pts still rise"


async def test_a_storm_of_keyframe_requests_costs_few_keyframes(stream):
    track = read(stream)
    stream.feed.publish(chunk(0))
    await taken(track, 2)
    before = stream.encoded
    for _ in range(50):
        stream.request_keyframe()
        await asyncio.sleep(0.004)
    assert 1 <= stream.encoded - before <= 3


async def test_a_keyframe_is_sent_on_request_without_waiting_for_the_next_chunk(stream):
    track = read(stream)
    stream.feed.publish(chunk(0))
    last = (await taken(track, 2))[-1]
    stream.request_keyframe()
    (again,) = await taken(track, 1, within_s=0.1)
    assert is_keyframe(bytes(again))
    assert last.pts < again.pts < CLOCK_RATE * 2 // 20, "between the last frame and the next"
    stream.feed.publish(chunk(1))
    assert [is_keyframe(bytes(p)) for p in await taken(track, 2)] == [False, False]


async def test_the_first_frame_of_a_fresh_chunk_leaves_at_once_and_hurries_the_rest():
    """Frames within a chunk keep the world's pace, 400 ms here, unless the next chunk is there."""
    feed = SessionFeed(FakeEngineService(), ID, 0, lambda reason: None)
    executor, clock = ThreadPoolExecutor(1), asyncio.get_running_loop().time
    stream = VideoStream(feed, fps=2.5, chunk_frames=2, double_below=0, executor=executor)
    track = read(stream)
    began = clock()
    feed.publish(chunk(0))
    await taken(track, 1)
    at_once = clock() - began
    await taken(track, 1)
    paced = clock() - began
    began = clock()
    feed.publish(chunk(1))
    feed.publish(chunk(2))
    await taken(track, 3)
    hurried = clock() - began
    assert at_once < 0.3
    assert paced > 0.35
    assert hurried < 0.3
    stream.remove_track(track)
    executor.shutdown()


async def test_a_slow_encoder_drops_whole_chunks_before_encoding_not_references_after(stream):
    track = read(stream)
    await asyncio.sleep(0)
    for life in range(8):
        stream.feed.publish(chunk(life))
    packets = await taken(track, 4)
    assert [p.pts for p in packets] == [i * CLOCK_RATE // 20 for i in (12, 13, 14, 15)]
    assert track.dropped == 0
    assert len(decoded([bytes(p) for p in packets])) == 4


async def test_what_skipped_chunks_applied_is_told_with_the_next_one_that_is_sent(stream):
    track = read(stream)
    for life in range(3):
        stream.feed.publish(replace(chunk(life), applied=(life + 10,)))
        await taken(track, 2)
    stream.feed.publish(replace(chunk(3, epoch=1), applied=(99,)))
    await taken(track, 2)
    newest = chunk(2)
    assert stream.applied_since(-1, newest) == [10, 11, 12]
    assert stream.applied_since(0, newest) == [11, 12]
    assert stream.applied_since(4, newest) == []
    assert stream.applied_since(-1, chunk(3, epoch=1)) == [99]


async def test_no_frame_of_the_old_epoch_leaves_after_a_reset(stream):
    track = read(stream)
    await asyncio.sleep(0)
    stream.feed.publish(chunk(0))
    await taken(track, 1)
    stream.feed.begin_epoch(1)
    stream.feed.publish(chunk(1, epoch=0))
    stream.feed.publish(chunk(2, epoch=1, index=0))
    packets = await taken(track, 2)
    assert [p.pts for p in packets] == [4 * CLOCK_RATE // 20, 5 * CLOCK_RATE // 20]
    assert is_keyframe(bytes(packets[0]))


class HeldExecutor(ThreadPoolExecutor):
    """Encodes only once it is released."""

    def __init__(self):
        super().__init__(1)
        self.asked, self.released = threading.Event(), threading.Event()

    def submit(self, work, *args, **more):
        def held():
            self.asked.set()
            self.released.wait(5.0)
            return work()

        return super().submit(held)


async def test_a_frame_that_is_being_encoded_when_the_reset_comes_is_not_sent():
    feed = SessionFeed(FakeEngineService(), ID, 0, lambda reason: None)
    executor = HeldExecutor()
    stream = VideoStream(feed, fps=20.0, chunk_frames=2, double_below=0, executor=executor)
    track = read(stream)
    feed.publish(chunk(0))
    await eventually(executor.asked.is_set)
    feed.begin_epoch(1)
    executor.released.set()
    feed.publish(chunk(1, epoch=1, index=0))
    packets = await taken(track, 2)
    assert [p.pts for p in packets] == [2 * CLOCK_RATE // 20, 3 * CLOCK_RATE // 20]
    assert is_keyframe(bytes(packets[0]))
    assert len(decoded([bytes(p) for p in packets])) == 2
    stream.remove_track(track)
    executor.shutdown()


async def test_the_end_of_a_session_stops_its_tracks(stream):
    track = read(stream)
    await asyncio.sleep(0)
    waiting = asyncio.create_task(track.recv())
    await asyncio.sleep(0)
    stream.feed.end("closed")
    with pytest.raises(MediaStreamError):
        await asyncio.wait_for(waiting, 1.0)


async def test_an_encoder_that_fails_stops_the_tracks_and_is_logged(stream, caplog):
    track = read(stream)
    await asyncio.sleep(0)
    bad = ChunkOut(ID, 0, 0, 0, np.zeros((1, 4, 4), np.uint8), (), (0.0,), {}, None)
    stream.feed.publish(bad)
    with pytest.raises(MediaStreamError):
        await asyncio.wait_for(track.recv(), 1.0)
    assert "the video of a session failed" in caplog.text
