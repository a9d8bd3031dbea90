"""The HTTP interface described by itself: `/openapi.json`, and `/docs`, a page made from it without any script."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from physis_stream.server.json_text import to_json
from physis_stream.server.problems import STATUS, TITLES
from physis_stream.version import __version__

Schema = dict[str, Any]
SESSION = "/v1/sessions/{id}"


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: `takes` and `gives` name a schema, or a media type where a body is not JSON."""

    method: str
    path: str
    summary: str
    status: int
    takes: str | None = None
    gives: str | None = None
    secret: str | None = "session"


CALLS = (
    Call("get", "/v1/models", "The worlds that can be opened", 200, None, "Models", "server"),
    Call("post", "/v1/sessions", "Open a session (202: it waits for room)", 201, "OpenSession", "Session", "server"),
    Call("get", SESSION, "The session's present status", 200, None, "Session"),
    Call("delete", SESSION, "End the session; also the second time", 204),
    Call(
        "post",
        f"{SESSION}/step",
        "Lockstep: one chunk under one action",
        200,
        "application/msgpack",
        "application/msgpack",
    ),
    Call(
        "post",
        "/v1/step_many",
        "Step several sessions in one call",
        200,
        "application/msgpack",
        "application/msgpack",
        None,
    ),
    Call("post", f"{SESSION}/reset", "Begin a new epoch", 200, "Reset", "Session"),
    Call("post", f"{SESSION}/pause", "Open no further chunk", 200, None, "Session"),
    Call("post", f"{SESSION}/resume", "Go on", 200, None, "Session"),
    Call("post", f"{SESSION}/fork", "Children that share this session's past", 201, "Fork", "Sessions"),
    Call("post", f"{SESSION}/snapshot", "Keep the present state", 201, None, "Snapshot"),
    Call("post", f"{SESSION}/restore", "Go back to a snapshot", 200, "Snapshot", "Session"),
    Call("post", f"{SESSION}/webrtc", "Offer a peer connection", 201, "Offer", "Answer"),
    Call("patch", f"{SESSION}/webrtc", "Renegotiate a peer connection", 200, "Offer", "Answer"),
    Call("delete", f"{SESSION}/webrtc", "Close one peer connection, or all", 204),
    Call(
        "get",
        f"{SESSION}/events",
        "Status, queue, errors and the end, as server-sent events",
        200,
        None,
        "text/event-stream",
    ),
    Call("get", f"{SESSION}/ws", "WebSocket: requests and chunks in msgpack", 101),
    Call("post", "/whep/{id}", "Watch a session, read-only (WHEP)", 201, "application/sdp", "application/sdp"),
    Call("delete", "/whep/{id}/{peer}", "Stop watching", 204),
    Call("get", "/v1/ice_servers", "STUN and TURN servers to use", 200, None, "IceServers", None),
    Call("post", "/v1/tokens", "Make a short-lived token", 201, "TokenRequest", "Token", "server"),
    Call("get", "/v1/stats", "The engine's present facts", 200, None, "Stats", "server"),
    Call("get", "/healthz", "Alive; 503 once the engine's loop is dead", 200, None, "Stats", None),
    Call("get", "/readyz", "Could admit a session; 503 with the reason if not", 200, None, "Stats", None),
    Call("get", "/metrics", "Prometheus text", 200, None, "text/plain", "server"),
)


def record(required: tuple[str, ...] = (), **fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, **({"required": list(required)} if required else {})}


STRING: Schema = {"type": "string"}
WHOLE: Schema = {"type": "integer"}
STRINGS: Schema = {"type": "array", "items": STRING}
SCHEMAS: dict[str, Schema] = {
    "Models": record(models={"type": "array", "items": {"type": "object"}}),
    "OpenSession": record(
        ("model",),
        model=STRING,
        seed={"type": "integer", "minimum": 0},
        mode={"type": "string", "enum": ["realtime", "lockstep"], "default": "realtime"},
        wait={"type": "boolean", "default": True},
    ),
    "Session": record(
        ("id", "model", "mode", "state"),
        id=STRING,
        model=STRING,
        mode=STRING,
        state=STRING,
        epoch=WHOLE,
        chunks=WHOLE,
        seed=WHOLE,
        queue_position=WHOLE,
        ended_reason={"type": ["string", "null"]},
        token=STRING,
    ),
    "Sessions": record(sessions={"type": "array", "items": {"$ref": "#/components/schemas/Session"}}),
    "Reset": record(seed={"type": "integer", "minimum": 0}),
    "Fork": record(count={"type": "integer", "minimum": 1, "default": 1}),
    "Snapshot": record(("snapshot",), snapshot=STRING),
    "Offer": record(("sdp", "type"), sdp=STRING, type={"const": "offer"}, peer=STRING),
    "Answer": record(("sdp", "type", "peer"), sdp=STRING, type={"const": "answer"}, peer=STRING),
    "IceServers": record(ice_servers={"type": "array", "items": {"type": "object"}}),
    "TokenRequest": record(duration_s=WHOLE, models=STRINGS, origins=STRINGS, view=STRING),
    "Token": record(("token", "expires_s"), token=STRING, expires_s=WHOLE),
    "Stats": {"type": "object"},
    "Problem": record(
        ("status", "title", "code", "message"),
        type=STRING,
        title=STRING,
        status=WHOLE,
        detail=STRING,
        code={"type": "string", "enum": sorted(STATUS)},
        message=STRING,
        recoverable={"type": "boolean"},
        retry_after_s={"type": ["number", "null"]},
        request_id={"type": ["string", "null"]},
    ),
}


