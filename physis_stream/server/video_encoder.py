"""VP8 for small, busy worlds: quality first, one picture in, one packet out, no look-ahead.

Runs on a worker thread, one call at a time. Knows no session and no clock; pts come in as 90 kHz ticks.
"""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np
import numpy.typing as npt
from av.video.codeccontext import VideoCodecContext
from av.video.frame import PictureType
from av.video.reformatter import Interpolation

CLOCK_RATE = 90_000
TIME_BASE = Fraction(1, CLOCK_RATE)
QUANTIZER_BEST, QUANTIZER_WORST, QUANTIZER_LIMITED = 2, 24, 56
CONSTANT_QUALITY = "4"
MIN_BIT_RATE = 2_000_000
BITS_PER_PIXEL = 1.5
Picture = npt.NDArray[np.uint8]


def fit(rgb: Picture, double_below: int) -> Picture:
    """Return the picture with even sides, doubled if a side is under `double_below`.

    VP8 halves the colour resolution: doubling a tiny picture keeps its colours as sharp as its shapes, exactly so
    because colour is then averaged over the four copies of one pixel. Odd sides repeat
    their last row or column.
    """
    height, width = rgb.shape[:2]
    if min(height, width) < double_below:
        rgb = rgb.repeat(2, axis=0).repeat(2, axis=1)
    elif height % 2 or width % 2:
        rgb = np.pad(rgb, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(rgb)


def is_keyframe(payload: bytes) -> bool:
    """Whether a VP8 packet is a whole picture (RFC 6386, 9.1: the first bit is 0)."""
    return bool(payload) and payload[0] & 1 == 0


class VideoEncoder:
    """One VP8 stream. `encode` takes uint8 RGB (H, W, 3) of any one size and strictly rising pts.

    Quality is constant and the rate what it takes, until `limit` is set: then the rate is constant.
    """

    def __init__(self, fps: float, double_below: int) -> None:
        self._fps = Fraction(fps).limit_denominator(1001)
        self._double_below = double_below
        self._codec: VideoCodecContext | None = None
        self._limit_bps: int | None = None

    def limit(self, bits_per_s: int | None) -> None:
        """Hold the rate at this from the next picture on, which is then a keyframe; None sets it free."""
        if bits_per_s != self._limit_bps:
            self._limit_bps, self._codec = bits_per_s, None

    def encode(self, rgb: Picture, pts: int, *, keyframe: bool) -> bytes:
        """Return the compressed picture; the first one and those asked for are keyframes."""
        picture = fit(rgb, self._double_below)
        height, width = picture.shape[:2]
        if self._codec is None or (self._codec.width, self._codec.height) != (width, height):
            self._codec = self._open(width, height)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(
            format="yuv420p", interpolation=Interpolation.AREA
        )
        frame.pts = pts
        frame.time_base = TIME_BASE
        frame.pict_type = PictureType.I if keyframe else PictureType.NONE
        return b"".join(bytes(packet) for packet in self._codec.encode(frame))

    def _open(self, width: int, height: int) -> VideoCodecContext:
        codec = av.CodecContext.create("libvpx", "w")
        assert isinstance(codec, VideoCodecContext)
        codec.width, codec.height, codec.pix_fmt = width, height, "yuv420p"
        codec.time_base, codec.framerate = TIME_BASE, self._fps
        codec.gop_size = 3000
        codec.thread_count = 1 if width * height < 640 * 480 else 2
        options = {"deadline": "realtime", "cpu-used": "-6", "lag-in-frames": "0"}
        if self._limit_bps is None:
            codec.bit_rate = max(MIN_BIT_RATE, int(width * height * float(self._fps) * BITS_PER_PIXEL))
            codec.qmin, codec.qmax = QUANTIZER_BEST, QUANTIZER_WORST
            options["crf"] = CONSTANT_QUALITY
        else:
            codec.bit_rate = self._limit_bps
            codec.qmin, codec.qmax = QUANTIZER_BEST, QUANTIZER_LIMITED
            options |= {name: str(self._limit_bps) for name in ("minrate", "maxrate", "bufsize")}
        codec.options = options
        return codec
