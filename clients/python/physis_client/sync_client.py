"""The blocking client: HTTP calls, and the sessions that it opened.

Same names, same errors and the same wire code as async_client. Methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Literal

import httpx

from physis_client import http_calls, wire
from physis_client.chunks import Chunk, SessionStatus, World
from physis_client.errors import InvalidState, PhysisError, SessionEnded, Transport
from physis_client.sync_session import Session


class Client:
    """A server's worlds and sessions. `url` and `token` default to PHYSIS_URL and PHYSIS_TOKEN.

    Every call raises a PhysisError: Timeout after `timeout` seconds, Transport if the server cannot be reached.
    """

    def __init__(self, url: str | None = None, token: str | None = None, *, timeout: float = 10.0) -> None:
        self.address = http_calls.address(url, token)
        self.timeout = timeout
        self._http = httpx.Client(base_url=self.address.url, timeout=timeout, trust_env=not self.address.is_loopback)
        self._sessions: dict[str, Session] = {}
        self._closed = False

    def models(self) -> list[World]:
        """Return the worlds that the server can open."""
        return http_calls.read_models(self.send(http_calls.json_call("GET", "/v1/models", self.address.token)))

    def open_session(
        self,
        model: str,
        *,
        seed: int | None = None,
        mode: Literal["lockstep", "realtime"] = "lockstep",
        image: wire.Array | None = None,
        wait: bool = True,
        queue_timeout: float = 60.0,
    ) -> Session:
        """Open a session and wait for its first chunk (`session.chunk`); Timeout after `queue_timeout` in the queue.

        `image` is uint8 (H, W, 3) of the world's size to start from. With `wait=False` a full server raises Capacity.
        """
        call = http_calls.open_call(model, seed, mode, wait, image, self.address.token)
        session = self._adopt(http_calls.read_session(self.send(call)), None)
        try:
            session.wait_admitted(queue_timeout)
            session.observe()
        except BaseException:
            session.close()
            raise
        return session

    def session(self, id: str, token: str | None = None) -> Session:
        """Return a session by its id: one of this client's own, or another's with its `token`."""
        if id in self._sessions and token is None:
            return self._sessions[id]
        token = token or self.address.token
        call = http_calls.json_call("GET", http_calls.session_path(id), token)
        status = http_calls.read_session(self.send(call))
        if status.state == "ended":
            reason = status.ended_reason or "closed"
            raise SessionEnded(f"the session is over: {reason}", reason=reason)
        return self._adopt(status, token)

    def stats(self) -> dict[str, Any]:
        """Return the engine's present facts, by the names of docs/protocol.md."""
        return http_calls.read_json(self.send(http_calls.json_call("GET", "/v1/stats", self.address.token)))

    def step_many(self, sessions: Sequence[Session], actions: Sequence[Any]) -> list[Chunk]:
        """Step lockstep sessions in one batched call; a bad action refuses the call before any session moves."""
        if len(sessions) != len(actions):
            raise InvalidState(f"{len(sessions)} sessions need as many actions, got {len(actions)}")
        items = [(s.id, s.token, wire.action_numbers(a)) for s, a in zip(sessions, actions, strict=True)]
        chunks = http_calls.read_chunks(self.send(http_calls.step_many_call(items)))
        for session, chunk in zip(sessions, chunks, strict=True):
            session.note(chunk)
        return chunks

    def close(self) -> None:
        """Close all sessions that this client opened; idempotent."""
        if self._closed:
            return
        self._closed = True
        for session in list(self._sessions.values()):
            with contextlib.suppress(PhysisError):
                session.close()
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For Session

    def send(self, call: http_calls.Call, timeout: float | None = None) -> httpx.Response:
        """Send one HTTP call; a failed exchange raises Timeout or Transport, a refusal is left to the reader."""
        limit = self.timeout if timeout is None else timeout
        if self._http.is_closed:
            raise Transport("the client is closed", recoverable=False)
        try:
            return self._http.request(call.method, call.path, headers=call.headers, content=call.content, timeout=limit)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise http_calls.transport_error(error, f"{call.method} {call.path}", limit) from error

    def adopt(self, status: SessionStatus) -> Session:
        return self._adopt(status, None)

    def forget(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def _adopt(self, status: SessionStatus, token: str | None) -> Session:
        held = token or status.token
        if held is None:
            raise Transport("the server sent a session without its token")
        session = Session(self, status, held)
        self._sessions[session.id] = session
        return session
