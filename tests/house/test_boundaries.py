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


def test_models_use_no_unseeded_randomness():
    """Each torch.rand*/randn* call in models names its generator."""
    found = []
    for path in house.python_files("physis_stream/models"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            drawn = node.func.attr in {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "normal_"}
            if drawn and not any(keyword.arg == "generator" for keyword in node.keywords):
                found.append(f"{path.relative_to(house.ROOT)}:{node.lineno} {node.func.attr} without generator=")
    assert not found, "\n".join(found)


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
