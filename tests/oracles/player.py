"""Plays sessions on an engine loop without threads: opens, steps, forks, and hands back latents and frames as
tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from physis_stream.core import commands
from physis_stream.core.commands import Command, Pace
from physis_stream.core.ids import EventId, SessionId
from physis_stream.runtime.clock import ManualClock
from physis_stream.runtime.engine_config import EngineConfig
from physis_stream.runtime.engine_loop import EngineLoop
from physis_stream.runtime.messages import Answer, AskChunks, AskCommand, AskSteps, Published, StepItem
from physis_stream.runtime.served_model import ServedModel
from physis_stream.runtime.service import ChunkOut, Notice

Actions = Sequence[tuple[float, ...]]


class Player:
    """A loop, the chunks of each session so far, and every answer."""

    def __init__(self, model: ServedModel, **options: object) -> None:
        self.clock = ManualClock(tick_ns=1000)
        self.loop = EngineLoop(model, EngineConfig(**options), self.clock)  # type: ignore[arg-type]
        self.chunks: dict[str, list[ChunkOut]] = {}
        self.notices: list[Notice] = []
        self.answers: dict[int, Answer] = {}
        self._calls = itertools.count(1)
        self._events: dict[str, itertools.count[int]] = {}
        self.shape = model.latent_shape

    def open(self, name: str, seed: int, pace: Pace = Pace.LOCKSTEP) -> None:
        self.command(commands.OpenSession(SessionId(name), seed, pace))
        self.listen(name)

    def listen(self, name: str) -> None:
        self.chunks[name] = []
        self._events[name] = itertools.count(1)
        self.loop.ask(AskChunks(next(self._calls), SessionId(name), True))
        self.run()

    def command(self, command: Command, *, run: bool = True) -> Answer:
        """Submit a command, turn until nothing is left to do, and return its answer."""
        call = next(self._calls)
        self.loop.ask(AskCommand(call, command))
        self.run(turns=None if run else 0)
        return self.answers[call] if call in self.answers else Answer(call)

    def queue(self, name: str, action: tuple[float, ...]) -> int:
        """Ask for one step and do not wait; returns the call."""
        call = next(self._calls)
        item = StepItem(SessionId(name), EventId(next(self._events[name])), action)
        self.loop.ask(AskSteps(call, [item]))
        return call

    def step(self, **actions: tuple[float, ...]) -> list[ChunkOut]:
        """One batched step of these sessions."""
        call = next(self._calls)
        items = [
            StepItem(SessionId(name), EventId(next(self._events[name])), action) for name, action in actions.items()
        ]
        self.loop.ask(AskSteps(call, items))
        self.run()
        answer = self.answers[call]
        if answer.error is not None:
            raise answer.error
        assert isinstance(answer.value, list)
        return answer.value

    def run(self, turns: int | None = None) -> None:
        """Turn until the engine has nothing to do now, or so many times."""
        done = 0
        while done != turns and self.loop.turn():
            done += 1
        for reply in self.loop.take_replies():
            if isinstance(reply, Answer):
                self.answers[reply.call] = reply
            elif isinstance(reply, Published) and isinstance(reply.output, Notice):
                self.notices.append(reply.output)
            elif isinstance(reply.output, ChunkOut):
                self.chunks[reply.output.session].append(reply.output)

    def latents(self, name: str) -> Tensor:
        """(F, C, h, w) of every chunk heard so far; needs a transparent model."""
        return torch.stack([latent_of(chunk, self.shape) for chunk in self.chunks[name]])

    def frames(self, name: str) -> Tensor:
        """uint8 (F, H, W, 3) of every chunk heard so far."""
        return torch.cat([torch.from_numpy(chunk.frames) for chunk in self.chunks[name]])


def latent_of(chunk: ChunkOut, shape: Sequence[int]) -> Tensor:
    """The latent that a transparent model's readouts spell out."""
    return torch.tensor(list(chunk.state.values()), dtype=torch.float64).float().view(*shape)


def wander(count: int, seed: int = 0) -> list[tuple[float, float]]:
    """`count` different actions of the tiny worlds."""
    numbers = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 512
    return [(float(x), float(y)) for x, y in numbers]
