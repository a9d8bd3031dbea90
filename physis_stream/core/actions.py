"""The control inbox of one session: what a client asked for and no chunk has used yet.

Accepted is not applied: an event waits here until a chunk opens, and the chunk's Control names every event that it
was the first to use. Event ids grow, so a repeated or late event is recognised and ignored, and the receipt says so.
The inbox is bounded: live actions are folded as they come, and only the newest ids are listed. It knows no clock and
no chunk numbers.
"""

from __future__ import annotations

from collections import deque
from enum import StrEnum

from physis_stream.core.ids import EventId
from physis_stream.core.plan import Control
from physis_stream.core.spec import Action, ActionSpec, Combine

MAX_LISTED_IDS = 256
"""Most ids that one chunk lists as applied; ids grow, so the newest one covers those left out."""


class Receipt(StrEnum):
    """ACCEPTED: waits for the next chunk. IGNORED: its id is not above the newest one seen; nothing was changed."""

    ACCEPTED = "accepted"
    IGNORED = "ignored"


class ControlInbox:
    """Folds live control events between chunk openings. Actions must have passed `ActionSpec.check`."""

    def __init__(self, spec: ActionSpec, held: Action | None = None, prompt: str | None = None) -> None:
        self._spec = spec
        self.newest: EventId | None = None
        self.held: Action = spec.initial if held is None else held
        """What applies while nothing new arrives."""
        self.prompt = prompt
        self._ids: deque[EventId] = deque(maxlen=MAX_LISTED_IDS)
        self._prompt_ids: deque[EventId] = deque(maxlen=MAX_LISTED_IDS)
        self._fresh: Action | None = None

    @property
    def num_waiting(self) -> int:
        """Event ids that the next chunk will list as applied."""
        return len(self._ids) + len(self._prompt_ids)

    def see(self, event: EventId) -> Receipt:
        """Take note of an event id; IGNORED if it is a repetition or older than one already seen."""
        if self.newest is not None and event <= self.newest:
            return Receipt.IGNORED
        self.newest = event
        return Receipt.ACCEPTED

    def accept(self, event: EventId, action: Action | None, prompt: str | None) -> Receipt:
        """Take a live event. Several actions before a chunk opens are combined as the world's spec says."""
        if self.see(event) is Receipt.IGNORED:
            return Receipt.IGNORED
        if action is not None:
            self._fresh = action if self._fresh is None else self._fold(self._fresh, action)
            if self._spec.combine is not Combine.SUM:
                self.held = action
            self._ids.append(event)
        if prompt is not None:
            self.prompt = prompt
            if action is None:
                self._prompt_ids.append(event)
        return Receipt.ACCEPTED

    def open_live(self) -> Control:
        """Snapshot the control of a chunk that opens now; the events in it are applied by that chunk."""
        action = self.held if self._fresh is None else self._clip(self._fresh)
        return self._take(action, ())

    def open_step(self, event: EventId, action: Action) -> Control:
        """Snapshot the control of a lockstep chunk: its own action, and prompts that came meanwhile."""
        self.held = action
        return self._take(action, (event,))

    def prime_control(self) -> Control:
        """Control of a primed chunk: the rest action under the present prompt; applies no event."""
        return Control(action=self._spec.initial, prompt=self.prompt)

    def flush(self) -> tuple[EventId, ...]:
        """Forget actions that no chunk has used; return their ids. Prompts stay: they belong to the session."""
        dropped = tuple(self._ids)
        self.held = self._spec.initial
        self._fresh = None
        self._ids.clear()
        return dropped

    def restore(self, held: Action, prompt: str | None) -> tuple[EventId, ...]:
        """Return to a snapshot's control; return the ids of all that no chunk has used.

        Event ids go on growing: they count the client's events, not the world's.
        """
        dropped = (*self.flush(), *self._prompt_ids)
        self._prompt_ids.clear()
        self.held, self.prompt = held, prompt
        return dropped

    def _take(self, action: Action, own: tuple[EventId, ...]) -> Control:
        applied = tuple(sorted([*self._ids, *self._prompt_ids, *own])[-MAX_LISTED_IDS:])
        self._ids.clear()
        self._prompt_ids.clear()
        self._fresh = None
        return Control(action=action, prompt=self.prompt, applied=applied)

    def _fold(self, old: Action, new: Action) -> Action:
        if self._spec.combine is Combine.SUM:
            return tuple(a + b for a, b in zip(old, new, strict=True))
        if self._spec.combine is Combine.HOLD:
            rest = self._spec.initial
            return tuple(a if abs(a - r) > abs(b - r) else b for a, b, r in zip(old, new, rest, strict=True))
        return new

    def _clip(self, action: Action) -> Action:
        return tuple(min(max(v, lo), hi) for v, lo, hi in zip(action, self._spec.low, self._spec.high, strict=True))
