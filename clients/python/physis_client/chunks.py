"""What a client receives: chunks, their frames and the session's description. Plain frozen data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from physis_client.wire import WireError

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Frame:
    """One picture. `rgb` is uint8 (H, W, 3), contiguous; `pts` is in seconds and strictly rises over a session's life.

    `applied` are the control events that this frame's chunk was the first to use, `state` the readouts after the chunk.
    """

    rgb: Pixels
    frame_id: int
    pts: float
    applied: tuple[int, ...]
    state: Mapping[str, float]


@dataclass(frozen=True)
class Chunk:
    """The frames of one chunk. `frames` is uint8 (F, H, W, 3), contiguous; `index` counts within its epoch."""

    frames: Pixels
    epoch: int
    index: int
    first_frame_id: int
    applied: tuple[int, ...]
    action: tuple[float, ...]
    state: Mapping[str, float]
    reward: float | None
    timing: Mapping[str, float] = field(default_factory=dict)

    def split(self, fps: float) -> Iterator[Frame]:
        """Yield the frames in order, with pts = frame_id / fps."""
        for offset, rgb in enumerate(self.frames):
            frame_id = self.first_frame_id + offset
            yield Frame(np.ascontiguousarray(rgb), frame_id, frame_id / fps, self.applied, self.state)


def chunk_from_message(message: Mapping[str, Any]) -> Chunk:
    """Read a chunk off the wire; raise WireError if it is not one."""
    try:
        frames = message["frames"]
        if not isinstance(frames, np.ndarray) or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3:
            raise WireError("a chunk's frames are uint8 of shape (F, H, W, 3)")
        reward = message["reward"]
        return Chunk(
            frames=frames,
            epoch=int(message["epoch"]),
            index=int(message["chunk"]),
            first_frame_id=int(message["first_frame_id"]),
            applied=tuple(int(event) for event in message["applied"]),
            action=tuple(float(number) for number in message["action"]),
            state={str(name): float(value) for name, value in message["state"].items()},
            reward=None if reward is None else float(reward),
            timing={str(name): float(value) for name, value in message["timing_ms"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError("the server sent a malformed chunk") from error


@dataclass(frozen=True)
class World:
    """A world that can be opened. `action` = {dim, low, high, names, initial, combine}; sizes in pixels.

    `state_names` are the readouts that come with each chunk, `state_units` their units.
    """

    name: str
    title: str
    description: str
    family: str
    height: int
    width: int
    fps: float
    chunk_frames: int
    action: Mapping[str, Any]
    discipline: str
    num_steps: int
    state_names: tuple[str, ...]
    state_units: tuple[str, ...]
    accepts_prompt: bool
    accepts_image: bool


def world_from_message(message: object) -> World:
    """Read a world off the wire, ignoring fields that a newer server adds; raise WireError if it is not one."""
    if not isinstance(message, Mapping):
        raise WireError("the server sent a malformed world")
    try:
        values = {name: message[name] for name in World.__dataclass_fields__}
        values["state_names"] = tuple(str(name) for name in values["state_names"])
        values["state_units"] = tuple(str(unit) for unit in values["state_units"])
        values["height"], values["width"] = int(values["height"]), int(values["width"])
        values["fps"], values["chunk_frames"] = float(values["fps"]), int(values["chunk_frames"])
        values["action"] = {**values["action"]}
        return World(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the server sent a malformed world") from error


@dataclass(frozen=True)
class SessionStatus:
    """What the server says of a session. `token` is known only to who opened it."""

    id: str
    model: str
    mode: str
    state: str
    epoch: int
    chunks: int
    queue_position: int
    token: str | None
    ended_reason: str | None
    seed: int | None = None


def status_from_message(message: object) -> SessionStatus:
    """Read a Session object off the wire; raise WireError if it is not one."""
    if not isinstance(message, Mapping):
        raise WireError("the server sent a malformed session")
    try:
        return SessionStatus(
            id=str(message["id"]),
            model=str(message["model"]),
            mode=str(message["mode"]),
            state=str(message["state"]),
            epoch=int(message["epoch"]),
            chunks=int(message["chunks"]),
            queue_position=int(message["queue_position"]),
            token=message.get("token"),
            ended_reason=message.get("ended_reason"),
            seed=message.get("seed"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError("the server sent a malformed session") from error
