"""Who may call: Host and Origin on every request, the server's token on what opens sessions, short-lived signed tokens.

A browser page of another site can reach a loopback server; Host stops DNS rebinding, Origin stops the page. Tokens made
here are `claims.signature` in base64url, signed with a key derived from the server's token (or drawn at start), so that
nothing needs storing. Wall time is given by the caller.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from physis_client.errors import Unauthorized
from physis_stream.server.problems import Forbidden, problem_response
from physis_stream.server.settings import LOOPBACK_HOSTS, ServerSettings

MAX_TOKEN_S = 24 * 3600


@dataclass(frozen=True, slots=True)
class Claims:
    """What a signed token allows: opening `models` (None: any) from `origins` (None.

    Any), or watching session `view`.
    """

    expires_s: int
    models: tuple[str, ...] | None = None
    origins: tuple[str, ...] | None = None
    view: str | None = None


def bearer(connection: HTTPConnection, *, query: bool = False) -> str | None:
    """The token of a request: Authorization, or with `query` also `?token=`, where a browser cannot set headers."""
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return (connection.query_params.get("token") or None) if query else None


class Authority:
    """Checks the server's token and makes and reads signed ones."""

    def __init__(self, settings: ServerSettings, wall_clock: Callable[[], float]) -> None:
        self._token = settings.token
        self._key = hashlib.sha256(b"physis tokens" + (settings.token or secrets.token_hex(32)).encode()).digest()
        self._wall_clock = wall_clock

    def admit(self, connection: HTTPConnection, model: str | None = None) -> None:
        """Let through who bears the server's token or a signed one for this model; anybody on an open server."""
        if self._token is None:
            return
        token = bearer(connection)
        if token is None:
            raise Unauthorized("this server wants its token")
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            self._check_scope(self.read(token), connection, model)

    def owner(self, connection: HTTPConnection) -> None:
        """Let a request through that bears the server's own token."""
        token = bearer(connection)
        if self._token is not None and not hmac.compare_digest((token or "").encode(), self._token.encode()):
            raise Unauthorized("this needs the server's own token") if token is None else Forbidden("wrong token")

    def make(self, claims: Claims) -> str:
        body = json.dumps(
            {"e": claims.expires_s, "m": claims.models, "o": claims.origins, "v": claims.view}, separators=(",", ":")
        ).encode()
        return f"{_text(body)}.{_text(hmac.digest(self._key, body, 'sha256'))}"

    def read(self, token: str) -> Claims:
        """Return a signed token's claims; Unauthorized if it is forged, Forbidden if it is over."""
        body, _, signature = token.partition(".")
        try:
            raw, signed = _bytes(body), _bytes(signature)
        except ValueError as error:
            raise Forbidden("wrong token") from error
        if not hmac.compare_digest(hmac.digest(self._key, raw, "sha256"), signed):
            raise Forbidden("wrong token")
        content = json.loads(raw)
        models, origins = content["m"], content["o"]
        claims = Claims(
            content["e"],
            None if models is None else tuple(models),
            None if origins is None else tuple(origins),
            content["v"],
        )
        if self._wall_clock() >= claims.expires_s:
            raise Forbidden("the token has expired")
        return claims

    def expiry(self, duration_s: int) -> int:
        return int(self._wall_clock()) + duration_s

    def _check_scope(self, claims: Claims, connection: HTTPConnection, model: str | None) -> None:
        if claims.view is not None:
            raise Forbidden("this token only watches")
        if claims.origins is not None and connection.headers.get("origin") not in claims.origins:
            raise Forbidden("this token is for other origins")
        if model is not None and claims.models is not None and model not in claims.models:
            raise Forbidden("this token is for other models")


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def host_name(value: str) -> str:
    """The host in a Host header, lower-case and without port or brackets; empty if it does not parse."""
    try:
        return (urlsplit(f"//{value}").hostname or "").lower()
    except ValueError:
        return ""


class Gate:
    """ASGI middleware: refuses foreign Hosts and Origins, answers preflights, adds the headers of every answer."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self._app = app
        self._hosts = settings.hosts
        self._origins = settings.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        refusal = self._refusal(headers, origin)
        if refusal is not None:
            await problem_response(refusal)(scope, receive, send)
        elif scope["type"] == "http" and scope["method"] == "OPTIONS":
            await Response(status_code=204, headers=self._shared(origin))(scope, receive, send)
        else:
            await self._app(scope, receive, self._with_headers(send, origin))

    def _refusal(self, headers: Headers, origin: str | None) -> Forbidden | None:
        if host_name(headers.get("host", "")) not in self._hosts:
            return Forbidden("the Host header names another server")
        if origin is not None and not self._origin_allowed(origin):
            return Forbidden("pages of this origin may not call this server")
        return None

    def _origin_allowed(self, origin: str) -> bool:
        try:
            parts = urlsplit(origin.lower())
            host = parts.hostname or ""
        except ValueError:
            return False
        if origin.rstrip("/").lower() in self._origins:
            return True
        return parts.scheme in ("http", "https") and (host in LOOPBACK_HOSTS or host in self._hosts)

    def _shared(self, origin: str | None) -> dict[str, str]:
        shared = {
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "cross-origin" if origin else "same-origin",
        }
        if origin is not None:
            shared |= {
                "Access-Control-Allow-Origin": origin,
                "Access-Control-Allow-Headers": "Authorization, Content-Type",
                "Access-Control-Allow-Methods": "GET, POST, PATCH, DELETE, OPTIONS",
                "Access-Control-Expose-Headers": "Location, Retry-After",
                "Access-Control-Max-Age": "600",
                "Vary": "Origin",
            }
        return shared

    def _with_headers(self, send: Send, origin: str | None) -> Send:
        added = [(key.lower().encode(), value.encode()) for key, value in self._shared(origin).items()]

        async def forward(message: dict[str, object]) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                had = message.get("headers") or []
                message = {**message, "headers": [*had, *added]}  # type: ignore[misc]
            await send(message)

        return forward  # type: ignore[return-value]
