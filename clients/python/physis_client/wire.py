"""The wire format: msgpack messages with strict arrays. The server uses this same module.

An array travels as {"__nd__": true, "dtype", "shape", "data"}: five dtypes, C order, an exact byte count. Nothing here
executes or allocates on a peer's word: sizes are checked before a byte is copied. Knows no socket and no session.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from physis_client.errors import InvalidAction, PhysisError, TooLarge

VERSION = 1
"""Version of docs/protocol.md that this module speaks."""
DTYPES = ("|u1", "<f4", "<f8", "<i4", "<i8")
MAX_RANK = 8
MAX_REQUEST_BYTES = 1 << 20
"""Largest message a client may send."""
MAX_CHUNK_BYTES = 256 << 20
"""Largest message a client accepts."""
MAX_UNACKED = 4
"""Chunks of a realtime session that may be on their way without an acknowledgement."""
CONTENT_TYPE = "application/msgpack"
MAX_EVENT = 2**53 - 1
"""Event ids stay exact in every client's numbers."""

Array = npt.NDArray[Any]


class WireError(PhysisError):
    """The bytes are not a message of this protocol."""

    default_code = "invalid_request"


def pack_array(array: Array) -> dict[str, Any]:
    """Return the wire form of an array; raise WireError for a dtype that does not travel."""
    dtype = array.dtype.newbyteorder("<").str if array.dtype.itemsize > 1 else array.dtype.str
    if dtype not in DTYPES:
        raise WireError(f"arrays of dtype {array.dtype} do not travel; use one of {', '.join(DTYPES)}")
    little = np.ascontiguousarray(array, dtype=np.dtype(dtype))
    return {"__nd__": True, "dtype": dtype, "shape": list(array.shape), "data": little.tobytes()}


def unpack_array(message: Mapping[str, Any]) -> Array:
    """Return a writable array that owns its memory; raise WireError unless dtype, shape and byte count are exact."""
    if set(message) != {"__nd__", "dtype", "shape", "data"} or message["__nd__"] is not True:
        raise WireError("an array has exactly the keys __nd__ (true), dtype, shape and data")
    dtype, shape, data = message["dtype"], message["shape"], message["data"]
    if dtype not in DTYPES:
        raise WireError(f"array dtype must be one of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > MAX_RANK:
        raise WireError(f"array shape must be a list of at most {MAX_RANK} sizes")
    if any(type(size) is not int or size < 0 for size in shape):
        raise WireError("array sizes must be whole numbers from 0")
    if not isinstance(data, bytes):
        raise WireError("array data must be bytes")
    expected = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != expected:
        raise WireError(f"array of shape {shape} and dtype {dtype} has {expected} bytes, got {len(data)}")
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()


def _default(value: object) -> Any:
    if isinstance(value, np.ndarray):
        return pack_array(value)
    if isinstance(value, np.generic):
        return value.item()
    raise WireError(f"{type(value).__name__} does not travel")


def _object_hook(message: dict[str, Any]) -> Any:
    return unpack_array(message) if "__nd__" in message else message


def encode(message: Mapping[str, Any]) -> bytes:
    """Return the bytes of a message; arrays may stand anywhere in it."""
    try:
        packed: bytes = msgpack.packb(message, default=_default, use_bin_type=True)
    except (TypeError, ValueError, OverflowError) as error:
        raise WireError(f"message does not encode: {error}") from error
    return packed


def decode(data: bytes, *, max_bytes: int = MAX_CHUNK_BYTES) -> dict[str, Any]:
    """Return the message.

    Raise TooLarge beyond `max_bytes` and WireError for anything that is not a map with string keys.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"a message has at most {max_bytes} bytes, got {len(data)}")
    try:
        message = msgpack.unpackb(data, raw=False, strict_map_key=True, object_hook=_object_hook)
    except PhysisError:
        raise
    except Exception as error:  # msgpack raises many types, all of them the peer's fault
        raise WireError("the bytes are not a msgpack message") from error
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise WireError("a message is a map with string keys")
    return message


def action_numbers(action: object) -> list[float]:
    """Return an action as a list of floats; raise InvalidAction for anything else than finite numbers in one row.

    The world's own length and bounds are checked by the engine.
    """
    try:
        array = np.asarray(action)
    except (TypeError, ValueError) as error:
        raise InvalidAction("an action is a list of numbers") from error
    if array.ndim != 1 or array.dtype.kind not in "iuf":
        raise InvalidAction(f"an action is one row of numbers, got shape {array.shape} of {array.dtype}")
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        raise InvalidAction("an action must be finite")
    return [float(number) for number in numbers]
