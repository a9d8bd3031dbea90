"""The loop around the loop: takes asks, turns the engine, hands replies on, and shows that it lives. One thread runs
it.

It waits on the inbox until an ask comes or the core's next wake-up, at most `BEAT_S`, so that an idle engine's heart
beats too. An ask that breaks is answered as an engine fault and changes nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from physis_stream.core.errors import EngineError
from physis_stream.runtime.clock import Clock
from physis_stream.runtime.inbox import Inbox
from physis_stream.runtime.messages import Answer, Ask, Reply

log = logging.getLogger(__name__)
BEAT_S = 0.25
"""Longest time between two heartbeats of an engine that is not in the middle of a tick."""


class Turning(Protocol):
    """What is driven; see `engine_loop.EngineLoop`."""

    def ask(self, ask: Ask) -> None: ...

    def turn(self) -> bool: ...

    def take_replies(self) -> list[Reply]: ...

    def next_wake_ns(self) -> int | None: ...

    def close(self) -> None: ...


def drive(
    engine: Turning,
    inbox: Inbox,
    deliver: Callable[[Sequence[Reply]], None],
    beat: Callable[[int], None],
    clock: Clock,
) -> None:
    """Run until the inbox is closed. What `engine.turn` or `deliver` raises ends the loop: the engine is broken
    then.
    """
    try:
        while True:
            now_ns = clock.now_ns()
            beat(now_ns)
            wake_ns = engine.next_wake_ns()
            wait_s = BEAT_S if wake_ns is None else min(BEAT_S, max(0.0, (wake_ns - now_ns) / 1e9))
            asks = inbox.take(wait_s)
            if asks is None:
                return
            broken = [answer for ask in asks if (answer := _ask(engine, ask)) is not None]
            engine.turn()
            replies = [*broken, *engine.take_replies()]
            if replies:
                deliver(replies)
    finally:
        engine.close()


def _ask(engine: Turning, ask: Ask) -> Answer | None:
    """Put an ask to the engine; an answer only if that broke."""
    try:
        engine.ask(ask)
    except Exception as error:
        log.exception("an ask broke: %s", type(ask).__name__)
        return Answer(ask.call, error=EngineError(f"the engine could not take this: {type(error).__name__}"))
    return None
