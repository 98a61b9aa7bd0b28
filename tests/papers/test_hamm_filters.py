"""Hamm, JMLR 2017: figures 4 and 6, with the numbers that prototypes of ours reached.

GENKI has 200 test records: one is .005, and the standard error of an accuracy of .5 is .035.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.reproduce.hamm import present_accuracies
from flows.reproduce.hamm_accuracies import (
    Accuracies,
    draw_har_trial,
    measure_genki,
    measure_har,
    read_genki_trial,
)
from privpipe import Records
from privpipe.errors import StoreError
from privpipe.report.style import render_svg
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter

pytestmark = [pytest.mark.paper, pytest.mark.slow]


@pytest.fixture(scope="module")
def genki(paper_data: Path) -> Accuracies:
    return measure_genki(
        paper_data,
        widths=(10,),
        n_trials=2,
        adversaries=("logistic",),
        filters=("raw", "pca", "privacy_lds", "ddd", "minimax_1", "minimax_2"),
    )


@pytest.fixture(scope="module")
def har(paper_data: Path) -> Accuracies:
    seeds = (0, 1, 2, 3)
    return measure_har(
        paper_data, widths=(), seeds=seeds, adversaries=("logistic", "rbf"), filters=("minimax_1",)
    )


def _means(found: Accuracies, name: str, width: int, adversary: str) -> tuple[float, float]:
    return (
        found.find(name, width, "target", adversary).mean,
        found.find(name, width, "private", adversary).mean,
    )


def test_genki__raw_records_show_both(genki: Accuracies) -> None:
    """Printed: .90 / .90."""
    target, private = _means(genki, "raw", 256, "logistic")
    assert target >= 0.88
    assert private >= 0.88


def test_genki__pca_is_the_authors_to_the_record(genki: Accuracies) -> None:
    """The original readme: .840 / .665 at width 10."""
    assert _means(genki, "pca", 10, "papers") == pytest.approx((0.840, 0.665), abs=1e-9)


def test_genki__privacy_lds_hides_gender_from_linear_adversaries(genki: Accuracies) -> None:
    assert _means(genki, "privacy_lds", 10, "papers")[1] <= 0.52
    assert _means(genki, "privacy_lds", 10, "logistic")[1] <= 0.52


def test_genki__minimax_filters_keep_expression_and_hide_gender(genki: Accuracies) -> None:
    for width in (1, 10):
        target, private = _means(genki, "minimax_1", width, "logistic")
        assert target >= 0.87
        assert private <= 0.57
    target, private = _means(genki, "minimax_2", 10, "logistic")
    assert target >= 0.88
    assert private <= 0.60


def test_genki__wide_linear_filters_leak_to_other_adversaries(paper_data: Path) -> None:
    """Why the reduced form is the default."""
    found = measure_genki(
        paper_data, widths=(10,), n_trials=2, adversaries=("rbf",), filters=("minimax_1",)
    )
    reduced = _means(found, "minimax_1", 1, "rbf")[1]
    wide = _means(found, "minimax_1", 10, "rbf")[1]
    assert reduced <= 0.55
    assert wide > reduced + 0.04


def test_genki__ddd_is_near_the_authors(genki: Accuracies) -> None:
    """Stored by the authors: .875 / .56."""
    target, private = _means(genki, "ddd", 256, "papers")
    assert target == pytest.approx(0.875, abs=0.02)
    assert private == pytest.approx(0.56, abs=0.04)


def test_genki__phi_with_the_authors_losses(paper_data: Path) -> None:
    """No intercepts, rho 10, lambda 1e-6, width 10: the original code ends at 2.919."""
    trial, _ = read_genki_trial(paper_data)
    records = Records(
        trial.features[0],
        desired=trial.target[0].astype(float),
        confidential=trial.private[0].astype(float),
    )
    with pytest.warns(UserWarning, match="n_filtered is 10"):
        fitted = fit_minimax_filter(
            records, MinimaxOptions(n_filtered=10, with_intercept=False, max_iterations=10)
        )
    phi = fitted.history[:, fitted.history_columns.index("phi")]
    assert len(phi) <= 11
    assert phi[-1] <= 0.47
    assert (np.diff(phi) <= 1e-6).all()


def test_har__raw_records_show_both(paper_data: Path) -> None:
    """Printed: .97 / .70; ours needs .68 for who it is."""
    har = measure_har(
        paper_data, widths=(), seeds=(0,), adversaries=("logistic",), filters=("raw",)
    )
    target, private = _means(har, "raw", 561, "logistic")
    assert target >= 0.97
    assert private >= 0.68


def test_har__reduced_minimax_keeps_activity_and_hides_subjects(har: Accuracies) -> None:
    target, private = _means(har, "minimax_1", 5, "logistic")
    assert target >= 0.975
    assert private <= 0.08
    rbf = har.find("minimax_1", 5, "private", "rbf")
    assert rbf.mean <= 0.28
    assert rbf.lower <= rbf.mean <= rbf.upper
    assert len(rbf.accuracies) == 4


def test_har__rounds_are_few_and_small(paper_data: Path) -> None:
    for seed in range(4):
        trial = draw_har_trial(paper_data, seed)
        records = Records(
            trial.features[0],
            desired=trial.target[0].astype(float),
            confidential=trial.private[0].astype(float),
        )
        fitted = fit_minimax_filter(records)
        last = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
        assert last["rounds"] <= 40
        assert last["largest_round_bytes"] <= 80_000
        assert last["loss_confidential:confidential_0"] >= 0.995 * fitted.baselines[1]


def test_present_accuracies__holds_the_papers_numbers_beside_ours(genki: Accuracies) -> None:
    found = present_accuracies(genki)
    cells = {cell.cell: cell for cell in found.cells}
    assert cells["raw 256 private logistic"].paper == 0.90
    assert cells["pca 10 private papers"].verdict == "agrees"
    assert cells["minimax_1 1 private logistic"].verdict == "not compared"
    assert any("ddd: 0.875 / 0.560" in note for note in found.notes)
    assert "<svg" in render_svg(found.figure("light"))
    assert '"cells"' in found.to_json()


def test_read_genki_trial__names_the_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"genki\.npz cannot be read"):
        read_genki_trial(tmp_path)
