"""physis_client: sessions of a physis_stream server from Python, blocking or asyncio, without torch."""

from __future__ import annotations

from physis_client.async_client import AsyncClient
from physis_client.async_session import AsyncSession
from physis_client.chunks import Chunk, Frame, SessionStatus, World
from physis_client.errors import (
    Capacity,
    InvalidAction,
    InvalidState,
    NotFound,
    PhysisError,
    SessionEnded,
    Timeout,
    TooLarge,
    Transport,
    Unauthorized,
    VersionMismatch,
)
from physis_client.sync_client import Client
from physis_client.sync_session import Session

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Capacity",
    "Chunk",
    "Client",
    "Frame",
    "InvalidAction",
    "InvalidState",
    "NotFound",
    "PhysisError",
    "Session",
    "SessionEnded",
    "SessionStatus",
    "Timeout",
    "TooLarge",
    "Transport",
    "Unauthorized",
    "VersionMismatch",
    "World",
]
