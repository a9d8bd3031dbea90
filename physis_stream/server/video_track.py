"""Video of one session: encoded once, sent to each of its peers as it comes.

A fresh chunk's first frame leaves at once; the rest follow at the world's fps so that the receiver's jitter buffer
stays small, and hurry when the next chunk is there. Waiting chunks are bounded by the listener (two, oldest first to
go) and dropped before they are encoded, so that no reference is lost. Nothing of an old epoch is sent after a reset.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import av
from aiortc import MediaStreamTrack
from aiortc.mediastreams import MediaStreamError

from physis_stream.runtime.service import ChunkOut
from physis_stream.server.feed import Listener, SessionFeed
from physis_stream.server.rate_control import Path, RateControl, worst
from physis_stream.server.video_encoder import CLOCK_RATE, TIME_BASE, VideoEncoder, is_keyframe

log = logging.getLogger("physis_stream.server")
MAX_CHUNKS = 2
REFRESH_S = 0.25
SOON_S = 0.02
REFRESH_TICKS = 90
REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One compressed picture. `pts` in 90 kHz ticks; `chunk` is what it is part of."""

    payload: bytes
    pts: int
    epoch: int
    keyframe: bool
    chunk: ChunkOut


class EncodedTrack(MediaStreamTrack):
    """What one peer's sender reads. Takes nothing before the sender has begun to read; then starts with a keyframe.

    Bounded: when full it starts over at the next keyframe. `on_sent(frame)` is called when the sender comes back for
    the next frame, hence after this one left; `on_starved()` asks for a keyframe.
    """

    kind = "video"

    def __init__(self, capacity: int, on_sent: Callable[[EncodedFrame], None], on_starved: Callable[[], None]) -> None:
        super().__init__()
        self._frames: deque[EncodedFrame] = deque()
        self._capacity = capacity
        self._on_sent = on_sent
        self._on_starved = on_starved
        self._there = asyncio.Event()
        self._needs_key = True
        self._last: EncodedFrame | None = None
        self.reading = False
        self.sent = 0
        self.dropped = 0

    def put(self, frame: EncodedFrame) -> None:
        """Queue a frame; deltas are refused until a keyframe starts a decodable run."""
        if not self.reading:
            return
        if len(self._frames) >= self._capacity:
            self.dropped += len(self._frames)
            self._frames.clear()
            self._needs_key = not frame.keyframe
            if self._needs_key:
                self._on_starved()
        if self._needs_key and not frame.keyframe:
            self.dropped += 1
            return
        self._needs_key = False
        self._frames.append(frame)
        self._there.set()

    def drop_before(self, epoch: int) -> None:
        """Forget waiting frames of earlier epochs; the new epoch begins with a keyframe."""
        if any(frame.epoch < epoch for frame in self._frames):
            self._frames = deque(frame for frame in self._frames if frame.epoch >= epoch)
            self._needs_key = not self._frames

    async def recv(self) -> Any:
        """Return the next packet; MediaStreamError once the track has stopped."""
        if not self.reading:
            self.reading = True
            self._on_starved()
        if self._last is not None:
            last, self._last = self._last, None
            self._on_sent(last)
        while not self._frames:
            if self.readyState != "live":
                raise MediaStreamError
            self._there.clear()
            await self._there.wait()
        self._last = self._frames.popleft()
        self.sent += 1
        packet = av.Packet(self._last.payload)
        packet.pts = self._last.pts
        packet.time_base = TIME_BASE
        return packet

    def stop(self) -> None:
        super().stop()
        self._frames.clear()
        self._there.set()


