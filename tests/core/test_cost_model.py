"""What a tick will take: priors first, then what was seen."""

from __future__ import annotations

import pytest

from physis_stream.core.cost_model import CostModel, CostPrior

MS = 1_000_000
PRIORS = {"toy": CostPrior(base_ns=2 * MS, row_ns=1 * MS, decode_ns=3 * MS)}


def observe(
    model: CostModel, rows: int, rows_ms: float, decodes: int = 0, decode_ms: float = 0.0, wall_ms: float = 0.0
):
    wall = wall_ms or rows_ms + decode_ms
    model.observe(
        "toy",
        rows,
        decodes,
        rows_ns=round(rows_ms * MS),
        decode_ns=round(decode_ms * MS),
        wall_ns=round(wall * MS),
    )


def test_the_prior_speaks_until_something_was_seen():
    model = CostModel(PRIORS)
    assert model.predict_ns("toy", 4, 2) == (2 + 4 + 6) * MS
    assert model.tick_ns("toy") == 3 * MS


def test_an_unknown_shape_has_a_prior_as_well():
    assert CostModel().predict_ns("other", 1, 0) > 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 11, 16, 24])
def test_an_affine_device_is_predicted_within_a_tenth(width):
    model = CostModel(PRIORS)
    for _ in range(10):
        for rows in (1, 2, 4, 7, 8, 13, 16, 20, 30):
            observe(model, rows, 5 + 0.5 * rows)
    assert model.predict_ns("toy", width, 0) == pytest.approx((5 + 0.5 * width) * MS, rel=0.1)


def test_a_stepped_device_is_followed_by_width():
    model = CostModel(PRIORS)
    for _ in range(20):
        observe(model, 4, 10)
        observe(model, 16, 40)
    assert model.predict_ns("toy", 4, 0) == 10 * MS
    assert model.predict_ns("toy", 16, 0) == 40 * MS
    assert 10 * MS < model.predict_ns("toy", 10, 0) < 40 * MS


def test_wider_batches_than_were_seen_are_predicted_to_take_longer():
    model = CostModel(PRIORS)
    observe(model, 4, 10)
    assert model.predict_ns("toy", 8, 0) > 10 * MS
    observe(model, 8, 14)
    assert model.predict_ns("toy", 16, 0) == pytest.approx(22 * MS, rel=0.01)


def test_narrower_batches_than_were_seen_never_cost_less_than_their_share():
    model = CostModel(PRIORS)
    observe(model, 8, 8)
    observe(model, 16, 24)
    assert model.predict_ns("toy", 2, 0) >= 2 * MS


def test_decodes_and_overhead_are_counted_apart():
    model = CostModel(PRIORS)
    observe(model, 2, 6, decodes=2, decode_ms=4, wall_ms=11)
    assert model.predict_ns("toy", 2, 0) == 7 * MS
    assert model.predict_ns("toy", 2, 3) == 13 * MS


def test_a_device_that_slows_down_is_believed_after_a_few_ticks():
    model = CostModel(PRIORS)
    for _ in range(50):
        observe(model, 4, 10)
    for _ in range(12):
        observe(model, 4, 30)
    assert model.predict_ns("toy", 4, 0) > 27 * MS


def test_a_width_that_was_not_seen_for_long_is_forgotten_so_that_old_troubles_do_not_keep_sessions_out():
    model = CostModel(PRIORS)
    observe(model, 1, 50)
    observe(model, 8, 400)
    for _ in range(300):
        observe(model, 1, 2)
    assert model.predict_ns("toy", 8, 0) < 20 * MS


def test_one_stall_is_not_believed_but_a_slowdown_is():
    model = CostModel(PRIORS)
    for _ in range(50):
        observe(model, 4, 10)
    observe(model, 4, 5000)
    assert model.predict_ns("toy", 4, 0) <= 17 * MS
    for _ in range(20):
        observe(model, 4, 200)
    assert model.predict_ns("toy", 4, 0) > 150 * MS


def test_ticks_without_rows_teach_nothing():
    model = CostModel(PRIORS)
    observe(model, 0, 99)
    assert model.predict_ns("toy", 1, 0) == 3 * MS


def test_shapes_are_learnt_apart():
    model = CostModel(PRIORS)
    observe(model, 1, 50)
    assert model.predict_ns("wide", 1, 0) == CostModel().predict_ns("wide", 1, 0)


CURVE = CostPrior(decode_ns=MS, curve=((1, 3 * MS), (8, 8 * MS), (32, 22 * MS)))


@pytest.mark.parametrize(("rows", "ms"), [(1, 3.0), (8, 8.0), (20, 15.0), (32, 22.0), (64, 22.0 + 32 * 14 / 24)])
def test_a_measured_curve_is_the_prior_and_goes_on_as_it_ends(rows, ms):
    assert CostModel({"toy": CURVE}).predict_ns("toy", rows, 0) == pytest.approx(ms * MS, rel=0.01)


@pytest.mark.parametrize("slower", [0.5, 1.0, 3.0])
def test_narrow_batches_tell_what_wide_ones_take_by_the_measured_curve(slower):
    model = CostModel({"toy": CURVE})
    for _ in range(30):
        for rows, ms in ((1, 3), (2, 26 / 7), (4, 36 / 7)):
            observe(model, rows, slower * ms)
    assert model.predict_ns("toy", 32, 0) == pytest.approx(slower * 22 * MS, rel=0.05)
    assert model.predict_ns("toy", 8, 0) == pytest.approx(slower * 8 * MS, rel=0.05)


def test_a_prior_may_be_replaced_before_anything_was_seen():
    model = CostModel(PRIORS)
    model.set_prior("toy", CURVE)
    assert model.predict_ns("toy", 8, 1) == 9 * MS
