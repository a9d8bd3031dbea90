"""Packs messages for the wire; large ones on a thread, so that one big chunk does not hold everybody's loop."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from physis_client import wire

ON_A_THREAD = 1 << 20


async def packed(message: Mapping[str, Any], num_bytes: int) -> bytes:
    """Return the message in msgpack; `num_bytes` is how much its arrays hold."""
    if num_bytes < ON_A_THREAD:
        return wire.encode(message)
    return await asyncio.to_thread(wire.encode, message)
