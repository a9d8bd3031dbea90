"""A stage with players for each test of the core."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from physis_stream.core.context_rule import Discipline
from physis_stream.core.limits import Limits
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.toy_worlds import toy_rule, toy_spec
from tests.core.stage import Stage


@pytest.fixture
def stage() -> Stage:
    """A cascade world of three steps and a window of four."""
    return Stage()


@pytest.fixture
def stage_of() -> Callable[..., Stage]:
    """Make a stage: `stage_of(Discipline.CLEAN, window=2, sink=1, limits=..., costs=...)`."""

    def make(
        discipline: Discipline = Discipline.CASCADE,
        *,
        num_steps: int = 3,
        window: int = 4,
        commit: bool | None = None,
        limits: Limits | None = None,
        costs: FakeCosts | None = None,
        **spec: object,
    ) -> Stage:
        rule = toy_rule(discipline, num_steps=num_steps, window=window, commit=commit)
        return Stage(toy_spec(rule, **spec), limits, costs)  # type: ignore[arg-type]

    return make
