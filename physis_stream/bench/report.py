"""Print a benchmark's result as a table and write it as JSON. Knows no benchmark in particular."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def lines(result: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield one aligned `key  value` line per leaf; nested keys are joined by dots."""
    for key, value in result.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from lines(value, f"{name}.")
        else:
            yield f"  {name:<36} {_shown(value)}"


def write_json(result: Mapping[str, Any], path: Path) -> None:
    """Write `result` to `path`, whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_text(json.dumps(result, indent=2, sort_keys=False) + "\n", encoding="utf-8")
    os.replace(part, path)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_shown(item) for item in value)
    return str(value)
