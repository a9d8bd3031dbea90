"""Rows of a plan to the numbers of one batch: built on the host once a tick, in the order of the rows. Knows no
session's tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from physis_stream.core.plan import Role, Row
from physis_stream.models.noise_schedule import Renoise
from physis_stream.models.paged_attention import RowPages


@dataclass(frozen=True, slots=True)
class LevelTable:
    """Noise levels by step, and what a clean row is told. `renoise` says where the noise of later steps comes from."""

    levels: tuple[float, ...]
    clean_level: float
    renoise: Renoise


@dataclass(frozen=True, slots=True)
class StackedRows:
    """The rows of a batch as arrays, R in front.

    `noise_keys` is None where no noise is drawn; `keeps_noise_R` is true where the noise that the last step implied
    is used.
    """

    level_R: Tensor
    told_R: Tensor
    action_RA: Tensor
    noise_keys: tuple[int | None, ...]
    keeps_noise_R: Tensor | None
    pages: tuple[RowPages, ...]


class RowStacker:
    """Stacks rows of one world. `device` is where the tensors go."""

    def __init__(self, table: LevelTable, device: torch.device) -> None:
        self._table, self._device = table, device

    def stack(self, rows: Sequence[Row], width: int = 0) -> StackedRows:
        """Return the numbers of these rows, at least one; up to `width` the batch is padded with rows that nobody
        reads.
        """
        table = self._table
        blank = [0.0] * max(0, width - len(rows))
        denoises = [row.role is Role.DENOISE for row in rows]
        level = [table.levels[row.step] if noisy else 0.0 for row, noisy in zip(rows, denoises, strict=True)]
        told = [own if noisy else table.clean_level for own, noisy in zip(level, denoises, strict=True)]
        implied = table.renoise is Renoise.IMPLIED
        keeps = [implied and noisy and row.step > 0 for row, noisy in zip(rows, denoises, strict=True)]
        keys = [
            row.noise_key if noisy and not kept else None
            for row, noisy, kept in zip(rows, denoises, keeps, strict=True)
        ]
        pages = [_pages(row) for row in rows]
        return StackedRows(
            level_R=self._tensor(level + blank),
            told_R=self._tensor(told + blank),
            action_RA=self._actions(rows, len(blank)),
            noise_keys=(*keys, *(None for _ in blank)),
            keeps_noise_R=torch.tensor(keeps + [False] * len(blank), device=self._device) if any(keeps) else None,
            pages=(*pages, *(RowPages() for _ in blank)),
        )

    def _tensor(self, numbers: Sequence[float]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.float32, device=self._device)

    def _actions(self, rows: Sequence[Row], padding: int) -> Tensor:
        """Actions as the client sent them; a padding row gets the first row's."""
        action = [row.control.action for row in rows] + [rows[0].control.action] * padding
        return torch.tensor(action, dtype=torch.float32, device=self._device)


def _pages(row: Row) -> RowPages:
    """What a row reads and writes. Chunks whose distance in the view is not their distance in time are turned
    (sinks).
    """
    left = row.chunk - row.position
    sinks = [chunk for chunk in row.context if chunk.chunk - chunk.position != left]
    return RowPages(
        context=[page for chunk in row.context for page in chunk.pages],
        write=row.write,
        phase=row.chunk,
        turned=sum(len(chunk.pages) for chunk in sinks),
        turn=left,
    )
