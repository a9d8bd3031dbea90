"""Noise is a function of its key: the same alone and in company, normal, and the same on every machine."""

from __future__ import annotations

import hashlib

import pytest
import torch

from physis_stream.core.seeds import noise_key
from physis_stream.models.noise import AddressedNoise, RecordedNoise

SHAPE = (4, 12, 12)


def test_a_rows_noise_does_not_depend_on_its_batch():
    alone = AddressedNoise().sample([7], SHAPE)[0]
    company = AddressedNoise().sample([3, None, 7, 2**64 - 1], SHAPE)
    assert torch.equal(company[2], alone)
    assert torch.equal(company[1], torch.zeros(SHAPE))


def test_neighbouring_addresses_are_unrelated():
    keys = [noise_key(seed, chunk, step) for seed in range(4) for chunk in range(8) for step in range(4)]
    rows = AddressedNoise().sample(keys, (2304,)).double()
    correlation = torch.corrcoef(rows) - torch.eye(len(keys))
    assert correlation.abs().max() < 6 / 2304**0.5


def test_it_is_standard_normal():
    numbers = AddressedNoise().sample([noise_key(1, chunk, 0) for chunk in range(2000)], (500,)).double().flatten()
    count = numbers.numel()
    assert abs(numbers.mean()) < 5 / count**0.5
    assert abs(numbers.var() - 1) < 5 * (2 / count) ** 0.5
    assert abs((numbers**4).mean() - 3) < 5 * (96 / count) ** 0.5
    ordered = numbers.sort().values
    expected = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    assert (ordered - expected).abs()[count // 100 : -count // 100].max() < 0.02


def test_the_bits_are_what_they_always_were():
    """A recorded run must replay elsewhere: these bytes may never change."""
    noise = AddressedNoise().sample([0, 1, noise_key(5, 6, 7)], (3, 5))
    digest = hashlib.sha256(noise.numpy().tobytes()).hexdigest()
    assert digest == "772c453527a75a7b3057e6297e7060bf08840a345adba459eecf9761b1895fbe"


def test_recorded_noise_gives_what_was_recorded_and_nothing_else():
    recorded = RecordedNoise({5: torch.ones(2, 2)})
    rows = recorded.sample([None, 5], (2, 2))
    assert torch.equal(rows, torch.stack((torch.zeros(2, 2), torch.ones(2, 2))))
    with pytest.raises(KeyError):
        recorded.sample([6], (2, 2))
    with pytest.raises(ValueError, match="recorded as"):
        recorded.sample([5], (4,))
