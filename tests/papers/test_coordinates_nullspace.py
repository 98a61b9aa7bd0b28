"""Null-space releases of Xu et al. 2017 are attacked in the coordinates they really have.

oes97 is the hard case: columns span orders of magnitude, and 300 records for 263 features.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.coordinates import measure_coordinates
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner


@pytest.mark.paper
@pytest.mark.parametrize(
    ("name", "n_desired", "dtype"),
    [
        ("oes97", 8, np.float32),  # the coarser type, of the hard case
        ("wq", 7, np.float64),
        ("wq", 7, np.float32),
        pytest.param("oes97", 8, np.float64, marks=pytest.mark.slow),
        pytest.param("scene", 3, np.float64, marks=pytest.mark.slow),
        pytest.param("scene", 3, np.float32, marks=pytest.mark.slow),
    ],
)
def test_measure_coordinates__finds_the_rank_of_a_null_space_release(
    paper_data: Path, name: str, n_desired: int, dtype: type
) -> None:
    with np.load(paper_data / f"{name}.npz", allow_pickle=False) as stored:
        x, y = stored["X"], stored["Y"].astype(float)
    train = np.arange(len(x)) < 0.9 * len(x)
    records = Records(x[train], desired=y[train, :n_desired])
    released = fit_null_space_cleaner(records, utility_budget=0.01).apply(x).astype(dtype)
    found = measure_coordinates(released)
    assert found.rank == found.values.shape[1] == n_desired
    options = AttackOptions(adversaries=("least_squares",))
    report = measure_attacks(released, y[:, n_desired], raw=x, options=options)
    assert set(report.table.query("source == 'released'")["n_coordinates"]) == {n_desired}
    assert set(report.table["status"]) == {"measured"}
