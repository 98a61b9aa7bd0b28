"""What a mere guess reaches is known before a run: held against limits of random rankings."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics import exposure, roc
from privpipe.attacks.statistics.folds import cut_cells
from privpipe.attacks.threats.verdicts.detectable_effect import (
    Evenness,
    measure_evenness,
    plan_guess_limit,
    plan_needed_records,
)
from privpipe.protocols import IntArray

N_RECORDS, N_DRAWS = 8000, 24


def draw(law: str, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Target and confidential variable."""
    y, chance = rng.integers(3, size=N_RECORDS), rng.random(N_RECORDS)
    if law == "even":
        return y, rng.integers(2, size=N_RECORDS)
    if law == "rare":
        return y, np.asarray(chance < 0.1, np.int64)
    if law == "rare classes":
        return y, rng.choice(4, size=N_RECORDS, p=[0.6, 0.3, 0.08, 0.02])
    if law == "revealed by the target":
        return y % 2, np.where(chance < 0.02, 1 - y % 2, y % 2)
    return y, np.where(chance < 0.1, rng.integers(3, size=N_RECORDS), y)


@pytest.mark.parametrize(
    "law", ["even", "rare", "rare classes", "revealed by the target", "three classes revealed"]
)
def test_measure_evenness__plans_the_limits_of_random_rankings(law: str) -> None:
    """A plan that forgot the target said a fifth, one of the rarest class three times as much."""
    rng, spreads, uppers, even = np.random.default_rng(5), [], [], []
    for _ in range(N_DRAWS):
        y, z = draw(law, rng)
        k = int(z.max()) + 1
        cells, _ = cut_cells(rng.integers(5, size=N_RECORDS), y[:, None].astype(float), None)
        ranking = rng.normal(size=(N_RECORDS, k))
        moved = roc.average_areas(z, ranking, cells)[1]
        spreads.append(k / (k - 1) * np.sqrt(moved @ moved))
        uppers.append(exposure.measure_exposures(z, ranking, [0.01], cells=cells)[0].upper)
        even.append(measure_evenness(y, z))
    areas, claims = np.mean(even, axis=0)
    n_alike = areas * N_RECORDS
    planned = k / (k - 1) * np.sqrt((n_alike + 1) / (12 * n_alike**2))
    assert 0.95 < planned * k / (k - 1) / np.mean(spreads) < 1.45
    upper = exposure.plan_null_exposure(N_RECORDS, k, 0.01, 0.95, claims)
    assert 0.65 < upper / (np.mean(uppers) - 0.01) < 1.5


def test_measure_evenness__is_nothing_where_nothing_can_be_compared() -> None:
    """The target is the confidential variable: no number of records is enough."""
    codes = np.arange(600) % 3
    assert measure_evenness(codes, codes) == Evenness(0.0, 0.0)
    options, tried = AttackOptions(), {"n_attacks": 9, "n_classes": 3, "n_variables": 1}
    needed = plan_needed_records(options, **tried, even=Evenness(0.0, 0.0))
    assert {n for score, n in needed.items() if score != "accuracy"} == {np.inf}


def test_plan_guess_limit__is_of_records_alike() -> None:
    options, tried = AttackOptions(), {"n_attacks": 9, "n_classes": 2, "n_variables": 1}
    fewer = plan_guess_limit(options, "auc", 1000, **tried)  # type: ignore[arg-type]
    even = Evenness(areas=0.1)
    assert_allclose(plan_guess_limit(options, "auc", 10_000, **tried, even=even), fewer)  # type: ignore[arg-type]
