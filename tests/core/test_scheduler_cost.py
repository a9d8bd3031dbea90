"""What deciding costs: little for each row, and no more with ten times the sessions."""

from __future__ import annotations

import pytest

from physis_stream.bench.scheduler import measure


def test_deciding_costs_little_for_each_row_at_a_thousand_sessions():
    """50 us is the target on a quiet machine; the bound leaves room for a busy one and still catches a scan."""
    assert min(measure(1000, num_items=4000) for _ in range(3)) < 150


@pytest.mark.slow
def test_the_cost_is_flat_up_to_ten_thousand_sessions():
    few, many = (min(measure(count, num_items=10_000) for _ in range(3)) for count in (100, 10_000))
    assert many < 2 * few
