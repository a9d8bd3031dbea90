"""Reads typed fields out of a request's dict; a wrong one is refused by name before anything happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from physis_client.errors import InvalidAction, TooLarge
from physis_client.wire import MAX_EVENT, action_numbers
from physis_stream.server.problems import InvalidRequest

MAX_SEED = 2**53 - 1


def whole(body: Mapping[str, Any], name: str, *, low: int, high: int, default: int | None = None) -> int:
    """A whole number within low..high; `default` stands in where the field is absent or null."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise InvalidRequest(f"{name} must be a whole number")
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be within {low}..{high}, got {value}")
    return value


def text(body: Mapping[str, Any], name: str, *, most: int, default: str | None = None) -> str:
    """A string of at most `most` characters."""
    value = body.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string")
    if len(value) > most:
        raise TooLarge(f"{name} has at most {most} characters, got {len(value)}")
    return value


def one_of(body: Mapping[str, Any], name: str, choices: tuple[str, ...], default: str) -> str:
    value = body.get(name, default)
    if value not in choices or not isinstance(value, str):
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false")
    return value


def seed(body: Mapping[str, Any]) -> int | None:
    """The seed, or None where the client leaves it to the server."""
    return None if body.get("seed") is None else whole(body, "seed", low=0, high=MAX_SEED)


def event(body: Mapping[str, Any], name: str = "event") -> int:
    return whole(body, name, low=0, high=MAX_EVENT)


def action(body: Mapping[str, Any], name: str = "action") -> list[float]:
    """One row of finite numbers; the engine checks the world's own length."""
    if body.get(name) is None:
        raise InvalidAction("an action is missing")
    return action_numbers(body[name])
