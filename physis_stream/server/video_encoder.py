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
QUANTIZER_BEST, QUANTIZER_WORST = 2, 24
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


class VideoEncoder:
    """One VP8 stream. `encode` takes uint8 RGB (H, W, 3) of any one size and strictly rising pts."""

    def __init__(self, fps: float, double_below: int) -> None:
        self._fps = Fraction(fps).limit_denominator(1001)
        self._double_below = double_below
        self._codec: VideoCodecContext | None = None

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
        codec.bit_rate = max(MIN_BIT_RATE, int(width * height * float(self._fps) * BITS_PER_PIXEL))
        codec.qmin, codec.qmax = QUANTIZER_BEST, QUANTIZER_WORST
        codec.gop_size = 3000
        codec.thread_count = 1 if width * height < 640 * 480 else 2
        codec.options = {
            "crf": CONSTANT_QUALITY,
            "deadline": "realtime",
            "cpu-used": "-6",
            "lag-in-frames": "0",
            "error-resilient": "default",
        }
        return codec
