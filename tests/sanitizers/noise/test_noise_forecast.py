"""What a forecast says of noise before a run: whether anything is left of the records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS


@pytest.mark.parametrize(("scales", "n_drowned"), [((1.0, 1.0), 0), ((1.0, 1e-3), 1)])
def test_forecast_noise__names_coordinates_that_drown(
    scales: tuple[float, float], n_drowned: int
) -> None:
    """Ages beside incomes: noise of one size left nothing of the ages, and nothing said so."""
    x = np.random.default_rng(4).normal(size=(2000, 2)) * scales
    records = Records(x, desired=(x[:, 0] > 0).astype(int))
    preview: Any = SimpleNamespace(read_labelled=lambda: (next(iter(records.shards())), records))
    row = METHODS["noisy"]
    options = row.options(epsilon=4.0, allow_data_bound=True)
    assert row.forecast is not None
    found: Any = row.forecast(preview, options)
    assert found.n_drowned == n_drowned
    assert ("of the coordinates drown" in found.describe()) == (n_drowned > 0)
