"""Addressed noise: equal addresses give equal keys, everywhere and always."""

from __future__ import annotations

import pytest

from physis_stream.core.seeds import noise_key, start_index


def test_a_key_is_a_fixed_number_of_its_address():
    """Literals: sessions recorded today must replay tomorrow, on other machines."""
    assert noise_key(0, 1, 0) == 13559593357817233178
    assert start_index(7, 100) == 31


def test_keys_differ_wherever_the_address_differs():
    keys = {noise_key(seed, chunk, step) for seed in range(10) for chunk in range(20) for step in range(5)}
    assert len(keys) == 1000
    assert all(0 <= key < 2**64 for key in keys)


def test_digits_of_neighbouring_fields_do_not_run_into_each_other():
    assert noise_key(1, 11, 1) != noise_key(11, 1, 1)


def test_bits_are_balanced_so_that_keys_seed_generators_well():
    ones = sum(noise_key(seed, 1, 0).bit_count() for seed in range(500))
    assert abs(ones / (500 * 64) - 0.5) < 0.02


def test_every_start_is_chosen_by_some_seed_and_about_equally_often():
    counts = [0] * 8
    for seed in range(4000):
        counts[start_index(seed, 8)] += 1
    assert min(counts) > 400


def test_a_world_without_starts_is_refused():
    with pytest.raises(ValueError, match="at least one start"):
        start_index(0, 0)


def test_seeds_may_be_negative_or_huge():
    assert noise_key(-1, 0, 0) != noise_key(1, 0, 0)
    assert 0 <= start_index(2**200, 3) < 3
