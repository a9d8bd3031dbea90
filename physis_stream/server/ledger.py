"""Numbers control events across all who speak to one session, and translates what was applied back for each of them.

A client counts its own events from wherever it likes; a page that reloads starts again at 1. The engine wants ids
that grow over the session's life. The ledger gives each client event the session's next number once, and knows whose
it was.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

REMEMBERED = 4096


class EventLedger:
    """Bounded memory of the last events: engine number <-> (speaker, the speaker's own number)."""

    def __init__(self) -> None:
        self._next = 1
        self._by_number: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._seen: dict[tuple[int, int], int] = {}

    def number(self, speaker: int, own: int) -> int | None:
        """Return the engine's number for a new event, or None for one that this speaker sent already."""
        key = (speaker, own)
        if key in self._seen:
            return None
        number = self._next
        self._next += 1
        self._by_number[number] = key
        self._seen[key] = number
        if len(self._by_number) > REMEMBERED:
            _, old = self._by_number.popitem(last=False)
            del self._seen[old]
        return number

    def number_again(self, speaker: int, own: int) -> int:
        """Return the number of an event, a new one or the same as before: for requests that may be retried."""
        return self._seen.get((speaker, own)) or self.number(speaker, own) or 0

    def forget(self, speaker: int, own: int) -> None:
        """Take back a number whose event was refused, so that the client may send it again, mended."""
        number = self._seen.pop((speaker, own), None)
        if number is not None:
            del self._by_number[number]

    def own(self, speaker: int, numbers: Iterable[int]) -> list[int]:
        """Return those of `numbers` that this speaker sent, as the speaker counts them."""
        found = (self._by_number.get(number) for number in numbers)
        return [key[1] for key in found if key is not None and key[0] == speaker]
