"""A session of the blocking client: one thread reads its socket, calls wait for their answers with a timeout."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from physis_client import http_calls, wire
from physis_client.chunks import Chunk, Frame, SessionStatus, World, chunk_from_message, status_from_message
from physis_client.errors import InvalidState, PhysisError, SessionEnded, Timeout
from physis_client.protocol import ChunkArrived, ChunkBuffer, Happened
from physis_client.sync_link import Link

Callback = Callable[[dict[str, Any]], object]
EVENTS = ("status", "error", "ended", "queue", "recovered", "stats")
T = TypeVar("T")


if TYPE_CHECKING:
    from physis_client.sync_client import Client


class Session:
    """One session. Connects when first used; a lost connection raises Transport and the next call connects again."""

    def __init__(self, client: Client, status: SessionStatus, token: str) -> None:
        self.id, self.model, self.mode, self.seed = status.id, status.model, status.mode, status.seed
        self.token = token
        self._client = client
        self._state = status.state
        self._admitted = status.queue_position == 0
        self._lock = threading.RLock()
        self._news = threading.Condition()
        self._buffer = ChunkBuffer()
        self._events = 0
        self._link: Link | None = None
        self._failure: PhysisError | None = None
        self._ended: str | None = None
        self._callbacks: dict[str, list[Callback]] = {}
        self._calls: queue.SimpleQueue[tuple[Callback, dict[str, Any]] | None] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None

    # Lockstep

    def step(self, action: Any, *, timeout: float | None = None) -> Chunk:
        """Produce one chunk under this action and return it."""
        numbers = wire.action_numbers(action)
        answer = self._ask("step", {"event": self._next_event(), "action": numbers}, timeout)
        chunk = chunk_from_message(answer["chunk"])
        self.note(chunk)
        return chunk

    def observe(self, *, timeout: float | None = None) -> Chunk:
        """Return the newest chunk of the present epoch, waiting for the first one if need be."""
        self._connected(timeout)
        return self._wait(lambda: self._buffer.newest, timeout, "waiting for a chunk")

    # Realtime

    def act(self, action: Any) -> int:
        """Send a live action and return its event id; `Chunk.applied` and `Frame.applied` name it once it is used."""
        event = self._next_event()
        self._ask("action", {"event": event, "action": wire.action_numbers(action)})
        return event

    def set_prompt(self, text: str) -> int:
        """Set the world's prompt and return the event id."""
        event = self._next_event()
        self._ask("prompt", {"event": event, "text": text})
        return event

    def interrupt(self) -> int:
        """Stop what the last action asked for: the world's initial action takes its place."""
        return self.act(self.world.action["initial"])

    def pause(self) -> None:
        """Open no further chunk."""
        self._ask("pause", {})

    def resume(self) -> None:
        """Go on from where pause stopped."""
        self._ask("resume", {})

    def frames(self, *, timeout: float | None = None) -> Iterator[Frame]:
        """Yield frames as they come until the session ends.

        A slow reader misses the oldest chunks. Timeout if nothing comes for `timeout` seconds, unless paused. Ends
        when this client closed the session; raises SessionEnded with the reason when it ended otherwise.
        """
        fps = self.world.fps
        while True:
            try:
                chunk = self._wait(self._take_chunk, timeout, "waiting for a frame", patient="paused")
            except SessionEnded as error:
                if error.reason == "closed":
                    return
                raise
            yield from chunk.split(fps)

    # Both

    @property
    def world(self) -> World:
        """What the server says of this session's world."""
        return self._connected(None).world

    @property
    def chunk(self) -> Chunk | None:
        """The newest chunk that arrived; after opening and after a reset that is chunk 0, the start."""
        return self._buffer.newest

    @property
    def state(self) -> str:
        """The last state that the server told."""
        return self._state

    def status(self) -> SessionStatus:
        """Ask the server for the session's present status."""
        call = http_calls.json_call("GET", http_calls.session_path(self.id), self.token)
        return http_calls.read_session(self._client.send(call))

    def reset(self, seed: int | None = None, *, timeout: float | None = None) -> Chunk:
        """Begin a new epoch, from this seed or the last one, and return its first chunk. Nothing older comes after."""
        self._new_epoch(self._ask("reset", {} if seed is None else {"seed": seed}, timeout))
        return self.observe(timeout=timeout)

    def restore(self, snapshot: str, *, timeout: float | None = None) -> None:
        """Return to a snapshot; begins a new epoch. The next chunk continues from there."""
        self._new_epoch(self._ask("restore", {"snapshot": snapshot}, timeout))

    def snapshot(self) -> str:
        """Keep the present state and return its id."""
        return str(self._ask("snapshot", {})["snapshot"])

    @overload
    def fork(self) -> Session: ...

    @overload
    def fork(self, count: int) -> list[Session]: ...

    def fork(self, count: int | None = None) -> Session | list[Session]:
        """Return a child that stands where this session stands, or a list of `count` of them."""
        answer = self._ask("fork", {"count": 1 if count is None else count})
        children = [self._client.adopt(status_from_message(one)) for one in answer["sessions"]]
        return children[0] if count is None else children

    def on(self, event: str, callback: Callback) -> None:
        """Call `callback(body)` at each such event, on a thread of its own, in order."""
        if event not in EVENTS:
            raise InvalidState(f"no event named {event!r}; there are: {', '.join(EVENTS)}")
        with self._lock:
            self._callbacks.setdefault(event, []).append(callback)
            if self._caller is None:
                self._caller = threading.Thread(target=self._call_back, name="physis callbacks", daemon=True)
                self._caller.start()

    def abandon(self) -> None:
        """Let go of the connection without ending the session: for 12 s it can be taken up again by id and token."""
        self._client.forget(self)
        self._finish("abandoned")
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._calls.put(None)

    def close(self) -> None:
        """End the session; idempotent. A server that cannot be reached ends it by itself within 20 s."""
        self._client.forget(self)
        first = self._finish("closed")
        try:
            if first:
                call = http_calls.json_call("DELETE", http_calls.session_path(self.id), self.token)
                with contextlib.suppress(PhysisError):
                    self._client.send(call, timeout=min(3.0, self._client.timeout))
        finally:
            link, self._link = self._link, None
            if link is not None:
                link.close()
            self._calls.put(None)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # For Client

    def wait_admitted(self, timeout: float) -> None:
        """Connect and wait until the session has left the queue."""
        self._connected(min(timeout, self._client.timeout))
        self._wait(lambda: self._admitted or None, timeout, "waiting for room")

    def note(self, chunk: Chunk) -> None:
        """Remember the newest chunk that a step brought."""
        with self._news:
            if chunk.epoch >= (self._buffer.newest.epoch if self._buffer.newest else 0):
                self._buffer.newest = chunk

    # Called by the link's thread

    def receive_chunk(self, arrived: ChunkArrived) -> None:
        with self._news:
            if not arrived.stale:
                self._buffer.put(arrived.chunk)
                self._news.notify_all()

    def receive_state(self, state: str) -> None:
        with self._news:
            self._state = state if self._ended is None else "ended"
            self._admitted = self._admitted or state not in ("queued", "unknown")
            self._news.notify_all()

    def receive_event(self, happened: Happened, state: str) -> None:
        self.receive_state(state)
        if happened.kind == "ended":
            self._finish(str(happened.body.get("reason") or "closed"))
        with self._lock:
            for callback in self._callbacks.get(happened.kind, ()):
                self._calls.put((callback, happened.body))

    def receive_loss(self, error: PhysisError, link: Link) -> None:
        with self._news:
            if self._link is link:
                self._link, self._failure = None, error
            self._news.notify_all()

    # Inside

    def _next_event(self) -> int:
        with self._lock:
            self._events += 1
            return self._events

    def _ask(self, kind: str, fields: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
        limit = self._client.timeout if timeout is None else timeout
        return self._connected(limit).ask(kind, fields, limit)

    def _connected(self, timeout: float | None) -> Link:
        limit = self._client.timeout if timeout is None else timeout
        with self._lock:
            if self._ended is not None:
                raise SessionEnded(f"the session is over: {self._ended}", reason=self._ended)
            if self._link is None:
                link = Link(self, self._client.address, limit)
                with self._news:
                    self._state, self._failure, self._link = link.state, None, link
                    self._admitted = self._admitted or link.state != "queued"
                link.start()
            return self._link

    def _new_epoch(self, answer: dict[str, Any]) -> None:
        status = status_from_message(answer.get("session"))
        self.seed = status.seed
        with self._news:
            self._buffer.begin_epoch(status.epoch)

    def _take_chunk(self) -> Chunk | None:
        return self._buffer.waiting.popleft() if self._buffer.waiting else None

    def _wait(self, look: Callable[[], T | None], timeout: float | None, what: str, *, patient: str = "") -> T:
        """Wait until `look()` finds something; raise what ended the wait.

        The time begins anew when the state `patient` is left.
        """
        limit = self._client.timeout if timeout is None else timeout
        deadline, is_patient = time.monotonic() + limit, False
        with self._news:
            while (found := look()) is None:
                if self._ended is not None:
                    raise SessionEnded(f"the session is over: {self._ended}", reason=self._ended)
                if self._failure is not None:
                    raise self._failure
                was_patient, is_patient = is_patient, self._state == patient
                if was_patient or is_patient:
                    deadline = time.monotonic() + limit
                if time.monotonic() >= deadline:
                    raise Timeout(f"{what} took longer than {limit:g} s")
                self._news.wait(min(0.5, deadline - time.monotonic()))
        return found

    def _finish(self, reason: str) -> bool:
        with self._news:
            first = self._ended is None
            self._ended = self._ended or reason
            self._state = "ended"
            self._news.notify_all()
        return first

    def _call_back(self) -> None:
        while (item := self._calls.get()) is not None:
            callback, body = item
            callback(body)
