"""Whatever lies in the exact null space of the desired predictor changes no bit of a release."""

from __future__ import annotations

import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import RandomForestClassifier

from privpipe.errors import PrivacyWarning
from privpipe.numerics.null_space.cleaning import clean_with_kernel, clean_with_numpy
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, TargetedCleaner
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner

KINDS = ("greedy", "kkt", "likely", "augmented", "null_first", "simultaneous", "dependent")
N_SEEN, N_PAIRS, N_UNSEEN = 6, 4, 3
N_FEATURES = N_SEEN + 2 * N_PAIRS + N_UNSEEN


def make_predictor(rank, seed, *, scales=None):
    """Rows that are seen, pairs whose sum alone is seen (the second times -4), rows of zeros."""
    rng = np.random.default_rng(seed)
    predictor = rng.normal(size=(N_FEATURES, rank))
    first = slice(N_SEEN, N_SEEN + N_PAIRS)
    predictor[N_SEEN + N_PAIRS : -N_UNSEEN] = -4 * predictor[first]
    predictor[-N_UNSEEN:] = 0.0
    return predictor if scales is None else predictor / scales[:, None]


def make_twins(n_records, dtype, seed, *, largest=1e12):
    """Records and others that differ from them in the null space only, exactly."""
    rng = np.random.default_rng(seed)
    x = (40 * rng.normal(size=(n_records, N_FEATURES))).astype(dtype)
    digits = np.finfo(dtype).nmant - 3
    pairs = (n_records, N_PAIRS)
    # Whole multiples of one unit that the dtype holds with whatever is added to them.
    unit = 2.0 ** rng.integers(-8, 1, pairs)
    reach = np.minimum(2.0 ** (digits - 3), largest / unit)
    t = np.floor(rng.uniform(-1, 1, pairs) * reach) * unit
    first = slice(N_SEEN, N_SEEN + N_PAIRS)
    x[:, first] = np.floor(rng.uniform(-64, 64, pairs)) * unit
    x[:, N_SEEN + N_PAIRS : -N_UNSEEN] = 0.0
    twin = x.copy()
    twin[:, first] += 4 * t
    twin[:, N_SEEN + N_PAIRS : -N_UNSEEN] += t
    twin[:, -N_UNSEEN:] = largest * rng.uniform(-1, 1, (n_records, N_UNSEEN))
    return x, twin


def predict_exactly(predictor, x):
    rows = [[Fraction(float(v)) for v in row] for row in x]
    columns = [[Fraction(float(a)) for a in column] for column in predictor.T]
    return [[sum(v * a for v, a in zip(r, c, strict=True)) for c in columns] for r in rows]


def make_cleaner(kind, predictor, budget, seed=0):
    rng = np.random.default_rng(seed)
    common = {"utility_budget": budget, "on_unrepresentable": "withhold"}
    centre = rng.normal(size=len(predictor))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        if kind == "augmented":
            predictor = np.vstack([predictor, rng.normal(size=(1, predictor.shape[1]))])
            return NullSpaceCleaner.from_predictor(predictor, augmented=True, **common)
        if kind == "dependent":  # to rounding, not exactly
            last = predictor @ rng.normal(size=predictor.shape[1])
            predictor = np.column_stack([predictor, last])
        if kind == "likely":
            root = rng.normal(size=(len(predictor),) * 2)
            common |= {"representative": "likely", "covariance": root @ root.T}
        if kind in ("null_first", "simultaneous"):
            secret = rng.normal(size=(len(predictor), 2))
            return TargetedCleaner.from_predictors(
                predictor, secret, variant=kind, centre=centre, **common
            )
        rule = "kkt" if kind == "kkt" else "greedy"
        return NullSpaceCleaner.from_predictor(predictor, rule=rule, centre=centre, **common)


