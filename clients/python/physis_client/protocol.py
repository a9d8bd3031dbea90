"""The session protocol without I/O: requests out, answers and chunks in, acknowledgements, epochs.

One instance speaks for one connection to one session. Bytes that arrive become exactly one of the types below; nothing
waits, sleeps or holds a socket. The synchronous and the asynchronous client both stand on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from physis_client import wire
from physis_client.chunks import Chunk, World, chunk_from_message, status_from_message, world_from_message
from physis_client.errors import PhysisError, from_object
from physis_client.wire import WireError

Body = dict[str, Any]


@dataclass(frozen=True)
class Greeted:
    """The server's hello."""

    world: World
    state: str
    epoch: int


@dataclass(frozen=True)
class Answered:
    """The answer to request `number`: a body, or the refusal."""

    number: int
    body: Body
    error: PhysisError | None


@dataclass(frozen=True)
class Refused:
    """A refusal that answers no request we can name."""

    error: PhysisError


@dataclass(frozen=True)
class ChunkArrived:
    """A streamed chunk, to be acknowledged. `stale` ones are of an epoch that is over and must not be shown."""

    chunk: Chunk
    stale: bool


@dataclass(frozen=True)
class Happened:
    """An event that nobody asked for: status, queue, error, ended, recovered, stats."""

    kind: str
    body: Body


Received = Greeted | Answered | Refused | ChunkArrived | Happened


class SessionProtocol:
    """Builds messages and reads them; keeps the epoch, the state and the counters of one connection."""

    def __init__(self) -> None:
        self._next_request = 1
        self.epoch = 0
        self.state = "unknown"
        self.ended_reason: str | None = None

    def hello(self) -> bytes:
        return wire.encode({"type": "hello", "version": wire.VERSION})

    def request(self, kind: str, fields: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return the number and the bytes of a request; the answer will carry the number."""
        number = self._next_request
        self._next_request += 1
        return number, wire.encode({"id": number, "type": kind, **fields})

    def ack(self, chunk: Chunk) -> bytes:
        """Return the acknowledgement of a chunk and all before it."""
        return wire.encode({"type": "ack", "frame_id": chunk.first_frame_id})

    def receive(self, data: bytes | str) -> Received:
        """Read one message; raise WireError if it is none of this protocol's."""
        if isinstance(data, str):
            raise WireError("the server sent text where msgpack is due")
        message = wire.decode(data)
        if message.get("type") == "hello":
            return self._greeted(message)
        if message.get("type") == "chunk":
            chunk = chunk_from_message(message)
            stale = chunk.epoch < self.epoch
            self.epoch = max(self.epoch, chunk.epoch)
            return ChunkArrived(chunk, stale)
        if "re" in message:
            return self._answered(message)
        if isinstance(message.get("event"), str):
            return self._happened(message)
        raise WireError("the server sent a message of no known kind")

    def _greeted(self, message: Body) -> Greeted | Refused:
        if not message.get("ok"):
            return Refused(from_object(message.get("error")))
        status = status_from_message(message.get("session"))
        self.state, self.epoch = status.state, max(self.epoch, status.epoch)
        return Greeted(world_from_message(message.get("world")), status.state, status.epoch)

    def _answered(self, message: Body) -> Answered | Refused:
        number, ok = message["re"], bool(message.get("ok"))
        error = None if ok else from_object(message.get("error"))
        if not isinstance(number, int):
            return Refused(error or PhysisError("the server answered a request that has no number"))
        if ok and "session" in message:
            status = status_from_message(message["session"])
            self.state, self.epoch = status.state, max(self.epoch, status.epoch)
        return Answered(number, message, error)

    def _happened(self, message: Body) -> Happened:
        kind = str(message["event"])
        if kind == "status" and isinstance(message.get("state"), str):
            self.state = message["state"]
            epoch = message.get("epoch")
            self.epoch = max(self.epoch, epoch) if isinstance(epoch, int) else self.epoch
        elif kind == "ended":
            self.state, self.ended_reason = "ended", str(message.get("reason") or "closed")
        return Happened(kind, message)


@dataclass
class ChunkBuffer:
    """Chunks that arrived and were not read yet: at most `most`, the oldest gives way and the next one tells
    what it applied. Also keeps the newest of all."""

    most: int = 2
    waiting: deque[Chunk] = field(default_factory=deque)
    newest: Chunk | None = None
    dropped: int = 0

    def put(self, chunk: Chunk) -> None:
        if self.newest is None or chunk.epoch > self.newest.epoch:
            self.begin_epoch(chunk.epoch)
        self.newest = chunk
        self.waiting.append(chunk)
        if len(self.waiting) > self.most:
            lost = self.waiting.popleft()
            heir = self.waiting[0]
            self.waiting[0] = replace(heir, applied=(*lost.applied, *heir.applied))
            self.dropped += 1

    def begin_epoch(self, epoch: int) -> None:
        """Forget chunks of earlier epochs."""
        self.waiting = deque(chunk for chunk in self.waiting if chunk.epoch >= epoch)
        if self.newest is not None and self.newest.epoch < epoch:
            self.newest = None
