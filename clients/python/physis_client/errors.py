"""What users catch: one exception family for local and remote sessions, and its one object on the wire.

Knows the codes of docs/protocol.md and nothing of sockets, HTTP or sessions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PhysisError(Exception):
    """Base of all refusals and failures.

    `code` is the stable name that crosses the wire, `message` is for people. `recoverable` says if the same session
    can go on; `retry_after_s` is set where waiting helps; `request_id` names the request in the server's log.
    """

    default_code = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        recoverable: bool = True,
        retry_after_s: float | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.recoverable = recoverable
        self.retry_after_s = retry_after_s
        self.request_id = request_id

    def to_object(self) -> dict[str, Any]:
        """Return the error object of docs/protocol.md."""
        return {
            "code": self.code,
            "message": self.message,
            "recoverable": self.recoverable,
            "retry_after_s": self.retry_after_s,
            "request_id": self.request_id,
        }


class Unauthorized(PhysisError):
    """The token is missing or wrong, or the Origin or Host is not allowed."""

    default_code = "unauthorized"


class InvalidAction(PhysisError):
    """The action's shape, type or values are wrong; nothing was changed."""

    default_code = "invalid_action"


class InvalidState(PhysisError):
    """The call is not legal in the session's present state."""

    default_code = "invalid_state"


class NotFound(PhysisError):
    """No such session, snapshot or world."""

    default_code = "not_found"


class Capacity(PhysisError):
    """No room now; `retry_after_s` says when to try again."""

    default_code = "capacity"


class Timeout(PhysisError):
    """The answer did not come in time; the call may still take effect."""

    default_code = "timeout"


class Transport(PhysisError):
    """The connection failed or the engine behind the server is down."""

    default_code = "transport"


class SessionEnded(PhysisError):
    """The session is over; `reason` says why."""

    default_code = "session_ended"

    def __init__(self, message: str, *, reason: str | None = None, **fields: Any) -> None:
        fields.setdefault("recoverable", False)
        super().__init__(message, **fields)
        self.reason = reason or message


class TooLarge(PhysisError):
    """The request exceeds a stated limit."""

    default_code = "too_large"


class VersionMismatch(PhysisError):
    """Client and server speak different versions of the protocol."""

    default_code = "version_mismatch"


FAMILIES: Mapping[str, type[PhysisError]] = {
    "unauthorized": Unauthorized,
    "invalid_action": InvalidAction,
    "invalid_request": PhysisError,
    "invalid_state": InvalidState,
    "not_found": NotFound,
    "capacity": Capacity,
    "timeout": Timeout,
    "too_large": TooLarge,
    "session_ended": SessionEnded,
    "version_mismatch": VersionMismatch,
    "engine_down": Transport,
    "transport": Transport,
    "internal": PhysisError,
}
"""Code on the wire -> the class that users catch; an unknown code becomes a plain PhysisError that keeps it."""


def from_object(body: object) -> PhysisError:
    """Return the exception that an error object stands for; a malformed object becomes an `internal` PhysisError."""
    if not isinstance(body, Mapping):
        return PhysisError("the server sent an error without a description")
    code = body.get("code")
    code = code if isinstance(code, str) and code else "internal"
    message = body.get("message") or body.get("detail") or code
    retry = body.get("retry_after_s")
    request_id = body.get("request_id")
    return FAMILIES.get(code, PhysisError)(
        str(message),
        code=code,
        recoverable=bool(body.get("recoverable", True)),
        retry_after_s=float(retry) if isinstance(retry, (int, float)) and not isinstance(retry, bool) else None,
        request_id=str(request_id) if request_id is not None else None,
    )