def test_twins__agree_in_exact_arithmetic_and_nowhere_else():
    for dtype in ("f4", "f8"):
        predictor = make_predictor(2, 0)
        x, twin = make_twins(40, dtype, 1)
        assert predict_exactly(predictor, x) == predict_exactly(predictor, twin)
        assert np.abs(twin - x).max() > 1e11
        assert (np.abs(x @ predictor - twin @ predictor) > 0).any()


@pytest.mark.parametrize("budget", [0.0, 1e-9, 0.01, 100.0])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_apply__gives_twins_the_same_bytes(kind, dtype, budget):
    predictor = make_predictor(1 if kind == "kkt" else 3, 0)
    x, twin = make_twins(300, dtype, 1)
    if kind == "dependent":
        # The last column is a rounded sum: pairs and zeros must be kept in it too.
        assert N_UNSEEN
    cleaner = make_cleaner(kind, predictor, budget)
    if kind == "dependent":
        exact = cleaner.predictor
        same = np.array(predict_exactly(exact, x[:20])) == predict_exactly(exact, twin[:20])
        assert same.all()
    released, summary = cleaner.apply_measured(x)
    again, like = cleaner.apply_measured(twin)
    assert released.tobytes() == again.tobytes()
    assert summary == like
    kept = ~np.isnan(released[:, 0])
    assert kept.mean() > 0.9 or budget == 1e-9
    factored = FactoredCleaner.of(cleaner, dtype)
    coordinates = factored.apply(x)
    assert coordinates.tobytes() == factored.apply(twin).tobytes()
    for rows in (slice(0, 1), slice(7, 40)):
        assert cleaner.apply(twin[rows]).tobytes() == released[rows].tobytes()
    if not kind.endswith("dependent"):
        fast = clean_with_kernel(twin, cleaner._form(x.dtype), dtype, lifted=True, out=None)
        plain = clean_with_numpy(x, cleaner._form(x.dtype), dtype, lifted=True, out=None)
        assert fast.released.tobytes() == plain.released.tobytes()
        assert fast.spent.tobytes() == plain.spent.tobytes()


def test_apply__shows_no_unseen_feature_in_the_last_digits():
    """Issue 13: the margin grew with the record, the unseen features among it."""
    predictor = np.array([[1.0], [0.0], [0.0]])
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.01)
    pair = cleaner.apply(np.array([[40.0, 20.0, 0.0], [40.0, 600000.0, 0.0]]))
    assert pair[0].tobytes() == pair[1].tobytes()


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_apply__leaves_the_best_adversary_on_low_bits_with_a_guess(dtype):
    rng = np.random.default_rng(0)
    predictor = rng.normal(size=(6, 2)) * [[1], [1], [1], [1], [0], [0]]
    secret = rng.integers(0, 2, 6000)
    x = 40 * rng.normal(size=(6000, 6))
    x[:, 4] = 1e4 * secret + rng.normal(size=6000)
    x = x.astype(dtype)
    released = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.01).apply(x)
    words = released.view(f"u{released.itemsize}").astype(np.uint64)
    seen = [(words >> np.uint64(s)) & np.uint64(255) for s in range(0, 8 * released.itemsize, 8)]
    seen = np.hstack([released.astype(float), *seen])
    spy = RandomForestClassifier(60, random_state=0).fit(seen[:4000], secret[:4000])
    assert abs(spy.score(seen[4000:], secret[4000:]) - 0.5) < 0.04


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from(["f4", "f8"]), st.integers(-12, 3))
def test_apply__gives_twins_of_any_scale_the_same_bytes(seed, dtype, power):
    rng = np.random.default_rng(seed)
    scales = 10.0 ** rng.integers(-3, 4, size=N_FEATURES)
    scales[N_SEEN:-N_UNSEEN] = 1.0
    predictor = make_predictor(int(rng.integers(1, 4)), seed, scales=scales)
    x, twin = make_twins(30, dtype, seed, largest=10.0 ** rng.integers(5, 13))
    cleaner = make_cleaner(KINDS[seed % 6], predictor, 10.0**power, seed)
    assert cleaner.apply(x).tobytes() == cleaner.apply(twin).tobytes()
