"""Requests of one speaker to one session, as on `control` and the WebSocket: a dict in, exactly one dict out.

Requests run in order, so that an action before a reset stays before it. Knows neither JSON nor msgpack nor sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from physis_client.errors import VersionMismatch
from physis_client.wire import VERSION
from physis_stream.core.commands import Pace
from physis_stream.core.errors import Capacity, InvalidState
from physis_stream.core.ids import SnapshotId
from physis_stream.runtime.service import ChunkOut, SessionStatus, WorldInfo
from physis_stream.server import fields
from physis_stream.server.problems import InvalidRequest, RateLimited, error_object, new_request_id
from physis_stream.server.sessions import ServedSession, SessionRegister

log = logging.getLogger("physis_stream.server")
Body = dict[str, Any]


def world_object(world: WorldInfo) -> Body:
    """Return a world as `GET /v1/models` lists it."""
    return {**asdict(world), "action": dict(world.action)}


def chunk_object(chunk: ChunkOut, applied: list[int]) -> Body:
    """Return a chunk as it travels in msgpack; `applied` are the reader's own event ids."""
    return {
        "frames": chunk.frames,
        "epoch": chunk.epoch,
        "chunk": chunk.chunk,
        "first_frame_id": chunk.first_frame_id,
        "applied": applied,
        "action": list(chunk.action),
        "state": dict(chunk.state),
        "reward": chunk.reward,
        "timing_ms": dict(chunk.timing_ms),
    }


class Dialogue:
    """Answers the requests of one speaker. `steps` says if `step` may be asked here (it brings frames)."""

    def __init__(self, register: SessionRegister, session: ServedSession, speaker: int, *, steps: bool) -> None:
        self._register = register
        self._service = register.service
        self._session = session
        self._speaker = speaker
        self._calls: Mapping[str, Callable[[Body], Awaitable[Body]]] = {
            "hello": self._hello,
            "action": self._action,
            "prompt": self._prompt,
            "reset": self._reset,
            "pause": self._pause,
            "resume": self._resume,
            "fork": self._fork,
            "snapshot": self._snapshot,
            "restore": self._restore,
            "stats": self._stats,
            "ping": self._ping,
            "close": self._close,
            **({"step": self._step} if steps else {}),
        }

    async def respond(self, request: Body) -> Body:
        """Return `{re, ok, ...}` for a request, whatever happens inside."""
        number = request.get("id")
        answer: Body = {"re": number if type(number) is int else None}
        request_id = new_request_id()
        try:
            if type(number) is not int:
                raise InvalidRequest("a request has a whole number as id")
            self._check_rate(request)
            return {**answer, "ok": True, **await self._call(request)}
        except Exception as error:
            return {**answer, "ok": False, "error": error_object(error, request_id)}

    def _check_rate(self, request: Body) -> None:
        """Steps set their own pace: the next one waits for the last one's chunk."""
        if request.get("type") == "step":
            return
        if (wait_s := self._session.controls.take(self._register.now())) is not None:
            raise RateLimited("too many requests", retry_after_s=wait_s)

    async def _call(self, request: Body) -> Body:
        name = request.get("type")
        call = self._calls.get(name) if isinstance(name, str) else None
        if call is None:
            raise InvalidRequest(f"unknown request type {str(name)[:40]!r}")
        return await call(request)

    async def control(self, own: int, action: list[float] | None = None, prompt: str | None = None) -> None:
        """Hand one live event to the engine; a repeated one is ignored, a refused one may be sent again."""
        number = self._session.ledger.number(self._speaker, own)
        if number is None:
            return
        try:
            await self._register.ask(self._service.control(self._session.id, number, action, prompt))
        except BaseException:
            self._session.ledger.forget(self._speaker, own)
            raise

    def own(self, events: Iterable[int]) -> list[int]:
        """This speaker's own ids among the engine's event numbers."""
        return self._session.ledger.own(self._speaker, events)

    async def _hello(self, request: Body) -> Body:
        version = request.get("version")
        if version != VERSION:
            raise VersionMismatch(f"this server speaks version {VERSION}, the client {version!r}")
        status = await self._register.ask(self._service.status(self._session.id))
        shown = self._register.object_of(self._session, status)
        return {"session": shown, "world": world_object(self._session.world), "state": shown["state"]}

    async def _action(self, request: Body) -> Body:
        await self.control(fields.event(request), action=fields.action(request))
        return {}

    async def _prompt(self, request: Body) -> Body:
        words = fields.text(request, "text", most=self._register.limits.prompt_chars)
        if not self._session.world.accepts_prompt:
            raise InvalidRequest(f"the world {self._session.world.name} takes no prompt")
        await self.control(fields.event(request), prompt=words)
        return {}

    async def _step(self, request: Body) -> Body:
        own, action = fields.event(request), fields.action(request)
        if self._session.pace is not Pace.LOCKSTEP:
            raise InvalidState("step is for lockstep sessions; this one is realtime")
        number = self._session.ledger.number_again(self._speaker, own)
        chunk = await self._register.ask(self._service.step(self._session.id, number, action))
        return {"chunk": chunk_object(chunk, self.own(chunk.applied))}

    async def _reset(self, request: Body) -> Body:
        return {"session": await reset(self._register, self._session, fields.seed(request))}

    async def _pause(self, request: Body) -> Body:
        return self._shown(await self._register.ask(self._service.pause(self._session.id)))

    async def _resume(self, request: Body) -> Body:
        return self._shown(await self._register.ask(self._service.resume(self._session.id)))

    async def _fork(self, request: Body) -> Body:
        return {"sessions": await fork(self._register, self._session, request)}

    async def _snapshot(self, request: Body) -> Body:
        return {"snapshot": await snapshot(self._register, self._session)}

    async def _restore(self, request: Body) -> Body:
        return {"session": await restore(self._register, self._session, request)}

    async def _stats(self, request: Body) -> Body:
        return {"stats": asdict(await self._register.ask(self._service.stats()))}

    async def _ping(self, request: Body) -> Body:
        sent = request.get("t")
        if isinstance(sent, bool) or not isinstance(sent, (int, float)):
            raise InvalidRequest("t must be a number")
        return {"t": sent}

    async def _close(self, request: Body) -> Body:
        await self._register.close(self._session)
        return {}

    def _shown(self, status: SessionStatus) -> Body:
        return {"session": self._register.object_of(self._session, status)}


