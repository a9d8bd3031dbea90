"""Peer connections: one offer in, one complete answer out, three data channels and one video track.

A peer holds its session while it lives. It is given up when it does not connect in time, when its control channel
closes, when the network path fails, or when nothing has come from it for `silence_s` (each second it is sent
statistics, which its SCTP must acknowledge; so silence means absence). Media ends with control. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from aiortc import (
    RTCConfiguration,
    RTCDataChannel,
    RTCIceServer,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.exceptions import InternalError, InvalidAccessError, InvalidStateError, OperationError
from aiortc.rtcrtpparameters import RTCRtpCodecCapability
from aiortc.rtp import RTCP_PSFB_APP, RtcpPsfbPacket, RtcpRrPacket, RtcpSrPacket, unpack_remb_fci

from physis_client.errors import TooLarge
from physis_stream.core.errors import InvalidState
from physis_stream.runtime.service import ChunkOut
from physis_stream.server.control_channel import ControlChannel, event_object
from physis_stream.server.dialogue import Dialogue
from physis_stream.server.engine_watch import EngineWatch
from physis_stream.server.json_text import to_json
from physis_stream.server.limits import Limits
from physis_stream.server.playout import show_at_once
from physis_stream.server.problems import InvalidRequest
from physis_stream.server.sessions import Attachment, ServedSession, SessionRegister
from physis_stream.server.settings import ServerSettings
from physis_stream.server.silence import Silence
from physis_stream.server.video_track import EncodedFrame, VideoStream

log = logging.getLogger("physis_stream.server")
MAX_BUFFERED_TELEMETRY = 256 << 10
MAX_UNTOLD_TELEMETRY = 4
LAST_ANSWER_S = 1.0
LINGER_S = 0.2
"""Time for the last words of an ended session to leave."""
CHANNELS = ("control", "actions", "telemetry")


def checked_offer(sdp: str, limits: Limits) -> str:
    """Return the offer without multicast-DNS candidates; refuse one that is too large or not an offer of video.

    A browser that hides its address behind an mDNS name sends the first check itself, so the name, which takes a second
    to resolve, is not needed. Where candidates are hidden or missing their end is not taken at its word either: ICE
    would give up before that check arrives.
    """
    if len(sdp) > limits.sdp:
        raise TooLarge(f"an SDP has at most {limits.sdp} bytes")
    lines = sdp.replace("\r\n", "\n").split("\n")
    if not sdp.startswith("v=0"):
        raise InvalidRequest("sdp must be a session description")
    if sum(line.startswith("a=candidate:") for line in lines) > limits.sdp_candidates:
        raise TooLarge(f"an SDP has at most {limits.sdp_candidates} candidates")
    media = [line for line in lines if line.startswith("m=")]
    if len(media) > limits.sdp_media_sections:
        raise TooLarge(f"an SDP has at most {limits.sdp_media_sections} media sections")
    if sum(line.startswith("m=video") for line in media) != 1:
        raise InvalidRequest("an offer has exactly one video section")
    if any(line.startswith("m=audio") for line in media):
        raise InvalidRequest("this session has no audio")
    shown = [line for line in lines if line.startswith("a=candidate:") and ".local " not in line]
    hidden = any(line.startswith("a=candidate:") and ".local " in line for line in lines)
    kept = [
        line
        for line in lines
        if not (line.startswith("a=candidate:") and ".local " in line)
        and not (line == "a=end-of-candidates" and (hidden or not shown))
    ]
    return "\r\n".join(kept)


def vp8_codecs() -> list[RTCRtpCodecCapability]:
    """VP8 and its retransmission format, the codecs in which the video is sent."""
    offered = RTCRtpSender.getCapabilities("video").codecs
    return [codec for codec in offered if codec.mimeType in ("video/VP8", "video/rtx")]


def ice_servers(settings: ServerSettings) -> list[RTCIceServer]:
    """The configured STUN and TURN servers in aiortc's words."""
    return [RTCIceServer(list(one.urls), one.username, one.credential) for one in settings.ice_servers]


def ice_username(sdp: str) -> str | None:
    """The first ICE user name in a description; a new one means an ICE restart."""
    return next((line.strip() for line in sdp.splitlines() if line.startswith("a=ice-ufrag:")), None)


def hear_reports(sender: RTCRtpSender, heard: Callable[..., None]) -> None:
    """Call `heard(loss=share)` at each receiver report and `heard(room_bps=...)` at each bandwidth estimate (REMB)."""
    passed_on = sender._handle_rtcp_packet

    async def note(packet: Any) -> None:
        if isinstance(packet, (RtcpRrPacket, RtcpSrPacket)):
            for report in packet.reports:
                if report.ssrc == sender._ssrc:
                    heard(loss=report.fraction_lost / 256)
        elif isinstance(packet, RtcpPsfbPacket) and packet.fmt == RTCP_PSFB_APP:
            with suppress(ValueError):
                bits_per_s, sources = unpack_remb_fci(packet.fci)
                if sender._ssrc in sources:
                    heard(room_bps=float(bits_per_s))
        await passed_on(packet)

    sender._handle_rtcp_packet = note


