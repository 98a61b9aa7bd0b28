"""A promise about the law is kept as often as it says: error rates, in simulation."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from scipy import stats

from privpipe import PrivacyMappingOptions, fit_privacy_mapping
from privpipe.errors import PrivacyWarning
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from tests.laws_of_records import RecordLaw, make_laws

DRAWS = int(os.environ.get("PRIVPIPE_COVERAGE_DRAWS", "3"))
LARGE = (20_000,) if DRAWS < 100 else (2_000, 20_000, 200_000)
SIZES = (500, *(pytest.param(n, marks=pytest.mark.slow) for n in LARGE))
FEW = ("sharp", "a value is a profile", "ordered, squared")
"""Laws of which one is told much, and one a line; quick, where the others are slow."""

LAWS = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in make_laws()]
CONFIDENCE = 0.95


def options(law: RecordLaw, **changes: object) -> PrivacyMappingOptions:
    names = tuple(f"a{k}" for k in range(law.codes.shape[1]))
    given = {
        "name": "privacy_mapping",
        "attributes": names,
        "private": ("private",),
        "distortion": law.distortion,
        "distortion_budget": law.budget,
        "gap": 1e-2,
        "confidence": CONFIDENCE,
        **changes,
    }
    return PrivacyMappingOptions(**given)  # type: ignore[arg-type]


def count_misses(law: RecordLaw, n: int, draws: int, seed: int, **changes: object) -> np.ndarray:
    """How often a bound is below the truth: promise, held-out, distortion."""
    rng, misses = np.random.default_rng(seed), np.zeros(3, int)
    for _ in range(draws):
        mapping = fit_privacy_mapping(law.draw(n, rng), options(law, **changes))
        told, spent = law.tell(mapping)
        said = dict(mapping.guarantee.parameters)
        misses += [
            mapping.guarantee.number < told - 1e-9,
            said["held_out"] < told - 1e-9,
            said.get("distortion_at_most", np.inf) < spent - 1e-9,
        ]
    return misses


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", SIZES)
def test_assure_mapping__promises_hold_about_the_law(n: int, name: str) -> None:
    most, laws = stats.binom.ppf(0.9999, DRAWS, 1 - CONFIDENCE), make_laws()
    misses = count_misses(laws[name], n, DRAWS, 1000 * list(laws).index(name) + n)
    assert (misses <= most).all(), misses
    if DRAWS >= 100:
        print(f"{name:30s} n = {n:7,}  misses of {DRAWS}: {misses.tolist()}")


def test_fit__records_held_out_elsewhere_judge_and_the_others_all_choose() -> None:
    """As of a run, whose audit holds them out; fewer than asked are made up from the others."""
    law, rng = make_laws()["ordered, absolute, three"], np.random.default_rng(2)
    shards, judges, few = (law.draw(n, rng) for n in (2_000, 3_000, 400))
    numbers = []
    for others in ((judges, 0.6), (few, 1 / 6), None):
        fitted = fit_privacy_mapping(shards, options(law), judges=others)  # type: ignore[arg-type]
        said = dict(fitted.guarantee.parameters)
        numbers.append((said["n_fitted"], said["n_held_out"]))
        assert law.tell(fitted)[0] <= (fitted.guarantee.number or 0.0)
    assert numbers[0] == (2_000, 3_000)
    assert sum(numbers[1]) == 2_400
    assert numbers[1][1] == pytest.approx(1_200, abs=100)
    assert sum(numbers[2]) == 2_000


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("n", SIZES)
def test_assure_mapping__promises_of_records_held_out_elsewhere_hold(n: int, name: str) -> None:
    most, laws = stats.binom.ppf(0.9999, DRAWS, 1 - CONFIDENCE), make_laws()
    law, rng, missed = laws[name], np.random.default_rng(7_000 * list(laws).index(name) + n), 0
    for _ in range(DRAWS):
        fitted = fit_privacy_mapping(
            law.draw(n, rng),
            options(law),  # type: ignore[arg-type]
            judges=(law.draw(n // 3, rng), 0.25),
        )
        missed += (fitted.guarantee.number or 0.0) < law.tell(fitted)[0] - 1e-9
    assert missed <= most


def test_fit__unseen_profiles_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compared with the whole alphabet: it was, for each half, bound and mean."""
    looked_up: list[int] = []
    find = SparseMapping._replace

    def count(self: SparseMapping, unknown: np.ndarray) -> np.ndarray:
        looked_up.append(len(unknown))
        return find(self, unknown)

    monkeypatch.setattr(SparseMapping, "_replace", count)
    law = make_laws()["issue: 288 profiles"]
    given = options(law, most_frequent=3, unseen="nearest", held_out=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        fit_privacy_mapping(law.draw(2_000, np.random.default_rng(0)), given)
    assert len(looked_up) == 1


def test_assure_mapping__without_records_held_out_promises_the_most_there_is() -> None:
    law = make_laws()["ordered, absolute, three"]
    shards = law.draw(2_000, np.random.default_rng(1))
    mapping = fit_privacy_mapping(shards, options(law, held_out=0.0))  # type: ignore[arg-type]
    assert mapping.guarantee.number == np.log(3)
    halved = fit_privacy_mapping(shards, options(law))  # type: ignore[arg-type]
    assert law.tell(halved)[0] <= (halved.guarantee.number or 0.0) < 0.16
