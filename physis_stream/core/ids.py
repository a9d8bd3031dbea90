"""Types of the identifiers that cross seams; no bare int or str does."""

from __future__ import annotations

from typing import NewType

SessionId = NewType("SessionId", str)
"""128 random bits as 32 hex digits; made outside core, which has no randomness."""
SnapshotId = NewType("SnapshotId", str)
EventId = NewType("EventId", int)
"""Number of a control event; grows per session, chosen by the client."""
Epoch = NewType("Epoch", int)
ChunkIndex = NewType("ChunkIndex", int)
"""Position of a chunk since its seed; chunk 0 is primed. A restored epoch goes on at the snapshot's chunk."""
PageId = NewType("PageId", int)
TickIndex = NewType("TickIndex", int)