async def reset(register: SessionRegister, session: ServedSession, seed: int | None) -> Body:
    """Begin a new epoch, from this seed or the last one. Nothing of the old epoch comes out after the answer."""
    chosen = session.seed if seed is None else seed
    status = await register.ask(register.service.reset(session.id, chosen))
    session.seed = chosen
    session.feed.begin_epoch(status.epoch)
    return register.object_of(session, status)


async def fork(register: SessionRegister, session: ServedSession, request: Body) -> list[Body]:
    """Return the children as Session objects, each with its own token."""
    count = fields.whole(request, "count", low=1, high=register.limits.fork_count, default=1)
    children = await register.fork(session, count)
    return [register.object_of(child, status, token) for child, status, token in children]


async def snapshot(register: SessionRegister, session: ServedSession) -> str:
    """Take a snapshot and return its id."""
    if session.snapshots >= register.limits.snapshots_per_session:
        raise Capacity(f"a session keeps at most {register.limits.snapshots_per_session} snapshots")
    session.snapshots += 1
    try:
        return await register.ask(register.service.snapshot(session.id))
    except BaseException:
        session.snapshots -= 1
        raise


async def restore(register: SessionRegister, session: ServedSession, request: Body) -> Body:
    """Put the session back; begins a new epoch."""
    wanted = SnapshotId(fields.text(request, "snapshot", most=64))
    status = await register.ask(register.service.restore(session.id, wanted))
    session.feed.begin_epoch(status.epoch)
    return register.object_of(session, status)
