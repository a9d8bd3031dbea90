"""What core raises: wrong use, with the family that users see. "Cannot now" is returned as data, never raised."""

from __future__ import annotations


class EngineError(Exception):
    """Base of all refusals. `code` is the stable name that crosses the wire; the message is for people.

    `recoverable` says if the same session can go on; `retry_after_s` is set where waiting helps.
    """

    code = "internal"
    recoverable = True

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidAction(EngineError):
    """The action's shape, type or values are wrong; nothing was changed."""

    code = "invalid_action"


class InvalidState(EngineError):
    """The command is not legal in the session's present state; the message names both."""

    code = "invalid_state"


class NotFound(EngineError):
    """No such session, snapshot or world."""

    code = "not_found"


class Capacity(EngineError):
    """No room now: memory, time or a limit; `retry_after_s` says when to try again."""

    code = "capacity"


class TooLarge(EngineError):
    """The request exceeds a stated limit."""

    code = "too_large"


class SessionEnded(EngineError):
    """The session is over; the message gives the reason."""

    code = "session_ended"
    recoverable = False


class EngineDown(EngineError):
    """The engine's loop is dead or restarting."""

    code = "engine_down"
    recoverable = False
