"""The HTTP routes of docs/protocol.md.

Read the request within limits, ask the register, answer with a real status code.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from physis_client import wire
from physis_client.errors import TooLarge
from physis_stream.core.commands import Pace
from physis_stream.core.errors import EngineDown, EngineError, InvalidState
from physis_stream.runtime.service import Frames, OpenRequest, WorldInfo
from physis_stream.server import dialogue, fields
from physis_stream.server.auth import MAX_TOKEN_S, Claims, bearer
from physis_stream.server.context import ServerContext
from physis_stream.server.json_text import NotJson, object_from_json, to_json
from physis_stream.server.packing import packed
from physis_stream.server.problems import InvalidRequest, RateLimited
from physis_stream.server.sessions import HTTP_SPEAKER, ServedSession

Body = dict[str, Any]


def json_answer(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(body), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


async def packed_answer(body: Mapping[str, Any], num_bytes: int) -> Response:
    return Response(await packed(body, num_bytes), 200, {"Cache-Control": "no-store"}, wire.CONTENT_TYPE)


async def read_bytes(request: Request, most: int) -> bytes:
    """Return the body; TooLarge as soon as it is known to exceed `most` bytes, 408 if it trickles in too slowly."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise TooLarge(f"a body has at most {most} bytes, got {declared}")
    parts, size = [], 0
    try:
        async with asyncio.timeout(request.app.state.server.settings.timers.body_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise TooLarge(f"a body has at most {most} bytes")
                parts.append(part)
    except TimeoutError as error:
        raise InvalidRequest("the body did not come in time", status=408) from error
    return b"".join(parts)


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_json(request: Request, most: int) -> Body:
    """Return the JSON object in the body; an empty body is an empty object."""
    raw = await read_bytes(request, most)
    if not raw:
        return {}
    if content_type(request) not in ("application/json", ""):
        raise InvalidRequest("this call takes application/json", status=400)
    try:
        return object_from_json(raw)
    except NotJson as error:
        raise InvalidRequest(str(error), status=400) from error


async def read_packed(request: Request, most: int) -> Body:
    """Return the msgpack map in the body; JSON is refused, since arrays travel as bytes."""
    if content_type(request) != wire.CONTENT_TYPE:
        raise InvalidRequest(f"this call takes {wire.CONTENT_TYPE}", status=400)
    return wire.decode(await read_bytes(request, most), max_bytes=most)


def start_image(body: Body, world: WorldInfo) -> Frames | None:
    """Return the image to start from: uint8 RGB of the world's size, in a msgpack body only."""
    image = body.get("image")
    if image is None:
        return None
    if not isinstance(image, np.ndarray):
        raise InvalidRequest("an image travels as a msgpack array, not as JSON")
    if not world.accepts_image:
        raise InvalidRequest(f"the world {world.name} starts from no image")
    if image.dtype != np.uint8 or image.shape != (world.height, world.width, 3):
        raise InvalidRequest(f"an image is uint8 of shape ({world.height}, {world.width}, 3), got {image.shape}")
    return image


class Routes:
    """The handlers, bound to one server."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server
        self._register = server.register
        self._limits = server.settings.limits

    def table(self) -> list[Route]:
        one = "/v1/sessions/{id}"
        return [
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/sessions", self.open, methods=["POST"]),
            Route(one, self.session, methods=["GET", "DELETE"]),
            Route(f"{one}/reset", self.reset, methods=["POST"]),
            Route(f"{one}/pause", self.pause, methods=["POST"]),
            Route(f"{one}/resume", self.resume, methods=["POST"]),
            Route(f"{one}/fork", self.fork, methods=["POST"]),
            Route(f"{one}/snapshot", self.snapshot, methods=["POST"]),
            Route(f"{one}/restore", self.restore, methods=["POST"]),
            Route(f"{one}/step", self.step, methods=["POST"]),
            Route("/v1/step_many", self.step_many, methods=["POST"]),
            Route(f"{one}/webrtc", self.webrtc, methods=["POST", "PATCH", "DELETE"]),
            Route("/whep/{id}", self.view, methods=["POST"]),
            Route("/whep/{id}/{peer}", self.leave_view, methods=["DELETE"]),
            Route("/v1/ice_servers", self.ice_servers, methods=["GET"]),
            Route("/v1/tokens", self.tokens, methods=["POST"]),
            Route("/v1/stats", self.stats, methods=["GET"]),
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
        ]

    # Worlds and sessions

    async def models(self, request: Request) -> Response:
        self._server.authority.admit(request)
        return json_answer({"models": [dialogue.world_object(world) for world in self._register.service.worlds()]})

    async def open(self, request: Request) -> Response:
        packed = content_type(request) == wire.CONTENT_TYPE
        limits = self._limits
        body = await (read_packed(request, limits.binary_body) if packed else read_json(request, limits.json_body))
        model = fields.text(body, "model", most=128)
        if self._server.draining:
            raise EngineDown("the server is going down", retry_after_s=5.0)
        self._server.authority.admit(request, model)
        if (wait_s := self._server.opens.take(self._register.now())) is not None:
            raise RateLimited("too many sessions are being opened", retry_after_s=wait_s)
        world = self._register.world(model)
        seed = fields.seed(body)
        mode = fields.one_of(body, "mode", ("realtime", "lockstep"), "realtime")
        asked = OpenRequest(
            world=world.name,
            seed=secrets.randbelow(2**31) if seed is None else seed,
            pace=Pace(mode),
            image=start_image(body, world),
            wait=fields.flag(body, "wait", True),
        )
        session, status, token = await self._register.open(asked)
        shown = self._register.object_of(session, status, token)
        headers = {"Location": f"/v1/sessions/{session.id}"}
        return json_answer(shown, 202 if status.queue_position else 201, headers)

    async def session(self, request: Request) -> Response:
        name, token = request.path_params["id"], bearer(request)
        if request.method == "DELETE":
            await self._register.close_by_id(name, token)
            return Response(status_code=204)
        return json_answer(await self._register.describe(name, token))

    async def reset(self, request: Request) -> Response:
        session, body = await self._asked(request)
        return json_answer(await dialogue.reset(self._register, session, fields.seed(body)))

    async def pause(self, request: Request) -> Response:
        session, _ = await self._asked(request)
        status = await self._register.ask(self._register.service.pause(session.id))
        return json_answer(self._register.object_of(session, status))

    async def resume(self, request: Request) -> Response:
        session, _ = await self._asked(request)
        status = await self._register.ask(self._register.service.resume(session.id))
        return json_answer(self._register.object_of(session, status))

    async def fork(self, request: Request) -> Response:
        session, body = await self._asked(request)
        return json_answer({"sessions": await dialogue.fork(self._register, session, body)}, 201)

    async def snapshot(self, request: Request) -> Response:
        session, _ = await self._asked(request)
        return json_answer({"snapshot": await dialogue.snapshot(self._register, session)}, 201)

    async def restore(self, request: Request) -> Response:
        session, body = await self._asked(request)
        return json_answer(await dialogue.restore(self._register, session, body))

    # Steps

    async def step(self, request: Request) -> Response:
        session = self._session(request)
        body = await read_packed(request, self._limits.binary_body)
        chunks = await self._steps([(session, body)])
        return await packed_answer({"chunk": chunks[0]}, frame_bytes(chunks))

    async def step_many(self, request: Request) -> Response:
        body = await read_packed(request, self._limits.binary_body)
        items = body.get("items")
        if not isinstance(items, list) or not items:
            raise InvalidRequest("items must be a list of {session, token, event?, action}")
        if len(items) > self._limits.step_many_items:
            raise TooLarge(f"a call steps at most {self._limits.step_many_items} sessions, got {len(items)}")
        asked = []
        for item in items:
            if not isinstance(item, dict):
                raise InvalidRequest("items must be a list of {session, token, event?, action}")
            name, token = fields.text(item, "session", most=64), fields.text(item, "token", most=256)
            asked.append((self._register.find(name, token), item))
        chunks = await self._steps(asked)
        return await packed_answer({"chunks": chunks}, frame_bytes(chunks))

    async def _steps(self, asked: list[tuple[ServedSession, Body]]) -> list[Body]:
        """Validate all, number all, step all. A repeated event is the same step: a retry brings the same chunk."""
        actions = [fields.action(body) for _, body in asked]
        owns = [_own_event(session, body) for session, body in asked]
        for session, _ in asked:
            if session.pace is not Pace.LOCKSTEP:
                raise InvalidState("step is for lockstep sessions; this one is realtime")
        numbers = [s.ledger.number_again(HTTP_SPEAKER, own) for (s, _), own in zip(asked, owns, strict=True)]
        for (session, _), own in zip(asked, owns, strict=True):
            session.http_events = max(session.http_events, own)
        ids = [session.id for session, _ in asked]
        chunks = await self._register.ask(self._register.service.step_many(ids, numbers, actions))
        return [
            dialogue.chunk_object(chunk, session.ledger.own(HTTP_SPEAKER, chunk.applied))
            for (session, _), chunk in zip(asked, chunks, strict=True)
        ]

    # WebRTC

    async def webrtc(self, request: Request) -> Response:
        session = self._session(request)
        body = await read_json(request, self._limits.sdp + 4096)
        peer = body.get("peer", request.query_params.get("peer"))
        if request.method == "DELETE":
            await self._server.peers.close(session, peer if isinstance(peer, str) else None, "the client closed it")
            return Response(status_code=204)
        if body.get("type") != "offer":
            raise InvalidRequest('type must be "offer"')
        sdp = fields.text(body, "sdp", most=self._limits.sdp)
        if request.method == "PATCH":
            found = self._server.peers.find(session, fields.text({"peer": peer}, "peer", most=64))
            return json_answer({"sdp": await found.renegotiate(sdp), "type": "answer", "peer": found.id})
        made, answer = await self._server.peers.make(session, sdp)
        return json_answer({"sdp": answer, "type": "answer", "peer": made.id}, 201)

    async def view(self, request: Request) -> Response:
        """WHEP: a read-only viewer, admitted by the session's token or by one made for watching it."""
        session = self._viewed(request)
        if content_type(request) != "application/sdp":
            raise InvalidRequest("WHEP takes application/sdp", status=400)
        raw = await read_bytes(request, self._limits.sdp)
        peer, answer = await self._server.peers.make(session, raw.decode("utf-8", "replace"), viewer=True)
        return Response(answer, 201, {"Location": f"/whep/{session.id}/{peer.id}"}, "application/sdp")

    async def leave_view(self, request: Request) -> Response:
        session = self._viewed(request)
        await self._server.peers.close(session, request.path_params["peer"], "the viewer left")
        return Response(status_code=204)

    def _viewed(self, request: Request) -> ServedSession:
        name, token = request.path_params["id"], bearer(request)
        if token is not None and "." in token and self._server.authority.read(token).view == name:
            return self._register.look(name)
        return self._register.find(name, token)

    async def ice_servers(self, request: Request) -> Response:
        servers = [
            {"urls": list(one.urls)}
            | ({"username": one.username, "credential": one.credential} if one.username else {})
            for one in self._server.settings.ice_servers
        ]
        return json_answer({"ice_servers": servers})

    async def tokens(self, request: Request) -> Response:
        """Make a short-lived token: to watch a session (asked with the session's own), or to open sessions."""
        body = await read_json(request, self._limits.json_body)
        lasts_s = fields.whole(body, "duration_s", low=1, high=MAX_TOKEN_S, default=600)
        view = fields.text(body, "view", most=64, default="") or None
        if view is None:
            self._server.authority.owner(request)
        else:
            self._register.find(view, bearer(request))
        expires_s = self._server.authority.expiry(lasts_s)
        claims = Claims(expires_s, _names(body, "models"), _names(body, "origins"), view)
        return json_answer({"token": self._server.authority.make(claims), "expires_s": expires_s}, 201)

    # Facts

    async def stats(self, request: Request) -> Response:
        self._server.authority.admit(request)
        stats = await self._register.ask(self._register.service.stats())
        return json_answer({**asdict(stats), "peers": len(self._server.peers)})

    async def healthz(self, request: Request) -> Response:
        """Alive: 503 once the engine's loop is dead, so that a supervisor restarts us."""
        try:
            stats = await self._register.ask(self._register.service.stats())
        except (EngineError, TimeoutError):
            return json_answer({"alive": False, "reason": "the engine does not answer"}, 503)
        return json_answer({"alive": stats.alive}, 200 if stats.alive else 503)

    async def readyz(self, request: Request) -> Response:
        """Could admit: 503 with the reason if not."""
        try:
            stats = await self._register.ask(self._register.service.stats())
        except (EngineError, TimeoutError):
            return json_answer({"ready": False, "reason": "the engine does not answer"}, 503)
        reason = None
        if not stats.alive:
            reason = "the engine's loop is dead"
        elif not stats.could_admit:
            reason = f"no room: {stats.sessions} of {stats.max_sessions} sessions, {stats.queued} waiting"
        elif self._server.draining:
            reason = "the server is going down"
        return json_answer({"ready": reason is None, "reason": reason}, 200 if reason is None else 503)

    # Inside

    def _session(self, request: Request) -> ServedSession:
        return self._register.find(request.path_params["id"], bearer(request))

    async def _asked(self, request: Request) -> tuple[ServedSession, Body]:
        session = self._session(request)
        return session, await read_json(request, self._limits.json_body)


def frame_bytes(chunks: list[Body]) -> int:
    return sum(chunk["frames"].nbytes for chunk in chunks)


def _own_event(session: ServedSession, body: Body) -> int:
    """The client's number of a step, or the next one where it does not count."""
    return session.http_events + 1 if body.get("event") is None else fields.event(body)


def _names(body: Body, name: str) -> tuple[str, ...] | None:
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > 32 or not all(isinstance(one, str) for one in value):
        raise InvalidRequest(f"{name} must be a list of at most 32 strings")
    return tuple(value)
