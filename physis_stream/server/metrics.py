"""Prometheus text of the engine's facts and the server's own counters."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import Response

from physis_stream.core.errors import EngineError
from physis_stream.server.context import ServerContext

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COUNTERS = frozenset({"ticks", "rows", "late_chunks", "evictions"})
HELP = {
    "alive": "1 while the engine's loop beats",
    "could_admit": "1 if one more session could be admitted now",
    "sessions": "resident sessions",
    "queued": "sessions that wait for room",
    "streaming": "sessions that produce chunks by the clock",
    "max_sessions": "sessions that fit at most",
    "pages_total": "pages of KV memory",
    "pages_used": "pages of KV memory in use",
    "ticks": "batches run",
    "rows": "rows run in batches",
    "tick_ms_p50": "median time of a tick in milliseconds",
    "tick_ms_p95": "95th percentile time of a tick in milliseconds",
    "batch_rows_mean": "mean rows in a batch",
    "overhead_share": "share of a tick that is neither model nor transfer",
    "chunk_interval_ms_p50": "median time between chunks of a session in milliseconds",
    "chunk_interval_ms_p95": "95th percentile time between chunks of a session in milliseconds",
    "late_chunks": "chunks that missed their deadline",
    "evictions": "chunks evicted from KV windows",
    "heartbeat_age_s": "seconds since the engine's loop was last heard",
}


def line(name: str, kind: str, text: str, value: float) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value:g}\n"


class Metrics:
    """`GET /metrics`."""

    def __init__(self, server: ServerContext) -> None:
        self._server = server

    async def answer(self, request: Request) -> Response:
        self._server.authority.admit(request)
        return Response(await self._engine() + self._own(), 200, media_type=CONTENT_TYPE)

    async def _engine(self) -> str:
        register = self._server.register
        try:
            stats = asdict(await register.ask(register.service.stats()))
        except (EngineError, TimeoutError):
            return line("physis_engine_alive", "gauge", HELP["alive"], 0)
        text = ""
        for field, value in stats.items():
            counter = field in COUNTERS
            name = f"physis_engine_{field}{'_total' if counter else ''}"
            text += line(name, "counter" if counter else "gauge", HELP.get(field, field), float(value))
        return text

    def _own(self) -> str:
        server = self._server
        return "".join(
            (
                line("physis_server_sessions", "gauge", "sessions that clients hold here", len(server.register)),
                line("physis_server_peers", "gauge", "live peer connections", len(server.peers)),
                line("physis_server_viewers", "gauge", "peer connections that only watch", server.peers.viewers),
                line("physis_server_sockets", "gauge", "open WebSockets", server.sockets),
                line("physis_server_peers_total", "counter", "peer connections made", server.peers.made),
                line("physis_server_expired_total", "counter", "sessions that nobody held", server.register.expired),
                line(
                    "physis_server_dropped_chunks_total",
                    "counter",
                    "chunks that slow WebSocket readers missed",
                    server.dropped_chunks,
                ),
            )
        )
