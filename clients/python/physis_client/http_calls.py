"""The HTTP calls of the client as data: what to send, and how to read what comes back. No I/O.

The synchronous and the asynchronous client send these through httpx; both share every path, header and error rule.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import httpx

from physis_client import wire
from physis_client.chunks import (
    Chunk,
    SessionStatus,
    World,
    chunk_from_message,
    status_from_message,
    world_from_message,
)
from physis_client.errors import PhysisError, Timeout, Transport, from_object

DEFAULT_URL = "http://127.0.0.1:8080"
FAMILY_OF_STATUS = {
    401: "unauthorized",
    403: "unauthorized",
    404: "not_found",
    409: "invalid_state",
    410: "session_ended",
    413: "too_large",
    422: "invalid_request",
    429: "capacity",
    503: "engine_down",
    504: "timeout",
}


@dataclass(frozen=True)
class Call:
    """One HTTP request."""

    method: str
    path: str
    token: str | None = None
    content: bytes | None = None
    content_type: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = {} if self.content_type is None else {"Content-Type": self.content_type}
        return headers if self.token is None else {**headers, "Authorization": f"Bearer {self.token}"}


@dataclass(frozen=True)
class Address:
    """Where the server is and who calls; from arguments, else from PHYSIS_URL and PHYSIS_TOKEN."""

    url: str
    token: str | None

    @property
    def websocket_url(self) -> str:
        parts = urlsplit(self.url)
        return urlunsplit(("wss" if parts.scheme == "https" else "ws", parts.netloc, parts.path, "", ""))

    @property
    def is_loopback(self) -> bool:
        """Loopback servers are reached directly, whatever proxy the environment names."""
        host = urlsplit(self.url).hostname or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def address(url: str | None, token: str | None) -> Address:
    """Return the address to use; raise Transport for a URL that is none."""
    chosen = (url or os.environ.get("PHYSIS_URL") or DEFAULT_URL).rstrip("/")
    parts = urlsplit(chosen)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Transport(f"the server's URL must be http://host[:port], got {chosen}", recoverable=False)
    return Address(chosen, token or os.environ.get("PHYSIS_TOKEN") or None)


def json_call(method: str, path: str, token: str | None, body: Mapping[str, Any] | None = None) -> Call:
    if body is None:
        return Call(method, path, token)
    return Call(method, path, token, json.dumps(body).encode(), "application/json")


def session_path(session: str, ending: str = "") -> str:
    return f"/v1/sessions/{quote(session, safe='')}{ending}"


def open_call(model: str, seed: int | None, mode: str, wait: bool, image: wire.Array | None, token: str | None) -> Call:
    body: dict[str, Any] = {"model": model, "mode": mode, "wait": wait}
    if seed is not None:
        body["seed"] = seed
    if image is None:
        return json_call("POST", "/v1/sessions", token, body)
    return Call("POST", "/v1/sessions", token, wire.encode({**body, "image": image}), wire.CONTENT_TYPE)


def step_many_call(items: Sequence[tuple[str, str, Sequence[float]]]) -> Call:
    """`items` are (session id, its token, action)."""
    body = [{"session": session, "token": token, "action": list(action)} for session, token, action in items]
    return Call("POST", "/v1/step_many", None, wire.encode({"items": body}), wire.CONTENT_TYPE)


def read_models(response: httpx.Response) -> list[World]:
    return [world_from_message(one) for one in read_json(response).get("models", ())]


def read_session(response: httpx.Response) -> SessionStatus:
    return status_from_message(read_json(response))


def read_chunks(response: httpx.Response) -> list[Chunk]:
    check(response)
    chunks = wire.decode(response.content).get("chunks")
    if not isinstance(chunks, list):
        raise wire.WireError("the server sent no chunks")
    return [chunk_from_message(one) for one in chunks]


def read_json(response: httpx.Response) -> dict[str, Any]:
    check(response)
    try:
        body = response.json()
    except ValueError as error:
        raise Transport("the server answered with something that is not JSON") from error
    if not isinstance(body, dict):
        raise Transport("the server answered with something that is not a JSON object")
    return body


def check(response: httpx.Response) -> None:
    """Raise the typed error of a refusal."""
    if response.status_code >= 400:
        raise refusal(response.status_code, response.content)


def refusal(status: int, content: bytes) -> PhysisError:
    """Return the error of a status and a body; a body that is no problem+json falls back to the status."""
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("code"), str):
        return from_object(body)
    code = FAMILY_OF_STATUS.get(status, "internal" if status >= 500 else "invalid_request")
    return from_object({"code": code, "message": f"the server answered with status {status}"})


def transport_error(error: Exception, what: str, timeout_s: float) -> PhysisError:
    """Return the typed error of a failed exchange."""
    if isinstance(error, (httpx.TimeoutException, TimeoutError)):
        return Timeout(f"{what} took longer than {timeout_s:g} s")
    return Transport(f"{what} failed: {error or type(error).__name__}")