class RtpOrigin:
    """Finds the random offset that the sender adds to timestamps, from the first packet it has sent.

    aiortc keeps the RTP timestamp of its latest packet for sender reports; less our own pts that is the origin.
    """

    def __init__(self, sender: RTCRtpSender) -> None:
        self._sender = sender
        self._origin: int | None = None

    def timestamp(self, sent: EncodedFrame) -> int | None:
        """Return the RTP timestamp under which `sent`, the latest frame, left; None if the sender does not tell."""
        if self._origin is None:
            latest = getattr(self._sender, "_RTCRtpSender__rtp_timestamp", None)
            count = getattr(self._sender, "_RTCRtpSender__packet_count", 0)
            if not isinstance(latest, int) or not count:
                return None
            self._origin = (latest - sent.pts) % 2**32
        return (self._origin + sent.pts) % 2**32


class Peer:
    """One browser's connection to one session. Without control it is a viewer: it watches and holds nothing."""

    def __init__(
        self,
        register: SessionRegister,
        session: ServedSession,
        video: VideoStream,
        settings: ServerSettings,
        watch: EngineWatch,
        on_closed: Callable[[Peer], None],
        *,
        viewer: bool,
    ) -> None:
        self.id = secrets.token_hex(16)
        self.session = session
        self.viewer = viewer
        self.lost_because: str | None = None
        self._register = register
        self._settings = settings
        self._watch = watch
        self._video = video
        self._on_closed = on_closed
        self._attachment: Attachment | None = None if viewer else register.attach(session)
        speaker = -1 if self._attachment is None else self._attachment.speaker
        self._dialogue = Dialogue(register, session, speaker, steps=False)
        self._control = ControlChannel(self._dialogue, settings.limits, self._send_control, register.now)
        self._channels: dict[str, RTCDataChannel] = {}
        self._told_frame_id = -1
        self._untold: deque[str] = deque(maxlen=MAX_UNTOLD_TELEMETRY)
        self._closing: asyncio.Task[None] | None = None
        self._listener = session.feed.listen(max_chunks=0)
        self._track = video.add_track(self._frame_sent)
        self._pc = self._new_connection(ice_servers(settings))
        self._tasks = self._start_tasks()

    # Negotiation

    async def answer(self, offer: str) -> str:
        """Return the complete answer to a checked offer, within `gather_s` whatever the ICE servers do.

        Where they do not answer in time the offer is answered anew without them, from this machine's own addresses.
        """
        try:
            async with asyncio.timeout(self._settings.timers.gather_s * 0.8):
                return await self._negotiate(offer)
        except TimeoutError:
            log.warning("the ICE servers did not answer in time; going on without them")
        given_up = self._pc
        self._pc = self._new_connection([])
        given_up.remove_all_listeners()
        self._tasks.append(asyncio.create_task(given_up.close(), name="peer given up"))
        return await self._negotiate(offer)

    async def renegotiate(self, sdp: str) -> str:
        """Answer a later offer of the same connection. An ICE restart is refused: it needs a new peer connection."""
        offer = checked_offer(sdp, self._settings.limits)
        if ice_username(offer) != ice_username(self._pc.remoteDescription.sdp):
            raise InvalidState("ICE cannot restart within a peer connection here; make a new one with POST")
        return await self._negotiate(offer)

    async def _negotiate(self, offer: str) -> str:
        try:
            await self._pc.setRemoteDescription(RTCSessionDescription(sdp=offer, type="offer"))
            await self._pc.setLocalDescription(await self._pc.createAnswer())
        except (OperationError, InvalidAccessError, InternalError, InvalidStateError) as error:
            raise InvalidRequest(f"the offer cannot be answered: {error}") from error
        except (ValueError, KeyError, IndexError, AssertionError, AttributeError, TypeError) as error:
            raise InvalidRequest("the offer does not parse", status=400) from error
        answer: str = self._pc.localDescription.sdp
        return answer

    def _new_connection(self, servers: list[RTCIceServer]) -> RTCPeerConnection:
        connection = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        transceiver = connection.addTransceiver(self._track, direction="sendonly")
        transceiver.setCodecPreferences(vp8_codecs())
        show_at_once(transceiver.sender)
        transceiver.sender._send_keyframe = self._video.request_keyframe
        hear_reports(transceiver.sender, partial(self._video.report_path, self._track))
        self._origin = RtpOrigin(transceiver.sender)
        connection.on("datachannel", self._open_channel)
        connection.on("connectionstatechange", self._watch_connection)
        return connection

    def _start_tasks(self) -> list[asyncio.Task[None]]:
        tasks = [asyncio.create_task(self._watch_silence(), name="peer silence")]
        if not self.viewer:
            tasks += [
                asyncio.create_task(self._control.run_requests(), name="peer requests"),
                asyncio.create_task(self._control.run_actions(), name="peer actions"),
                asyncio.create_task(self._tell_notices(), name="peer notices"),
                asyncio.create_task(self._tell_stats(), name="peer stats"),
            ]
        return tasks

    # Channels

    def _open_channel(self, channel: RTCDataChannel) -> None:
        known = channel.label in CHANNELS and channel.label not in self._channels and not self.viewer
        if not known:
            channel.close()
            return
        self._channels[channel.label] = channel
        if channel.label == "control":
            channel.on("message", self._control.receive)
            channel.on("close", lambda: self.lose("its control channel closed"))
        elif channel.label == "actions":
            channel.on("message", self._receive_action)
        else:
            self._tell_telemetry()

    def _receive_action(self, message: str | bytes) -> None:
        if self.session.actions.take(self._register.now()) is None:
            self._control.receive_action(message)

    def _send_control(self, text: str) -> None:
        channel = self._channels.get("control")
        if channel is not None and channel.readyState == "open":
            channel.send(text)

    # What the client hears unasked

    async def _tell_notices(self) -> None:
        while (notice := await self._listener.notice()) is not None:
            self._send_control(to_json(event_object(notice)))
        await self._control.last_answer(LAST_ANSWER_S)
        self.lose("the session ended", linger_s=LINGER_S)

    async def _tell_stats(self) -> None:
        while True:
            await asyncio.sleep(self._settings.timers.stats_s)
            self._send_control(to_json({**self._watch.latest, "event": "stats"}))

    def _frame_sent(self, frame: EncodedFrame) -> None:
        stamp = self._origin.timestamp(frame)
        if frame.chunk.first_frame_id > self._told_frame_id:
            self._untold.append(to_json(self._telemetry(frame.chunk, stamp)))
            self._told_frame_id = frame.chunk.first_frame_id
            self._tell_telemetry()

    def _tell_telemetry(self) -> None:
        channel = self._channels.get("telemetry")
        if channel is None or channel.readyState != "open" or channel.bufferedAmount > MAX_BUFFERED_TELEMETRY:
            return
        while self._untold:
            channel.send(self._untold.popleft())

    def _telemetry(self, chunk: ChunkOut, rtp_ts: int | None) -> dict[str, Any]:
        return {
            "frame_id": chunk.first_frame_id,
            "rtp_ts": rtp_ts,
            "epoch": chunk.epoch,
            "chunk": chunk.chunk,
            "applied": self._dialogue.own(self._video.applied_since(self._told_frame_id, chunk)),
            "action": list(chunk.action),
            "state": dict(chunk.state),
            "reward": chunk.reward,
            "t_render": round(self._register.now() * 1e3, 3),
            "timing_ms": dict(chunk.timing_ms),
        }

    # Life and death

    @property
    def connected(self) -> bool:
        return bool(self._pc.connectionState == "connected")

    def _watch_connection(self) -> None:
        if self._pc.connectionState in ("failed", "closed"):
            self.lose(f"its connection is {self._pc.connectionState}")

    def _received(self) -> int:
        """Packets that have come from the peer so far."""
        transports = {sender.transport for sender in self._pc.getSenders()}
        stats = [entry for transport in transports for entry in transport._get_stats().values()]
        return sum(int(entry.packetsReceived) for entry in stats)

    async def _watch_silence(self) -> None:
        timers, now = self._settings.timers, self._register.now
        began, silence = now(), None
        while True:
            await asyncio.sleep(timers.sweep_s)
            if not (self.connected and (self.viewer or "control" in self._channels)):
                if now() - began > timers.connect_s:
                    self.lose("it did not connect in time")
                continue
            silence = silence or Silence(timers.silence_s, timers.sweep_s, now())
            if silence.look(now(), self._received()) and not self.viewer:
                self.lose("it went silent")

    def lose(self, reason: str, linger_s: float = 0.0) -> None:
        """Give the peer up, once; its session is released at once, its sockets close in the background."""
        if self._closing is None:
            self.lost_because = reason
            self._closing = asyncio.create_task(self._close(linger_s), name="peer close")

    async def close(self, reason: str) -> None:
        """Close and wait until all is released; idempotent."""
        self.lose(reason)
        assert self._closing is not None
        await asyncio.shield(self._closing)

    async def _close(self, linger_s: float) -> None:
        log.info("peer %s is gone: %s", self.id[:8], self.lost_because)
        if self._attachment is not None:
            self._attachment.release()
        self._on_closed(self)
        self._video.remove_track(self._track)
        self.session.feed.leave(self._listener)
        await asyncio.sleep(linger_s)
        for task in self._tasks:
            task.cancel()
        try:
            async with asyncio.timeout(self._settings.timers.drain_s):
                await self._pc.close()
        except TimeoutError:
            log.warning("closing peer %s took too long; left to the garbage collector", self.id[:8])
        except Exception:
            log.exception("closing peer %s failed", self.id[:8])
