"""Who owns which session: a token each, attachments that keep it alive, and the sweep that ends what nobody holds.

The engine decides everything about a session's work; this register decides only who may speak to it and for how long
it is kept without anyone. `now` is the loop's monotonic time, given by the caller.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import logging
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from physis_client.errors import SessionEnded, Unauthorized
from physis_stream.core.commands import Pace
from physis_stream.core.errors import Capacity, EngineError, NotFound
from physis_stream.core.ids import SessionId
from physis_stream.runtime.service import EngineService, OpenRequest, SessionStatus, WorldInfo
from physis_stream.server.feed import SessionFeed
from physis_stream.server.ledger import EventLedger
from physis_stream.server.limits import Limits, TokenBucket
from physis_stream.server.problems import Forbidden
from physis_stream.server.settings import Timers

log = logging.getLogger("physis_stream.server")
HTTP_SPEAKER = 0
REMEMBERED_ENDED = 1024
T = TypeVar("T")


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


@dataclass(eq=False)
class ServedSession:
    """One live session.

    `attachments` counts peers and sockets that hold it; `quiet_since_s` is when the last one left.
    """

    id: SessionId
    world: WorldInfo
    pace: Pace
    seed: int
    token_digest: bytes
    feed: SessionFeed
    controls: TokenBucket
    actions: TokenBucket
    offers: TokenBucket
    quiet_since_s: float
    ledger: EventLedger = field(default_factory=EventLedger)
    attachments: int = 0
    was_attached: bool = False
    http_events: int = 0
    snapshots: int = 0
    closers: list[Callable[[str], Awaitable[None]]] = field(default_factory=list)

    def owns(self, token: str) -> bool:
        return hmac.compare_digest(self.token_digest, digest(token))

    def deadline_s(self, timers: Timers) -> float | None:
        """When this session ends unless somebody comes; None while somebody holds it."""
        if self.attachments:
            return None
        if self.was_attached:
            return self.quiet_since_s + timers.grace_s
        return self.quiet_since_s + (timers.unattached_s if self.pace is Pace.REALTIME else timers.lockstep_idle_s)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of a session that is over, so that its owner hears why."""

    token_digest: bytes
    status: SessionStatus
    seed: int


class Attachment:
    """One speaker's hold on a session. `release` is idempotent."""

    def __init__(self, session: ServedSession, speaker: int, clock: Callable[[], float]) -> None:
        self.session = session
        self.speaker = speaker
        self._clock = clock
        self._held = True
        session.attachments += 1
        session.was_attached = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self.session.attachments -= 1
            self.session.quiet_since_s = self._clock()


