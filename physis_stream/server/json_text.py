"""JSON in and out, strictly: what comes in is an object or refused, what goes out never holds NaN."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


class NotJson(ValueError):
    """The text is not a JSON object."""


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def to_json(value: Any) -> str:
    """Return compact JSON; numbers that JSON does not know become null, other objects their text."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False, default=str)


def object_from_json(text: str | bytes) -> dict[str, Any]:
    """Return the object in `text`; raise NotJson for anything else, however broken."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotJson("the text is not JSON") from error
    if not isinstance(value, dict):
        raise NotJson("a JSON object is expected")
    return value
