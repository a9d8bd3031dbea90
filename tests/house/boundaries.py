"""Who may import whom: the table of docs/architecture.md as data, and the reader that finds what is imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STDLIB = frozenset(sys.stdlib_module_names)


@dataclass(frozen=True)
class Boundary:
    """A package's rule. Prefixes match whole dotted names: `core` covers `core.plan`, not `core2`.

    `only`: what may be imported (None: all that is not forbidden); `never`: what may not, even where `only` allows it.
    """

    folder: str
    only: tuple[str, ...] | None
    never: tuple[str, ...] = ()
    stdlib: bool = True


BOUNDARIES = (
    Boundary(
        "physis_stream/core",
        only=("physis_stream.core",),
        never=("asyncio", "threading", "multiprocessing", "time", "random", "secrets", "socket", "logging"),
    ),
    Boundary(
        "physis_stream/models",
        only=(
            "torch",
            "diffusers",
            "numpy",
            "safetensors",
            "transformers",
            "physis_stream.models",
            "physis_stream.core.context_rule",
            "physis_stream.core.seeds",
            "physis_stream.core.plan",
            "physis_stream.core.spec",
            "physis_stream.core.ids",
            "physis_stream.core.errors",
        ),
        never=("os.environ", "random", "asyncio", "socket", "time"),
    ),
    Boundary(
        "physis_stream/runtime",
        only=(
            "torch",
            "numpy",
            "safetensors",
            "physis_stream.core",
            "physis_stream.models",
            "physis_stream.runtime",
            "physis_stream.worlds",
        ),
        never=("aiortc", "starlette", "gradio", "uvicorn"),
    ),
    Boundary(
        "physis_stream/server",
        only=(
            "numpy",
            "av",
            "aiortc",
            "aioice",
            "pyee",
            "starlette",
            "uvicorn",
            "msgpack",
            "anyio",
            "OpenSSL",
            "physis_stream.core",
            "physis_stream.runtime",
            "physis_stream.server",
            "physis_stream.version",
            "physis_client",
        ),
        never=(
            "torch",
            "diffusers",
            "physis_stream.models",
            "physis_stream.core.scheduler",
            "physis_stream.core.engine_core",
        ),
    ),
    Boundary(
        "clients/python/physis_client",
        only=("numpy", "msgpack", "websockets", "httpx", "aiortc", "av", "gymnasium", "physis_client"),
        never=("physis_stream", "torch"),
    ),
    Boundary("demos", only=None, never=("physis_stream.core", "physis_stream.models", "physis_stream.runtime")),
    Boundary("examples", only=None, never=("physis_stream.core", "physis_stream.models", "physis_stream.runtime")),
)
CLOCK = "physis_stream/runtime/clock.py"
CLOCK_NAMES = ("time", "datetime.datetime.now")


def _covers(prefix: str, name: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of each import in `source`, also inside functions; relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base]).rstrip(".")
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}" if base else alias.name


def violations(boundary: Boundary, source: str, package: str) -> list[str]:
    """Say each import of `source` that `boundary` does not allow, with its line."""
    found = []
    for line, name in imported(source, package):
        if name == "__future__" or name.startswith("__future__."):
            continue
        if any(_covers(prefix, name) for prefix in boundary.never):
            found.append(f"line {line}: {name} is never allowed in {boundary.folder}")
        elif name.split(".")[0] in STDLIB and boundary.stdlib:
            continue
        elif boundary.only is not None and not any(_covers(prefix, name) for prefix in boundary.only):
            found.append(f"line {line}: {name} is not among what {boundary.folder} may import")
    return found


def python_files(folder: str) -> list[Path]:
    return sorted(path for path in (ROOT / folder).rglob("*.py") if ".venv" not in path.parts)


def package_of(path: Path) -> str:
    """The dotted package that holds the file, for resolving relative imports."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[:2] == ("clients", "python"):
        parts = parts[2:]
    return ".".join(parts[:-1])
