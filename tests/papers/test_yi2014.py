"""Yi et al. 2014: tables 1 and 2, School complete and with 80 % missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.reproduce import yi_synthetic
from flows.reproduce.registry import run_reproduction
from flows.reproduce.result import Reproduction
from privpipe.numerics.masking.completion import measure_noise

pytestmark = pytest.mark.slow


def value(found: Reproduction, cell: str) -> float:
    (one,) = [each for each in found.cells if each.cell == cell]
    return one.ours


@pytest.mark.paper
def test_yi_school__keeps_the_model_where_a_random_projection_does_not(paper_data: Path) -> None:
    found = run_reproduction("yi-school", paper_data, small=True)
    raw = value(found, "raw, ridge: RMSE")
    assert value(found, "masked, ridge: RMSE") <= 1.005 * raw
    assert value(found, "masked, ridge: eta") <= 0.06
    assert value(found, "random projection, ridge: RMSE") >= 1.05 * raw
    assert value(found, "random projection / raw, ridge") >= 1.05  # of twenty draws
    # What masking adds beside the coefficients and a Gaussian of the same moments: nothing here.
    assert value(found, "coefficients alone, ridge: eta") <= 0.06
    # 80 % missing, of 6000 records; all 15,362 give less than 10.8, and .04 is below the limit.
    assert value(found, "80 % missing, ridge: RMSE") < 11.5
    assert value(found, "80 % missing, limit, firm ridge: eta") > 0.04
    assert value(found, "masked, 139 tasks: RMSE") <= 1.005 * value(found, "raw, 139 tasks: RMSE")


@pytest.mark.paper
@pytest.mark.parametrize("name", ["genki", "school", "wq"])
def test_measure_noise__takes_nothing_from_real_features_however_far_signal_must_stand(
    paper_data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with np.load(paper_data / f"{name}.npz", allow_pickle=False) as stored:
        x = stored["X"].astype(np.float64)
    x = x[:, x.std(axis=0) > 0]
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    values = np.linalg.eigvalsh(x.T @ x / len(x))
    for far in (3.0, 6.0, 10.0):
        monkeypatch.setattr("privpipe.numerics.masking.completion.FAR", far)
        assert measure_noise(values, len(x)) == 0.0


def test_yi_synthetic__error_is_near_that_of_known_scores_and_the_relative_residual_stands_beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than the paper's size; the whole of it is `python -m flows.reproduce yi-synthetic`."""
    for name, small in {"N_FEATURES": 100, "N_RECORDS": 300, "RANK": 12, "N_RESPONSES": 3}.items():
        monkeypatch.setattr(yi_synthetic, name, small)
    found = yi_synthetic.reproduce_synthetic(tmp_path, 1, (0.5,), (100, 300))
    cells = {cell.cell: cell.ours for cell in found.cells}
    for m in (100, 300):
        for table, most in (("complete", 1.3), ("80 % missing", 3.0)):
            one = f"{table}, m = {m}: {{}}, variance 0.5"
            assert cells[one.format("error")] <= most * cells[one.format("known scores")]
            assert 0 < cells[one.format("residual")] < 0.3
        none = cells[f"complete, m = {m}: no method, variance 0.5"]
        assert none > 2 * cells[f"complete, m = {m}: error, variance 0.5"]
    assert any("problem (5)" in note and "given the true rank" in note for note in found.notes)


def test_measure_error__is_zero_within_the_space_and_divides_by_the_surrogates() -> None:
    random = np.random.default_rng(0)
    space = np.linalg.qr(random.normal(size=(8, 3)))[0]
    rows = random.normal(size=(50, 3)) @ space.T
    inside = yi_synthetic.Masked(rows[:, 2:], rows[:, :2], 3, 0.0)
    assert yi_synthetic.measure_error(inside, space)[0] < 1e-14
    off = rows + random.normal(size=rows.shape)
    outside = yi_synthetic.Masked(off[:, 2:], off[:, :2], 3, 0.0)
    error, relative = yi_synthetic.measure_error(outside, space)
    left = off - off @ space @ space.T
    assert error == pytest.approx(np.linalg.norm(left, axis=1).max() / 50)
    assert 0 < relative < 1
