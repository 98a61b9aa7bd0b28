"""The account of persons: never below what was released of anyone, however it came about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.store.keyring.person_histories import measure_persons


@pytest.mark.parametrize("n", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_account__of_random_histories_is_never_below_the_exact_loss_of_a_person(
    n: int, tmp_path: Path
) -> None:
    least, ratios = measure_persons(n, 3, tmp_path)
    assert len(ratios) > n / 2
    assert least >= 1
    # What it is above is what a partition does not say of its persons, and the rules of its sums.
    assert np.median(ratios) < 1.25
