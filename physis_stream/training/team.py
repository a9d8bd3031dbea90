"""Train with one process per core instead of one thread per core.

Threads of one process wait for each other at every operation, so a neighbour that takes one core stops them all. Here
each process has one thread and takes the step's next micro-batch when it has finished its last, so a slow core does
fewer of them. Parameters, gradients, optimiser state and averages are shared memory; each process adds up and steps its
own share of the parameters. Which process computes a micro-batch does not change it, only the order in which gradients
are added.

    rank 0 (the caller)   take parts … | add up own share, norm | step own share | report
    rank 1..              take parts … | add up own share, norm | step own share |
                                   barrier                barrier          barrier
"""

from __future__ import annotations

import multiprocessing
import os

import torch
from torch import Tensor

from physis_stream.training.trainer import Trainer


class Team:
    """`size` processes around one trainer. Make it before any multi-threaded torch work (it forks); `step`, then
    `close`."""

    def __init__(self, trainer: Trainer, size: int) -> None:
        torch.set_num_threads(1)
        self._trainer, self._size = trainer, size
        trainer.optimizer.begin_all()
        self._named = {name: p for name, p in trainer.loss.named_parameters() if p.requires_grad}
        for parameter in self._named.values():
            parameter.data.share_memory_()
            for value in trainer.optimizer.state[parameter].values():
                if isinstance(value, Tensor):
                    value.share_memory_()
        for value in trainer.average.values.values():
            value.share_memory_()
        self._gradients = [
            {name: torch.zeros_like(p).share_memory_() for name, p in self._named.items()} for _ in range(size)
        ]
        self._owned = self._split(size)
        self._norms, self._losses = torch.zeros(size).share_memory_(), torch.zeros(size).share_memory_()
        context = multiprocessing.get_context("fork")
        self._next, self._barrier = context.Value("i", 0), context.Barrier(size)
        self._running = context.Value("i", 1)
        self._others = [context.Process(target=self._serve, args=(rank,), daemon=True) for rank in range(1, size)]
        for process in self._others:
            process.start()
        self.pids = [os.getpid(), *(process.pid for process in self._others)]

    def _split(self, size: int) -> list[set[str]]:
        """Share out parameters by number of elements, greatest first."""
        shares: list[set[str]] = [set() for _ in range(size)]
        loads = [0] * size
        for name, parameter in sorted(self._named.items(), key=lambda item: -item[1].numel()):
            rank = loads.index(min(loads))
            shares[rank].add(name)
            loads[rank] += parameter.numel()
        return shares

    def step(self) -> dict[str, float]:
        """Take one optimiser step together; the same as `WorldTrainer.train_step` up to the order of sums."""
        self._next.value = 0
        self._barrier.wait()
        self._work(0)
        return self._trainer.finish_step(self._losses.sum())

    def close(self) -> None:
        """End the other processes."""
        self._running.value = 0
        self._barrier.wait()
        for process in self._others:
            process.join()

    def _serve(self, rank: int) -> None:
        while True:
            self._barrier.wait()
            if not self._running.value:
                return
            self._work(rank)
            self._trainer.step += 1

    def _take(self) -> int:
        with self._next.get_lock():
            part: int = self._next.value
            self._next.value = part + 1
        return part

    def _work(self, rank: int) -> None:
        trainer = self._trainer
        trainer.set_rate()
        for name, parameter in self._named.items():
            parameter.grad = self._gradients[rank][name].zero_()
        losses = torch.zeros(())
        while (part := self._take()) < trainer.num_parts:
            losses += trainer.part(trainer.step, part)
        self._losses[rank] = losses
        self._barrier.wait()
        owned, square = self._owned[rank], torch.zeros(())
        for name, parameter in self._named.items():
            if name in owned:
                parameter.grad = torch.stack([gradients[name] for gradients in self._gradients]).sum(0)
                square += parameter.grad.square().sum()
            else:
                parameter.grad = None
        self._norms[rank] = square
        self._barrier.wait()
        scale = min(1.0, 1.0 / (float(self._norms.sum().sqrt()) + 1e-6))
        for name in owned:
            gradient = self._named[name].grad
            assert gradient is not None
            gradient.mul_(scale)
        trainer.optimizer.step()
        inside = {name.rpartition("transformer.")[2] for name in owned}
        trainer.average.update(trainer.transformer, inside)
        self._barrier.wait()
