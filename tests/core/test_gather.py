"""Rows that come soon are taken along: what a busy device gains, and that an idle one gives nothing away for it."""

from __future__ import annotations

import pytest

from physis_stream.core import commands as cmd
from physis_stream.core.commands import Pace
from physis_stream.core.ids import SessionId
from physis_stream.core.limits import Limits
from physis_stream.core.plan import Role
from physis_stream.testing.fake_executor import FakeCosts
from physis_stream.testing.toy_worlds import toy_spec
from tests.core.stage import Stage

MS = 1_000_000
COSTS = FakeCosts(base_ns=4 * MS, row_ns=MS // 2, decode_ns=MS // 2, overhead_ns=0)
"""A tick that costs as much as eight of its rows: sharing pays."""


def played(sessions: int, seconds: float = 6.0) -> Stage:
    """Realtime sessions that joined at scattered moments and have been watched for a while."""
    stage = Stage(toy_spec(fps=10.0), Limits(max_sessions=64, max_utilisation=1.0), COSTS)
    for number in range(sessions):
        stage.open(f"s{number}", number, Pace.REALTIME)
        stage.run_for(0.0371)
    stage.run_for(seconds)
    return stage


def mean_width(stage: Stage, after: float = 0.5) -> float:
    widths = [len(plan.rows) for plan in stage.plans if plan.rows]
    late = widths[int(len(widths) * after) :]
    return sum(late) / len(late)


def late_share(stage: Stage) -> float:
    stats = stage.core.stats()
    return stats.late_chunks / stats.chunks


def without_gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("physis_stream.core.admission.Admission.gather_ns", 0)


def test_an_idle_device_opens_every_chunk_in_its_own_time(monkeypatch):
    mine = [(plan.tick, plan.rows) for plan in played(2).plans]
    without_gathering(monkeypatch)
    assert mine == [(plan.tick, plan.rows) for plan in played(2).plans]


def test_a_busy_device_makes_wider_batches_and_is_late_no_more_often(monkeypatch):
    gathered = played(16)
    without_gathering(monkeypatch)
    alone = played(16)
    assert mean_width(gathered) > 1.15 * mean_width(alone)
    assert late_share(gathered) <= late_share(alone)


def test_no_chunk_is_opened_more_than_a_chunk_and_its_making_ahead():
    stage = played(16)
    for number in range(16):
        session = SessionId(f"s{number}")
        opened = [plan.tick for plan in stage.plans for row in plan.rows if row.session == session and row.step == 0]
        assert len(opened) <= 10 * (6.0 + 0.0371 * 16) + 3
        stage.submit(cmd.CloseSession(session))
    assert any(row.role is Role.COMMIT for plan in stage.plans for row in plan.rows)
