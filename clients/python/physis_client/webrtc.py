"""A WebRTC peer of a session without a browser: video, control, live actions and telemetry, as a page has them.

For robots that want the low-latency path and for measuring it. Needs the extra `webrtc` (aiortc, av). aiortc hands
out a frame once the next one begins to arrive, so it shows a picture one frame later than a browser does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from aiortc import RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError

from physis_client import http_calls, wire
from physis_client.chunks import Pixels
from physis_client.errors import PhysisError, SessionEnded, Timeout, Transport, from_object

KEPT = 512
MAX_FRAMES = 8
Body = dict[str, Any]


@dataclass(frozen=True)
class ReceivedFrame:
    """One decoded picture, uint8 (H, W, 3).

    `rtp_ts` is its RTP timestamp, `at_s` the loop's time when it was decoded.
    """

    rgb: Pixels
    rtp_ts: int
    at_s: float


class WebRtcPeer:
    """One peer connection. Make it with `connect`; close it, or leave its `async with` block.

    `telemetry` and `events` keep the newest messages; `frames()` yields pictures, the oldest of which give way.
    """

    def __init__(self, address: http_calls.Address, session: str, token: str, timeout: float) -> None:
        self.session = session
        self.timeout = timeout
        self.telemetry: deque[Body] = deque(maxlen=KEPT)
        self.events: deque[Body] = deque(maxlen=KEPT)
        self.hello: Body = {}
        self.id: str | None = None
        self.ended_reason: str | None = None
        self._address = address
        self._token = token
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Body]] = {}
        self._news = asyncio.Event()
        self._frames: deque[ReceivedFrame] = deque(maxlen=MAX_FRAMES)
        self._origin: int | None = None
        self._lost: PhysisError | None = None
        self._reader: asyncio.Task[None] | None = None
        self.connection = RTCPeerConnection()
        self.control = self.connection.createDataChannel("control", ordered=True)
        self.actions = self.connection.createDataChannel("actions", ordered=False, maxRetransmits=0)
        self._told = self.connection.createDataChannel("telemetry", ordered=False)

    @classmethod
    async def connect(
        cls, url: str | None, session: str, token: str, *, timeout: float = 10.0, accept: Callable[[Body], Body] = dict
    ) -> WebRtcPeer:
        """Offer, take the answer and wait for the server's hello; raises a PhysisError within `timeout` each."""
        peer = cls(http_calls.address(url, token), session, token, timeout)
        try:
            await asyncio.wait_for(peer._negotiate(accept), timeout)
            peer.hello = await peer.request("hello", version=wire.VERSION)
        except TimeoutError as error:
            await peer.close()
            raise Timeout(f"connecting took longer than {timeout:g} s") from error
        except BaseException:
            await peer.close()
            raise
        return peer

    async def request(self, kind: str, **fields: Any) -> Body:
        """Ask on `control` and return the answer; raises its error."""
        number = next(self._numbers)
        future: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self.send(json.dumps({"id": number, "type": kind, **fields}))
            return await asyncio.wait_for(future, self.timeout)
        except TimeoutError as error:
            raise Timeout(f"{kind} took longer than {self.timeout:g} s") from error
        finally:
            self._waiting.pop(number, None)

    def send(self, text: str) -> None:
        """Send raw text on `control`."""
        if self._lost is not None:
            raise self._lost
        if self.control.readyState != "open":
            raise Transport("the control channel is not open")
        self.control.send(text)

    def act(self, seq: int, action: Any) -> None:
        """Send a live action; the newest wins, lost ones are not repeated."""
        if self.actions.readyState != "open":
            raise Transport("the actions channel is not open")
        self.actions.send(json.dumps({"seq": seq, "t_client": 0, "action": wire.action_numbers(action)}))

    async def frames(self) -> AsyncIterator[ReceivedFrame]:
        """Yield pictures until the peer is closed; raises Transport or SessionEnded if it was lost."""
        while True:
            while self._frames:
                yield self._frames.popleft()
            if self._lost is not None:
                raise self._lost
            await self._next(self.timeout)

    async def wait(self, look: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until `look()` finds something among what arrived, and return it."""
        limit = self.timeout if timeout is None else timeout
        clock = asyncio.get_running_loop().time
        deadline = clock() + limit
        while not (found := look()):
            if clock() >= deadline:
                raise Timeout(f"it did not come within {limit:g} s")
            await self._next(deadline - clock())
        return found

    def event(self, kind: str) -> Body | None:
        """The newest event of a kind."""
        return next((event for event in reversed(self.events) if event.get("event") == kind), None)

    async def close(self) -> None:
        """Close the connection; idempotent. The session goes on for its grace."""
        self._lose(Transport("the peer was closed"))
        if self._reader is not None:
            self._reader.cancel()
        await self.connection.close()

    async def __aenter__(self) -> WebRtcPeer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Inside

    async def _negotiate(self, accept: Callable[[Body], Body]) -> None:
        opened = asyncio.Event()
        self.control.on("open", opened.set)
        self.control.on("message", self._hear)
        self.control.on("close", lambda: self._lose(Transport("the control channel was closed")))
        self._told.on("message", self._be_told)
        receiver = self.connection.addTransceiver("video", direction="recvonly").receiver
        self._watch_timestamps(receiver)
        self.connection.on("connectionstatechange", self._watch_connection)
        await self.connection.setLocalDescription(await self.connection.createOffer())
        offer = {"sdp": self.connection.localDescription.sdp, "type": "offer"}
        path = http_calls.session_path(self.session, "/webrtc")
        call = http_calls.json_call("POST", path, self._token, accept(offer))
        trust = not self._address.is_loopback
        async with httpx.AsyncClient(base_url=self._address.url, timeout=self.timeout, trust_env=trust) as http:
            try:
                response = await http.request(call.method, call.path, headers=call.headers, content=call.content)
            except httpx.HTTPError as error:
                raise http_calls.transport_error(error, "the offer", self.timeout) from error
        answer = http_calls.read_json(response)
        self.id = str(answer.get("peer"))
        await self.connection.setRemoteDescription(RTCSessionDescription(sdp=answer["sdp"], type=answer["type"]))
        self._reader = asyncio.create_task(self._read(receiver.track), name="physis video")
        await opened.wait()

    def _watch_timestamps(self, receiver: Any) -> None:
        """Note the first packet's RTP timestamp, from which aiortc counts a frame's pts."""
        passed_on = receiver._handle_rtp_packet

        async def note(packet: Any, **more: Any) -> None:
            if self._origin is None:
                self._origin = int(packet.timestamp)
            await passed_on(packet, **more)

        receiver._handle_rtp_packet = note

    async def _read(self, track: Any) -> None:
        clock = asyncio.get_running_loop().time
        with contextlib.suppress(MediaStreamError):
            while True:
                frame = await track.recv()
                rtp_ts = ((self._origin or 0) + frame.pts) % 2**32
                self._frames.append(ReceivedFrame(frame.to_ndarray(format="rgb24"), rtp_ts, clock()))
                self._news.set()
        self._lose(Transport("the video ended"))

    def _hear(self, text: str) -> None:
        message = json.loads(text)
        if "event" in message:
            self.events.append(message)
            if message["event"] == "ended":
                self.ended_reason = str(message.get("reason") or "closed")
        future = self._waiting.get(message.get("re"))
        if future is not None and not future.done():
            if message.get("ok"):
                future.set_result(message)
            else:
                future.set_exception(from_object(message.get("error")))
        elif message.get("ok") is False:
            self.events.append({"event": "refused", **message})
        self._news.set()

    def _be_told(self, text: str) -> None:
        self.telemetry.append(json.loads(text))
        self._news.set()

    def _watch_connection(self) -> None:
        if self.connection.connectionState in ("failed", "closed"):
            self._lose(Transport(f"the connection is {self.connection.connectionState}"))

    def _lose(self, error: PhysisError) -> None:
        if self._lost is not None:
            return
        reason = self.ended_reason
        self._lost = error if reason is None else SessionEnded(f"the session is over: {reason}", reason=reason)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._lost)
        self._news.set()

    async def _next(self, seconds: float) -> None:
        self._news.clear()
        try:
            await asyncio.wait_for(self._news.wait(), max(0.001, seconds))
        except TimeoutError as error:
            raise Timeout(f"nothing came within {seconds:g} s") from error
