"""The `control` and `actions` data channels of one peer.

JSON in, JSON out, every request answered, also the broken ones.

A bounded queue keeps requests in order. Live actions are latest-wins: while the engine takes one, newer ones replace
each other. Sending is allowed only on an open channel; nothing waits for an "open" event, since a channel that the
browser made arrives open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from physis_client.errors import PhysisError, TooLarge
from physis_stream.core.errors import Capacity, EngineError
from physis_stream.runtime.service import Notice
from physis_stream.server import fields
from physis_stream.server.dialogue import Dialogue
from physis_stream.server.json_text import NotJson, object_from_json, to_json
from physis_stream.server.limits import Limits
from physis_stream.server.problems import InvalidRequest, error_object, new_request_id

log = logging.getLogger("physis_stream.server")
Send = Callable[[str], None]


def event_object(notice: Notice) -> dict[str, Any]:
    """Return a notice as clients hear it, on control, the WebSocket and the event stream alike."""
    detail = dict(notice.detail)
    if notice.kind == "error" and "error" not in detail:
        code, message = (
            str(detail.get("code", "internal")),
            str(detail.get("message") or detail.get("reason") or "failed"),
        )
        detail = {"error": PhysisError(message, code=code).to_object()}
    return {**detail, "event": notice.kind}


def parse_request(message: str | bytes, limit: int) -> dict[str, Any]:
    """Return the request object in a channel message; refuse what is too large, binary or not a JSON object."""
    if isinstance(message, bytes):
        raise InvalidRequest("messages on this channel are JSON text")
    if len(message) > limit or len(message.encode()) > limit:
        raise TooLarge(f"a message has at most {limit} bytes")
    try:
        return object_from_json(message)
    except NotJson as error:
        raise InvalidRequest(str(error)) from error


class ControlChannel:
    """Takes messages synchronously (`receive`, `receive_action`) and works on them in one task (`run`)."""

    def __init__(self, dialogue: Dialogue, limits: Limits, send: Send, now: Callable[[], float]) -> None:
        self._dialogue = dialogue
        self._limits = limits
        self._send = send
        self._now = now
        self._requests: asyncio.Queue[dict[str, Any]] = asyncio.Queue(limits.requests_in_flight)
        self._action: dict[str, Any] | None = None
        self._action_there = asyncio.Event()
        self._newest_seq = -1
        self._answering = asyncio.Lock()

    def receive(self, message: str | bytes) -> None:
        """Queue a request, or answer at once what cannot be queued."""
        try:
            request = parse_request(message, self._limits.control_message)
        except PhysisError as error:
            self._refuse(None, error)
            return
        try:
            self._requests.put_nowait(request)
        except asyncio.QueueFull:
            number = request.get("id")
            refusal = Capacity(f"at most {self._requests.maxsize} requests may wait", retry_after_s=0.5)
            self._refuse(number if type(number) is int else None, refusal)

    def receive_action(self, message: str | bytes) -> None:
        """Keep the newest live action; a malformed one is reported on control and changes nothing."""
        try:
            request = parse_request(message, self._limits.control_message)
            seq = fields.event(request, "seq")
            action = fields.action(request)
        except PhysisError as error:
            self.report(error)
            return
        if seq > self._newest_seq:
            self._newest_seq = seq
            self._action = {"seq": seq, "action": action}
            self._action_there.set()

    def report(self, error: Exception) -> None:
        """Tell the client of a failure that answers no request."""
        self._send(to_json({"event": "error", "error": error_object(error, new_request_id())}))

    async def run_requests(self) -> None:
        while True:
            request = await self._requests.get()
            async with self._answering:
                self._send(to_json(await self._dialogue.respond(request)))

    async def last_answer(self, within_s: float) -> None:
        """Wait until the request under way, perhaps the `close` that ended the session, has been answered."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s), self._answering:
                return

    async def run_actions(self) -> None:
        while True:
            await self._action_there.wait()
            self._action_there.clear()
            newest, self._action = self._action, None
            if newest is None:
                continue
            try:
                await self._dialogue.control(newest["seq"], action=newest["action"])
            except (EngineError, PhysisError, TimeoutError) as error:
                self.report(error)

    def _refuse(self, number: int | None, error: Exception) -> None:
        self._send(to_json({"re": number, "ok": False, "error": error_object(error, new_request_id())}))
