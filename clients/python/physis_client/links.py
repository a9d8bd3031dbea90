"""What both clients need to know of the websockets library: how to connect, and what its failures mean."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from physis_client import wire
from physis_client.errors import PhysisError, SessionEnded, Timeout, TooLarge, Transport
from physis_client.http_calls import Address, refusal

PING_INTERVAL_S = 5.0
PING_TIMEOUT_S = 5.0


def connect_options(address: Address, token: str, timeout_s: float) -> dict[str, Any]:
    """Arguments of websockets' connect(), the same for both of its flavours."""
    options: dict[str, Any] = {
        "additional_headers": {"Authorization": f"Bearer {token}"},
        "compression": None,
        "max_size": wire.MAX_CHUNK_BYTES,
        "open_timeout": timeout_s,
        "close_timeout": 2.0,
        "ping_interval": PING_INTERVAL_S,
        "ping_timeout": PING_TIMEOUT_S,
    }
    return {**options, "proxy": None} if address.is_loopback else options


def socket_url(address: Address, session: str) -> str:
    return f"{address.websocket_url}/v1/sessions/{quote(session, safe='')}/ws"


def connect_error(error: Exception, timeout_s: float) -> PhysisError:
    """Return the typed error of a connection that did not come about."""
    if isinstance(error, PhysisError):
        return error
    if isinstance(error, InvalidStatus):
        return refusal(error.response.status_code, bytes(error.response.body or b""))
    if isinstance(error, TimeoutError):
        return Timeout(f"connecting took longer than {timeout_s:g} s")
    if isinstance(error, (OSError, WebSocketException, EOFError)):
        return Transport(f"connecting failed: {error or type(error).__name__}")
    return Transport(f"connecting failed: {type(error).__name__}: {error}")


def lost_error(error: Exception | None, ended_reason: str | None) -> PhysisError:
    """Return the typed error of a connection that was lost: SessionEnded if the server said so before."""
    if ended_reason is not None:
        return SessionEnded(f"the session is over: {ended_reason}", reason=ended_reason)
    if isinstance(error, PhysisError):
        return error
    if isinstance(error, ConnectionClosed) and error.rcvd is not None and error.rcvd.code == 1009:
        return TooLarge("the server refused a message as too large")
    reason = "" if error is None else f": {error}"
    return Transport(f"the connection was lost{reason}")
