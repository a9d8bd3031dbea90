"""The asyncio client: the twin of sync_client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import httpx

from physis_client import http_calls, wire
from physis_client.async_session import AsyncSession
from physis_client.chunks import Chunk, SessionStatus, World
from physis_client.errors import InvalidState, SessionEnded, Transport


class AsyncClient:
    """A server's worlds and sessions. `url` and `token` default to PHYSIS_URL and PHYSIS_TOKEN.

    Every call raises a PhysisError: Timeout after `timeout` seconds, Transport if the server cannot be reached.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 10.0) -> None:
        self.address = http_calls.address(url, token)
        self.timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=self.address.url, timeout=timeout, trust_env=not self.address.is_loopback
        )
        self._sessions: dict[str, AsyncSession] = {}
        self._closed = False

    async def models(self) -> list[World]:
        """Return the worlds that the server can open."""
        return http_calls.read_models(await self.send(http_calls.json_call("GET", "/v1/models", self.address.token)))

    async def open_session(
        self,
        model: str,
        *,
        seed: int | None = None,
        mode: Literal["lockstep", "realtime"] = "lockstep",
        image: wire.Array | None = None,
        wait: bool = True,
        queue_timeout: float = 60.0,
    ) -> AsyncSession:
        """Open a session and wait for its first chunk (`session.chunk`); Timeout after `queue_timeout` in the queue.

        `image` is uint8 (H, W, 3) of the world's size to start from. With `wait=False` a full server raises Capacity.
        """
        call = http_calls.open_call(model, seed, mode, wait, image, self.address.token)
        session = self._adopt(http_calls.read_session(await self.send(call)), None)
        try:
            await session.wait_admitted(queue_timeout)
            await session.observe()
        except BaseException:
            await session.close()
            raise
        return session

    async def session(self, id: str, token: str | None = None) -> AsyncSession:
        """Return a session by its id: one of this client's own, or another's with its `token`."""
        if id in self._sessions and token is None:
            return self._sessions[id]
        token = token or self.address.token
        call = http_calls.json_call("GET", http_calls.session_path(id), token)
        status = http_calls.read_session(await self.send(call))
        if status.state == "ended":
            reason = status.ended_reason or "closed"
            raise SessionEnded(f"the session is over: {reason}", reason=reason)
        return self._adopt(status, token)

    async def stats(self) -> dict[str, Any]:
        """Return the engine's present facts, by the names of docs/protocol.md."""
        return http_calls.read_json(await self.send(http_calls.json_call("GET", "/v1/stats", self.address.token)))

    async def step_many(self, sessions: Sequence[AsyncSession], actions: Sequence[Any]) -> list[Chunk]:
        """Step lockstep sessions in one batched call; a bad action refuses the call before any session moves."""
        if len(sessions) != len(actions):
            raise InvalidState(f"{len(sessions)} sessions need as many actions, got {len(actions)}")
        items = [(s.id, s.token, wire.action_numbers(a)) for s, a in zip(sessions, actions, strict=True)]
        chunks = http_calls.read_chunks(await self.send(http_calls.step_many_call(items)))
        for session, chunk in zip(sessions, chunks, strict=True):
            session.note(chunk)
        return chunks

    async def close(self) -> None:
        """Close all sessions that this client opened; idempotent."""
        if self._closed:
            return
        self._closed = True
        await asyncio.gather(*(s.close() for s in list(self._sessions.values())), return_exceptions=True)
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # For AsyncSession

    async def send(self, call: http_calls.Call, timeout: float | None = None) -> httpx.Response:
        """Send one HTTP call; a failed exchange raises Timeout or Transport, a refusal is left to the reader."""
        limit = self.timeout if timeout is None else timeout
        if self._http.is_closed:
            raise Transport("the client is closed", recoverable=False)
        try:
            return await self._http.request(
                call.method, call.path, headers=call.headers, content=call.content, timeout=limit
            )
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise http_calls.transport_error(error, f"{call.method} {call.path}", limit) from error

    def adopt(self, status: SessionStatus) -> AsyncSession:
        return self._adopt(status, None)

    def forget(self, session: AsyncSession) -> None:
        self._sessions.pop(session.id, None)

    def _adopt(self, status: SessionStatus, token: str | None) -> AsyncSession:
        held = token or status.token
        if held is None:
            raise Transport("the server sent a session without its token")
        session = AsyncSession(self, status, held)
        self._sessions[session.id] = session
        return session
