"""Checkpoints of a training run: written whole or not at all, and resumed from the newest.

One file holds everything a run needs to go on as if it had not stopped: modules, averages, optimiser, step, and the
seed its batches are drawn from. Batches are addressed by step, so the data order needs no saving.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(path: Path, content: dict[str, Any]) -> None:
    """Write `content` to `path` by way of a temporary file and a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)


def load(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint, or return None if there is none."""
    if not path.exists():
        return None
    content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return content