class VideoStream:
    """Encodes a session's feed while at least one track is being read."""

    def __init__(self, feed: SessionFeed, fps: float, chunk_frames: int, double_below: int, executor: Executor) -> None:
        self._feed = feed
        self._fps = fps
        self._capacity = MAX_CHUNKS * chunk_frames
        self._double_below = double_below
        self._executor = executor
        self._tracks: set[EncodedTrack] = set()
        self._paths: dict[EncodedTrack, Path] = {}
        self._rate = RateControl()
        self._task: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self._key_wanted = True
        self._repeated_s = float("-inf")
        self._newest: tuple[ChunkOut, int] | None = None
        self._applied: deque[tuple[int, int, tuple[int, ...]]] = deque(maxlen=REMEMBERED)
        self._last_pts = -1
        self._last_epoch = -1
        self.encoded = 0
        feed.watch_epochs(self._begin_epoch)

    def add_track(self, on_sent: Callable[[EncodedFrame], None]) -> EncodedTrack:
        """Return a new track; once it is read it starts with a keyframe of the present picture."""
        track = EncodedTrack(self._capacity, on_sent, self.request_keyframe)
        self._tracks.add(track)
        if self._task is None or self._task.done():
            self._listener = self._feed.listen(max_chunks=MAX_CHUNKS, replay=True)
            self._task = asyncio.create_task(self._run(self._listener), name="video")
        return track

    def remove_track(self, track: EncodedTrack) -> None:
        """Stop a track; without any the encoder rests."""
        track.stop()
        self._tracks.discard(track)
        self._paths.pop(track, None)
        if not self._tracks and self._task is not None:
            self._task.cancel()
            self._task = None

    def request_keyframe(self) -> None:
        """The present picture is sent again, whole, unless a new one is there already."""
        self._key_wanted = True
        if self._listener is not None:
            self._listener.poke()

    def applied_since(self, told_frame_id: int, chunk: ChunkOut) -> list[int]:
        """Events first used by `chunk` or by chunks of its epoch after frame `told_frame_id` that a track skipped."""
        return [
            event
            for epoch, first_frame_id, events in self._applied
            if epoch == chunk.epoch and told_frame_id < first_frame_id <= chunk.first_frame_id
            for event in events
        ]

    def report_path(self, track: EncodedTrack, *, loss: float | None = None, room_bps: float | None = None) -> None:
        """The receiver behind a track reports the share of packets it lost, or what it believes its path carries."""
        if track in self._tracks:
            known = self._paths.get(track, Path())
            self._paths[track] = Path(
                known.loss if loss is None else loss, known.room_bps if room_bps is None else room_bps
            )

    async def _run(self, listener: Listener) -> None:
        encoder = VideoEncoder(self._fps, self._double_below)
        try:
            while self._feed.ended_reason is None:
                soon = self._key_wanted and self._watched
                if await listener.chunk_within(SOON_S if soon else REFRESH_S):
                    chunk = await listener.chunk()
                    if chunk is not None:
                        await self._send_chunk(encoder, listener, chunk)
                elif self._key_wanted and self._newest is not None:
                    await self._repeat(encoder, *self._newest)
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("the video of a session failed")
        finally:
            self._feed.leave(listener)
            for track in list(self._tracks):
                track.stop()

    async def _send_chunk(self, encoder: VideoEncoder, listener: Listener, chunk: ChunkOut) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        self._applied.append((chunk.epoch, chunk.first_frame_id, chunk.applied))
        for offset in range(len(chunk.frames)):
            if offset and not listener.has_chunk:
                await listener.chunk_within(max(0.0, began + offset / self._fps - clock()))
            if chunk.epoch < self._feed.epoch:
                return
            self._newest = (chunk, offset)
            if self._watched:
                await self._encode(encoder, chunk, offset, self._last_pts + 1)

    async def _repeat(self, encoder: VideoEncoder, chunk: ChunkOut, offset: int) -> None:
        """Send the present picture again, whole: somebody joined or lost it. A storm of such requests is spaced out."""
        now = asyncio.get_running_loop().time()
        if chunk.epoch < self._feed.epoch or not self._watched or now - self._repeated_s < REFRESH_S:
            return
        self._repeated_s = now
        await self._encode(encoder, chunk, offset, self._last_pts + REFRESH_TICKS)

    async def _encode(self, encoder: VideoEncoder, chunk: ChunkOut, offset: int, at_least: int) -> None:
        """Encode one frame at its own pts, or at `at_least` if that has passed, and hand it to all tracks."""
        pts = max(round((chunk.first_frame_id + offset) * CLOCK_RATE / self._fps), at_least)
        keyframe, self._key_wanted = self._key_wanted or chunk.epoch != self._last_epoch, False
        self._last_pts, self._last_epoch = pts, chunk.epoch
        loop = asyncio.get_running_loop()
        encoder.limit(self._rate.target(loop.time(), worst(list(self._paths.values()))))
        payload = await loop.run_in_executor(
            self._executor, lambda: encoder.encode(chunk.frames[offset], pts, keyframe=keyframe)
        )
        self._rate.sent(loop.time(), len(payload))
        self.encoded += 1
        if chunk.epoch < self._feed.epoch:
            self._key_wanted = True
            return
        frame = EncodedFrame(payload, pts, chunk.epoch, is_keyframe(payload), chunk)
        for track in self._tracks:
            track.put(frame)

    @property
    def _watched(self) -> bool:
        return any(track.reading for track in self._tracks)

    def _begin_epoch(self, epoch: int) -> None:
        """Drop encoded frames of earlier epochs that no sender has taken yet."""
        for track in self._tracks:
            track.drop_before(epoch)
