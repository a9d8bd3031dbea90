"""Asks the engine once a second how it is, for everybody.

Peers pass the answer on; that the engine has died is told to every session.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict
from typing import Any

from physis_client.errors import PhysisError
from physis_stream.core.errors import EngineError
from physis_stream.runtime.service import Notice
from physis_stream.server.sessions import SessionRegister

log = logging.getLogger("physis_stream.server")


class EngineWatch:
    """`latest` holds the engine's facts by name, as of the last look."""

    def __init__(self, register: SessionRegister) -> None:
        self._register = register
        self._was_alive = True
        self.latest: dict[str, Any] = {"alive": True}

    async def run(self) -> None:
        """Look every `stats_s`, for ever."""
        while True:
            await asyncio.sleep(self._register.timers.stats_s)
            await self.look()

    async def look(self) -> None:
        """Ask once; tell every session when the engine has died since the last time."""
        try:
            self.latest = asdict(await self._register.ask(self._register.service.stats()))
        except (EngineError, TimeoutError):
            self.latest = {"alive": False}
        except Exception:
            log.exception("asking the engine how it is failed")
            self.latest = {"alive": False}
        alive = bool(self.latest["alive"])
        if self._was_alive and not alive:
            log.error("the engine's loop is dead")
            error = PhysisError("the engine is down", code="engine_down", recoverable=False).to_object()
            for session in self._register:
                session.feed.publish(Notice(session.id, "error", {"error": error}))
        self._was_alive = alive