class SessionRegister:
    """Opens, finds, forks, closes and expires sessions on behalf of clients."""

    def __init__(self, service: EngineService, limits: Limits, timers: Timers) -> None:
        self.service = service
        self.limits = limits
        self.timers = timers
        self._live: dict[SessionId, ServedSession] = {}
        self._ended: OrderedDict[SessionId, Ended] = OrderedDict()
        self._speakers = itertools.count(HTTP_SPEAKER + 1)
        self._closing: set[asyncio.Task[None]] = set()
        self.expired = 0

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[ServedSession]:
        return iter(list(self._live.values()))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def ask(self, call: Awaitable[T]) -> T:
        """Await an engine call for at most `call_s`; TimeoutError (504) beyond."""
        async with asyncio.timeout(self.timers.call_s):
            return await call

    async def open(self, request: OpenRequest) -> tuple[ServedSession, SessionStatus, str]:
        """Open a session; return it, its status and the token that alone may use it."""
        world = self.world(request.world)
        self._check_room(1)
        (status,) = await self._make(self._open(request))
        session, token = self._admit(status, world, request.seed)
        return session, status, token

    async def fork(self, parent: ServedSession, count: int) -> list[tuple[ServedSession, SessionStatus, str]]:
        """Fork a session; each child has a token of its own."""
        self._check_room(count)
        children = await self._make(self.service.fork(parent.id, count))
        made = []
        for status in children:
            child, token = self._admit(status, parent.world, parent.seed)
            made.append((child, status, token))
        return made

    def find(self, session: str, token: str | None) -> ServedSession:
        """Return the session if the token is its own, and keep it alive.

        Refuse otherwise, an ended one with its reason.
        """
        found = self._own(session, token)
        found.quiet_since_s = self.now()
        return found

    def _own(self, session: str, token: str | None) -> ServedSession:
        found = self._live.get(SessionId(session))
        if found is None:
            past = self._past(session, token)
            raise SessionEnded(
                f"the session is over: {past.status.ended_reason}", reason=past.status.ended_reason or "closed"
            )
        if token is None:
            raise Unauthorized("a session answers only to its token")
        if not found.owns(token):
            raise Forbidden("the token is not this session's")
        return found

    def look(self, session: str) -> ServedSession:
        """Return a live session for somebody whose right to watch it has been checked."""
        found = self._live.get(SessionId(session))
        if found is None:
            raise NotFound("no such session")
        return found

    async def describe(self, session: str, token: str | None) -> dict[str, Any]:
        """Return the Session object, also of one that has ended. Asking keeps only a waiting session alive."""
        if SessionId(session) not in self._live:
            past = self._past(session, token)
            return session_object(past.status, past.seed)
        found = self._own(session, token)
        status = await self.ask(self.service.status(found.id))
        if status.queue_position:
            found.quiet_since_s = self.now()
        return self.object_of(found, status)

    def object_of(self, session: ServedSession, status: SessionStatus, token: str | None = None) -> dict[str, Any]:
        """Return the Session object; `reconnecting` shows a session whose holders are gone but which is kept."""
        kept = session.was_attached and not session.attachments
        shown = "reconnecting" if kept and status.state in ("streaming", "ready", "paused") else status.state
        return session_object(status, session.seed, token=token, state=shown)

    async def close(self, session: ServedSession, reason: str = "closed") -> None:
        """End a session at once; idempotent. Its listeners hear `ended` even if the engine is down."""
        if session.id not in self._live:
            return
        session.feed.end(reason)
        try:
            await self.ask(self.service.close_session(session.id, reason))
        except (EngineError, TimeoutError) as error:
            log.warning("closing a session in the engine failed: %s", error)

    async def close_by_id(self, session: str, token: str | None) -> None:
        """DELETE: close, also the second time."""
        if SessionId(session) in self._live:
            await self.close(self.find(session, token))
        else:
            self._past(session, token)

    def attach(self, session: ServedSession) -> Attachment:
        return Attachment(session, next(self._speakers), self.now)

    async def sweep(self, now_s: float) -> None:
        """End each session that nobody holds and whose time is over."""
        due = [s for s in self._live.values() if (end := s.deadline_s(self.timers)) is not None and now_s >= end]
        for session in due:
            self.expired += 1
            reason = "the client vanished" if session.was_attached else "nobody came"
            await self.close(session, reason)

    async def close_all(self, reason: str) -> None:
        await asyncio.gather(*(self.close(session, reason) for session in list(self._live.values())))
        if self._closing:
            await asyncio.wait(set(self._closing), timeout=self.timers.drain_s)

    def world(self, name: str) -> WorldInfo:
        """Return the world of that name; NotFound lists those that exist."""
        worlds: Sequence[WorldInfo] = self.service.worlds()
        for world in worlds:
            if world.name == name:
                return world
        raise NotFound(f"no world named {name!r}; there are: {', '.join(world.name for world in worlds)}")

    def _check_room(self, count: int) -> None:
        if len(self._live) + count > self.limits.sessions:
            raise Capacity(f"this server keeps at most {self.limits.sessions} sessions", retry_after_s=5.0)

    def _admit(self, status: SessionStatus, world: WorldInfo, seed: int) -> tuple[ServedSession, str]:
        token = secrets.token_urlsafe(32)
        limits = self.limits
        session = ServedSession(
            id=status.session,
            world=world,
            pace=status.pace,
            seed=seed,
            token_digest=digest(token),
            feed=SessionFeed(
                self.service, status.session, status.epoch, lambda reason: self._bury(session, status, reason)
            ),
            controls=TokenBucket(limits.control_rate, limits.control_burst),
            actions=TokenBucket(limits.action_rate, limits.action_burst),
            offers=TokenBucket(limits.offer_rate, limits.offer_burst),
            quiet_since_s=self.now(),
        )
        self._live[session.id] = session
        session.feed.start()
        return session, token

    def _bury(self, session: ServedSession, status: SessionStatus, reason: str) -> None:
        self._live.pop(session.id, None)
        over = SessionStatus(
            session=session.id,
            world=status.world,
            state="ended",
            pace=status.pace,
            epoch=session.feed.epoch,
            chunks=max(status.chunks, session.feed.chunks),
            ended_reason=reason,
        )
        self._ended[session.id] = Ended(session.token_digest, over, session.seed)
        if len(self._ended) > REMEMBERED_ENDED:
            self._ended.popitem(last=False)
        for close in session.closers:
            self._keep(asyncio.ensure_future(close(reason)))
        session.closers.clear()

    def _past(self, session: str, token: str | None) -> Ended:
        past = self._ended.get(SessionId(session))
        if past is None:
            raise NotFound("no such session")
        if token is None:
            raise Unauthorized("a session answers only to its token")
        if not hmac.compare_digest(past.token_digest, digest(token)):
            raise Forbidden("the token is not this session's")
        return past

    async def _open(self, request: OpenRequest) -> Sequence[SessionStatus]:
        return (await self.service.open_session(request),)

    async def _make(self, call: Coroutine[Any, Any, Sequence[SessionStatus]]) -> Sequence[SessionStatus]:
        """Await a call that makes sessions. If the caller goes or the time is over, what it makes later is closed."""
        making = asyncio.ensure_future(call)
        try:
            done, _ = await asyncio.wait((making,), timeout=self.timers.call_s)
        except asyncio.CancelledError:
            making.add_done_callback(self._close_late)
            raise
        if not done:
            making.add_done_callback(self._close_late)
            raise TimeoutError
        return making.result()

    def _close_late(self, making: asyncio.Future[Sequence[SessionStatus]]) -> None:
        if making.cancelled() or making.exception() is not None:
            return
        for status in making.result():
            self._keep(asyncio.ensure_future(self.service.close_session(status.session, "made too late")))

    def _keep(self, task: asyncio.Future[None]) -> None:
        assert isinstance(task, asyncio.Task)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


def session_object(
    status: SessionStatus, seed: int, *, token: str | None = None, state: str | None = None
) -> dict[str, Any]:
    """Return the Session object of docs/protocol.md; `token` only in the answer that made the session."""
    shown = {
        "id": status.session,
        "model": status.world,
        "mode": status.pace.value,
        "state": state or status.state,
        "epoch": status.epoch,
        "chunks": status.chunks,
        "queue_position": status.queue_position,
        "seed": seed,
        "ended_reason": status.ended_reason,
    }
    return shown if token is None else {**shown, "token": token}
