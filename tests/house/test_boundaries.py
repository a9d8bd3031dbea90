"""The rings hold: no package imports what the architecture keeps from it, not even inside a function."""

from __future__ import annotations

import ast

import pytest

from tests.house import boundaries as house


@pytest.mark.parametrize("boundary", house.BOUNDARIES, ids=lambda b: b.folder)
def test_a_package_imports_only_what_its_ring_may(boundary):
    found = [
        f"{path.relative_to(house.ROOT)} {problem}"
        for path in house.python_files(boundary.folder)
        for problem in house.violations(boundary, path.read_text(encoding="utf-8"), house.package_of(path))
    ]
    assert not found, "\n".join(found)


def test_only_the_clock_reads_the_time():
    found = []
    for folder in ("physis_stream/core", "physis_stream/models", "physis_stream/runtime"):
        for path in house.python_files(folder):
            if str(path.relative_to(house.ROOT)) == house.CLOCK:
                continue
            for line, name in house.imported(path.read_text(encoding="utf-8"), house.package_of(path)):
                if name == "time" or name.startswith("time."):
                    found.append(f"{path.relative_to(house.ROOT)}:{line} imports {name}")
    assert not found, "\n".join(found)


DRAWS = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal_", "uniform_"}


def unseeded_draws(source: str) -> list[int]:
    """Lines that draw without `generator=`, except in `__init__` (first weights) and in functions that seed torch."""
    found = []

    def visit(node: ast.AST, seeded: bool) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            calls = [
                c.func.attr for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Attribute)
            ]
            seeded = seeded or node.name == "__init__" or "manual_seed" in calls
        draws = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in DRAWS
        if draws and not seeded and not any(keyword.arg == "generator" for keyword in node.keywords):
            found.append(node.lineno)
        for child in ast.iter_child_nodes(node):
            visit(child, seeded)

    visit(ast.parse(source), False)
    return found


def test_models_use_no_unseeded_randomness():
    found = [
        f"{path.relative_to(house.ROOT)}:{line}"
        for path in house.python_files("physis_stream/models")
        for line in unseeded_draws(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_an_unseeded_draw_is_caught():
    assert unseeded_draws("def step(x):\n    return x + torch.randn_like(x)") == [2]
    assert unseeded_draws("def step(x, g):\n    return torch.randn(3, generator=g)") == []


CORE = house.BOUNDARIES[0]
CLIENT = next(b for b in house.BOUNDARIES if b.folder.endswith("physis_client"))


@pytest.mark.parametrize(
    ("boundary", "source"),
    [
        (CORE, "import torch"),
        (CORE, "def f():\n    import numpy as np"),
        (CORE, "from time import monotonic_ns"),
        (CORE, "from physis_stream.runtime import engine"),
        (CORE, "from ..runtime import engine"),
        (CLIENT, "from physis_stream.core import plan"),
        (CLIENT, "import torch.nn"),
    ],
)
def test_the_reader_catches_a_forbidden_import(boundary, source):
    package = "physis_stream.core" if boundary is CORE else "physis_client"
    assert house.violations(boundary, source, package)


@pytest.mark.parametrize(
    "source",
    ["from __future__ import annotations", "import dataclasses", "from .plan import Plan", "from . import ids"],
)
def test_the_reader_lets_a_legal_import_pass(source):
    assert house.violations(CORE, source, "physis_stream.core") == []
