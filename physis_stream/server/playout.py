"""Asks receivers to show each picture as soon as it is there: the playout-delay RTP header extension, 0 to 100 ms.

Without it Chromium times frames by a render algorithm that keeps one frame more after any hiccup, so that a picture is
a whole chunk late at ten frames a second. With a minimum of 0 and a small maximum it uses its low-latency renderer (a
maximum of 0 does not: then frames carry no time at all and come later still). aiortc does not know the extension: it is
added to what is negotiated for video and to what each packet carries. Knows no session.
http://www.webrtc.org/experiments/rtp-hdrext/playout-delay: two 12-bit numbers, minimum and maximum, in units of 10 ms.
"""

from __future__ import annotations

from aiortc import RTCRtpSender
from aiortc.codecs import HEADER_EXTENSIONS
from aiortc.rtcrtpparameters import RTCRtpHeaderExtensionParameters, RTCRtpParameters
from aiortc.rtp import HeaderExtensions, HeaderExtensionsMap, pack_header_extensions, unpack_header_extensions

PLAYOUT_DELAY = "http://www.webrtc.org/experiments/rtp-hdrext/playout-delay"
MAX_DELAY_MS = 100
AT_ONCE = (MAX_DELAY_MS // 10).to_bytes(3, "big")
OUR_ID = 12
"""The id in our own offers; in an answer the other side's is used."""


class PlayoutExtensions(HeaderExtensionsMap):
    """aiortc's map of header extensions, which also writes the playout delay where that was negotiated."""

    def __init__(self) -> None:
        super().__init__()
        self._playout_id: int | None = None

    def configure(self, parameters: RTCRtpParameters) -> None:
        super().configure(parameters)
        for extension in parameters.headerExtensions:
            if extension.uri == PLAYOUT_DELAY:
                self._playout_id = extension.id

    def set(self, values: HeaderExtensions) -> tuple[int, bytes]:
        """Return the extension profile and its bytes, as aiortc writes them into a packet."""
        profile, value = super().set(values)
        if self._playout_id is None:
            return profile, value
        known = list(unpack_header_extensions(profile, value)) if profile else []
        written: tuple[int, bytes] = pack_header_extensions([*known, (self._playout_id, AT_ONCE)])
        return written


def show_at_once(sender: RTCRtpSender) -> None:
    """Negotiate the extension for video and have this sender's packets carry it; call before the sender starts.

    aiortc's list of what it negotiates is one for the process; adding to it twice changes nothing.
    """
    known = HEADER_EXTENSIONS["video"]
    if all(extension.uri != PLAYOUT_DELAY for extension in known):
        known.append(RTCRtpHeaderExtensionParameters(id=OUR_ID, uri=PLAYOUT_DELAY))
    sender._RTCRtpSender__rtp_header_extensions_map = PlayoutExtensions()