def _content(name: str) -> Schema:
    if "/" in name:
        return {name: {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _operation(call: Call) -> Schema:
    names = [part[1:-1] for part in call.path.split("/") if part.startswith("{")]
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    answer: Schema = {"description": call.summary}
    if call.gives:
        answer["content"] = _content(call.gives)
    operation: Schema = {
        "summary": call.summary,
        "parameters": [{"name": name, "in": "path", "required": True, "schema": STRING} for name in names],
        "responses": {str(call.status): answer, "default": {"description": "A refusal", "content": problem}},
        "security": [{call.secret: []}] if call.secret else [],
    }
    if call.takes:
        operation["requestBody"] = {"content": _content(call.takes)}
    return operation


def document() -> Schema:
    """Return the OpenAPI 3.1 document."""
    paths: dict[str, Schema] = {}
    for call in CALLS:
        paths.setdefault(call.path, {})[call.method] = _operation(call)
    bearer = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "physis_stream", "version": __version__, "description": "Interactive world models"},
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {
                "session": {**bearer, "description": "the session's own token"},
                "server": {**bearer, "description": "the server's token; an open loopback server wants none"},
            },
        },
    }


def _fields_text(name: str | None) -> str:
    if name is None:
        return "—"
    fields = SCHEMAS.get(name, {}).get("properties")
    if not fields:
        return escape(name)
    return f"<b>{escape(name)}</b> {{{', '.join(escape(field) for field in fields)}}}"


def page() -> str:
    """Return `/docs` as plain HTML."""
    rows = "".join(
        f"<tr><td><code>{call.method.upper()}</code></td><td><code>{escape(call.path)}</code></td>"
        f"<td>{escape(call.summary)}</td><td>{_fields_text(call.takes)}</td>"
        f"<td>{call.status} {_fields_text(call.gives)}</td><td>{call.secret or '—'}</td></tr>"
        for call in CALLS
    )
    codes = "".join(
        f"<tr><td><code>{code}</code></td><td>{status}</td><td>{escape(TITLES[code])}</td></tr>"
        for code, status in STATUS.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>physis_stream: HTTP</title>'
        '<meta name="viewport" content="width=device-width">'
        "<style>body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:72rem;padding:0 1rem;"
        "color:#222;background:#fff}table{border-collapse:collapse;width:100%;margin:1rem 0}"
        "td,th{border-bottom:1px solid #ddd;padding:.4rem .6rem;text-align:left;vertical-align:top}"
        "code{font-size:.92em}@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}"
        "td,th{border-color:#333}a{color:#8bf}}</style>"
        f"<h1>physis_stream {escape(__version__)}</h1>"
        '<p>The same as <a href="/openapi.json">OpenAPI</a>. Binary bodies are described in the wire protocol.</p>'
        "<table><thead><tr><th></th><th>Path</th><th>What</th><th>Takes</th><th>Gives</th><th>Token</th></tr></thead>"
        f"<tbody>{rows}</tbody></table><h2>Refusals</h2><table><tbody>{codes}</tbody></table></html>"
    )


def routes() -> list[Route]:
    text, html = to_json(document()), page()

    async def as_json(request: Request) -> Response:
        return Response(text, media_type="application/json")

    async def as_page(request: Request) -> Response:
        policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"
        return HTMLResponse(html, headers={"Content-Security-Policy": policy})

    return [Route("/openapi.json", as_json, methods=["GET"]), Route("/docs", as_page, methods=["GET"])]
