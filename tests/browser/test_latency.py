"""`bench latency`: what counts as a photon, and that both clients' figures come out of a running server."""

from __future__ import annotations

import pytest

from physis_stream.bench import latency
from physis_stream.bench.latency import Measured, plan_drive, quantile, summary, verdict
from physis_stream.bench.latency_aiortc import Ledger, covers

SPAN = 72_000


def chunk(number: int, rtp: int | None, *applied: int) -> dict:
    return {"chunk": number, "rtp_ts": rtp, "applied": list(applied)}


def test_quantiles_are_interpolated_and_nothing_has_none():
    assert quantile([10.0, 20.0, 30.0], 0.5) == 20.0
    assert quantile([10.0, 20.0], 0.95) == pytest.approx(19.5)
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_a_drive_is_the_same_for_every_client_and_covers_all_phases():
    drive = plan_drive("pusht", 2, 400)
    assert drive == plan_drive("pusht", 2, 400)
    phases = [sum(drive.gaps_s[: k + 1]) % 0.1 for k in range(400)]
    for low in (0.0, 0.025, 0.05, 0.075):
        assert 60 < sum(low <= phase < low + 0.025 for phase in phases) < 140
    assert all(0.15 <= value <= 0.85 for shares in drive.shares for value in shares)


def test_a_frame_belongs_to_a_chunk_across_the_wrap_of_its_clock():
    assert covers(100, 100, SPAN)
    assert covers(2**32 - 9000, 0, SPAN)
    assert not covers(0, 2**32 - 9000, SPAN)
    assert not covers(0, SPAN, SPAN)


def test_a_photon_is_the_first_frame_not_older_than_its_chunk():
    ledger = Ledger(SPAN)
    ledger.sent = {1: 10.0, 2: 10.05}
    ledger.chunks = [chunk(0, 0), chunk(2, 18_000, 2), chunk(1, 9_000, 1)]
    ledger.frames = [(0, 9.9), (18_000, 10.2)]
    measured = ledger.measured(since=0.0)
    assert measured.photons == pytest.approx((200.0, 150.0))
    assert measured.intervals == pytest.approx((300.0, 0.0))


def test_a_chunk_without_a_timestamp_or_a_frame_has_no_photon():
    ledger = Ledger(SPAN)
    ledger.sent = {1: 10.0, 2: 10.0}
    ledger.chunks = [chunk(0, None, 1), chunk(1, 900_000, 2)]
    ledger.frames = [(0, 10.1)]
    assert ledger.measured(since=0.0).photons == ()


def test_overtaken_actions_are_said_to_be_unanswered():
    figures = summary(Measured(sent=3, photons=(80.0, 90.0), intervals=(100.0, 101.0), note="as it is"))
    assert figures["unanswered"] == 1
    assert figures["control_to_photon_ms"] == {"p50": 85.0, "p95": 89.5}
    assert figures["note"] == "as it is"


def test_the_bar_is_one_chunk_and_what_the_road_may_cost():
    assert verdict({"control_to_photon_ms": {"p50": 160.0, "p95": 220.0}}, 100.0)["within_bar"]
    assert not verdict({"control_to_photon_ms": {"p50": 160.1, "p95": 200.0}}, 100.0)["within_bar"]
    assert not verdict({"control_to_photon_ms": {"p50": 90.0, "p95": 220.1}}, 100.0)["within_bar"]


@pytest.mark.browser
def test_both_clients_measure_a_running_server(fake, monkeypatch):
    monkeypatch.setattr(latency, "WARM_UP_S", 1.0)
    result = latency.run(quick=True, name="fake-square", url=fake.url)
    assert result["chunk_ms"] == 100.0
    for name in ("chromium", "aiortc"):
        figures = result["client"][name]
        assert figures["actions"] == 32
        assert figures["unanswered"] <= 2
        assert 80 < figures["chunk_interval_ms"]["p50"] < 125
        assert 10 < figures["control_to_photon_ms"]["p50"] < 400
    assert result["control_to_photon_ms"] == result["client"]["chromium"]["control_to_photon_ms"]


def test_no_server_is_said_and_not_a_crash():
    with pytest.raises(ValueError, match="no server answers"):
        latency.run(quick=True, url="http://127.0.0.1:9")
