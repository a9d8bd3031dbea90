"""Refusals on their way out: any exception -> one error object -> problem+json under a real status code.

The engine's refusals and the client package's errors meet here. No traceback and no text of an unforeseen exception
leaves.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from physis_client.errors import PhysisError, Timeout, Unauthorized
from physis_stream.core.errors import EngineError
from physis_stream.server.json_text import to_json

log = logging.getLogger("physis_stream.server")

STATUS: Mapping[str, int] = {
    "unauthorized": 401,
    "invalid_action": 422,
    "invalid_request": 422,
    "invalid_state": 409,
    "not_found": 404,
    "capacity": 503,
    "timeout": 504,
    "too_large": 413,
    "session_ended": 410,
    "version_mismatch": 400,
    "engine_down": 503,
    "internal": 500,
}
TITLES: Mapping[str, str] = {
    "unauthorized": "Not allowed",
    "invalid_action": "The action is not valid",
    "invalid_request": "The request is not valid",
    "invalid_state": "Not legal in the present state",
    "not_found": "Not found",
    "capacity": "No room now",
    "timeout": "The engine did not answer in time",
    "too_large": "Larger than a limit allows",
    "session_ended": "The session is over",
    "version_mismatch": "Another version of the protocol",
    "engine_down": "The engine is down",
    "internal": "Internal error",
}


class InvalidRequest(PhysisError):
    """The request is malformed; nothing was changed. `status` is 400 where it does not even parse."""

    default_code = "invalid_request"

    def __init__(self, message: str, *, status: int = 422) -> None:
        super().__init__(message)
        self.status = status


class Forbidden(Unauthorized):
    """Who asks is known and may not: a wrong token, a foreign Origin or Host."""

    status = 403


class RateLimited(PhysisError):
    """Too many requests; `retry_after_s` says when."""

    default_code = "capacity"
    status = 429

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message, retry_after_s=math.ceil(retry_after_s * 1000) / 1000)


def new_request_id() -> str:
    return secrets.token_hex(8)


def error_object(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the error object of docs/protocol.md; unforeseen exceptions are logged and become `internal`."""
    if isinstance(error, PhysisError):
        return {**error.to_object(), "request_id": request_id}
    if isinstance(error, EngineError):
        return {
            "code": error.code,
            "message": error.message,
            "recoverable": error.recoverable,
            "retry_after_s": error.retry_after_s,
            "request_id": request_id,
        }
    if isinstance(error, TimeoutError):
        return {**Timeout("the engine did not answer in time").to_object(), "request_id": request_id}
    log.error("request %s failed", request_id, exc_info=error)
    return PhysisError("internal error; the log has it under the request id", request_id=request_id).to_object()


def problem_response(error: BaseException, request_id: str | None = None) -> Response:
    """Return the problem+json response for an exception, with Retry-After where waiting helps."""
    body = error_object(error, request_id or new_request_id())
    status = getattr(error, "status", None) or STATUS.get(body["code"], 500)
    title = TITLES.get(body["code"], TITLES["internal"])
    headers = {"Cache-Control": "no-store"}
    if body["retry_after_s"] is None and body["code"] == "capacity":
        body["retry_after_s"] = 2.0
    if body["retry_after_s"] is not None:
        headers["Retry-After"] = str(max(1, round(body["retry_after_s"] + 0.499)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    problem = {"type": "about:blank", "title": title, "status": status, "detail": body["message"], **body}
    return Response(to_json(problem), status, headers, media_type="application/problem+json")


async def answer_with_problem(request: Request, error: Exception) -> Response:
    """Starlette's exception hook for every route."""
    return problem_response(error)
