"""The world of the fake engine, a square that moves to the action's target, and one session of it.

Pictures depend on seed and actions only, so that two runs agree bit for bit. Knows no service and no clock.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from physis_stream.core.commands import Pace
from physis_stream.core.ids import SessionId
from physis_stream.core.spec import ActionSpec
from physis_stream.runtime.service import ChunkOut, Frames, Notice, Output, SessionStatus, WorldInfo

ACTION = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0), initial=(0.0, 0.0), names=("x", "y"))
STEP_PER_FRAME = 0.08
"""How far the square moves in one frame, in action units (the picture spans -1..1)."""
Place = tuple[float, float]


def start_of(seed: int) -> Place:
    """The square's first place under this seed."""
    return (seed * 7919 % 1999) / 999.5 - 1.0, (seed * 104729 % 1999) / 999.5 - 1.0


def move(place: Place, target: Place) -> Place:
    """One frame of motion, straight to the target and never past it."""
    dx, dy = target[0] - place[0], target[1] - place[1]
    distance = (dx * dx + dy * dy) ** 0.5
    share = 1.0 if distance <= STEP_PER_FRAME else STEP_PER_FRAME / distance
    return place[0] + dx * share, place[1] + dy * share


def draw(place: Place, height: int, width: int) -> Frames:
    """uint8 RGB (height, width, 3): a blue square on light grey, its centre at `place`."""
    picture = np.full((height, width, 3), 230, np.uint8)
    half = max(2, min(height, width) // 10)
    row = round((place[1] + 1) / 2 * (height - 1))
    column = round((place[0] + 1) / 2 * (width - 1))
    picture[max(0, row - half) : row + half, max(0, column - half) : column + half] = (40, 80, 220)
    return picture


def square_world(name: str, fps: float, chunk_frames: int, height: int, width: int) -> WorldInfo:
    """Describe the square at this size and rate."""
    return WorldInfo(
        name=name,
        family="fake",
        title="A square",
        description="A square that moves to where the action points; no model behind it.",
        height=height,
        width=width,
        fps=fps,
        chunk_frames=chunk_frames,
        action={
            "dim": ACTION.dim,
            "low": list(ACTION.low),
            "high": list(ACTION.high),
            "names": list(ACTION.names),
            "initial": list(ACTION.initial),
            "combine": ACTION.combine.value,
        },
        discipline="clean",
        num_steps=1,
        state_names=("x", "y"),
        state_units=("", ""),
        accepts_prompt=True,
    )


@dataclass
class Subscription:
    """A bounded queue: chunks drop oldest first, notices stay."""

    max_chunks: int
    items: deque[Output] = field(default_factory=deque)
    ready: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, item: Output) -> None:
        chunks = [old for old in self.items if isinstance(old, ChunkOut)]
        if isinstance(item, ChunkOut) and len(chunks) >= self.max_chunks:
            self.items.remove(chunks[0])
        self.items.append(item)
        self.ready.set()

    def drop_chunks_before(self, epoch: int) -> None:
        self.items = deque(i for i in self.items if not (isinstance(i, ChunkOut) and i.epoch < epoch))


@dataclass
class FakeSession:
    """All of one fake session."""

    id: SessionId
    world: WorldInfo
    pace: Pace
    seed: int
    place: Place
    state: str = "starting"
    target: tuple[float, ...] = ACTION.initial
    pending: list[int] = field(default_factory=list)
    last_event: int = -1
    prompt: str | None = None
    epoch: int = 0
    chunk: int = 0
    chunks_in_life: int = 0
    queue_position: int = 0
    ended_reason: str | None = None
    subscriptions: list[Subscription] = field(default_factory=list)
    last_chunk: ChunkOut | None = None
    task: asyncio.Task[None] | None = None

    def status(self) -> SessionStatus:
        return SessionStatus(
            session=self.id,
            world=self.world.name,
            state=self.state,
            pace=self.pace,
            epoch=self.epoch,
            chunks=self.chunks_in_life,
            queue_position=self.queue_position,
            ended_reason=self.ended_reason,
        )

    def publish(self, item: Output) -> None:
        for subscription in self.subscriptions:
            subscription.put(item)

    def move_to(self, state: str) -> None:
        self.state = state
        self.publish(Notice(self.id, "status", {"state": state, "epoch": self.epoch}))

    def begin_epoch(self) -> None:
        self.epoch += 1
        self.chunk = 0
        for subscription in self.subscriptions:
            subscription.drop_chunks_before(self.epoch)

    def produce(self) -> ChunkOut:
        """Make and publish the next chunk; chunk 0 of an epoch stands still at the start."""
        count, world = self.world.chunk_frames, self.world
        frames = np.empty((count, world.height, world.width, 3), np.uint8)
        for index in range(count):
            if self.chunk:
                self.place = move(self.place, (self.target[0], self.target[1]))
            frames[index] = draw(self.place, world.height, world.width)
        distance = abs(self.target[0] - self.place[0]) + abs(self.target[1] - self.place[1])
        made = ChunkOut(
            session=self.id,
            epoch=self.epoch,
            chunk=self.chunk,
            first_frame_id=self.chunks_in_life * count,
            frames=frames,
            applied=tuple(self.pending),
            action=tuple(self.target),
            state={"x": self.place[0], "y": self.place[1]},
            reward=-distance,
            timing_ms={"queue": 0.0, "denoise": 1.0, "decode": 0.0, "total": 1.0, "batch_rows": 1.0},
        )
        self.pending = []
        self.chunk += 1
        self.chunks_in_life += 1
        self.last_chunk = made
        self.publish(made)
        return made
