"""The promise of every cleaner, in extended precision, for any predictor and any records."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.reproduce.printed_cleaner import PrintedCleaner
from privpipe.errors import GuaranteeError, PrivacyWarning
from privpipe.numerics.null_space.cleaning import clean_with_kernel
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, TargetedCleaner
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from tests.oracles import exact_loss

KINDS = ("greedy", "kkt", "likely", "augmented", "null_first", "simultaneous", "printed")


def seen_by(cleaner, x):
    """Records as the predictor sees them: with the column of ones where one is appended."""
    return np.column_stack([x, np.ones(len(x), x.dtype)]) if cleaner.augmented else x


def make_cleaner(kind, predictor, budget, centre, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        return _make_cleaner(kind, predictor, budget, centre, np.random.default_rng(seed))


def _make_cleaner(kind, predictor, budget, centre, rng):
    common = {"utility_budget": budget, "on_unrepresentable": "withhold"}
    if kind == "augmented":
        return NullSpaceCleaner.from_predictor(
            np.vstack(
                [predictor, rng.normal(size=(1, predictor.shape[1])) * predictor.std() * 100]
            ),
            augmented=True,
            **common,
        )
    if kind in ("greedy", "kkt"):
        return NullSpaceCleaner.from_predictor(predictor, rule=kind, centre=centre, **common)
    if kind == "likely":
        root = rng.normal(size=(len(predictor),) * 2)
        return NullSpaceCleaner.from_predictor(
            predictor, representative="likely", covariance=root @ root.T, centre=centre, **common
        )
    secret = rng.normal(size=(len(predictor), 2))
    if kind == "printed":
        return PrintedCleaner.from_predictors(predictor, secret, **common)
    return TargetedCleaner.from_predictors(predictor, secret, variant=kind, centre=centre, **common)


@st.composite
def problems(draw):
    """A predictor of any conditioning, records of any scale, a budget, a centre."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    u, w = np.linalg.svd(rng.normal(size=(n, k)), full_matrices=False)[::2]
    sizes = np.geomspace(1, 10.0 ** -draw(st.integers(0, 13)), len(w))
    predictor = 10.0 ** draw(st.integers(-6, 6)) * (u * sizes) @ w
    scale = 10.0 ** rng.integers(-3, 4, size=n)
    if draw(st.booleans()):  # as fitted predictors are: large features, small coefficients
        predictor = predictor / scale[:, None]
    x = rng.normal(size=(20, n)) * scale
    centre = rng.normal(size=n) * scale * draw(st.booleans())
    spread = np.linalg.norm(x @ predictor) / 5
    budget = (spread * 10.0 ** draw(st.integers(-6, 1))) ** 2
    return predictor, x, centre, budget


@pytest.mark.parametrize("apart", [1e-9, 1e-11, 1e-13])
@pytest.mark.parametrize("kind", ["greedy", "kkt", "likely", "null_first", "simultaneous"])
def test_apply__of_targets_that_hardly_differ_reports_what_they_lose(kind, apart):
    """One in other units, and rounding: of two ranks one lifted a coordinate to nothing."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        one, other = rng.normal(size=(2, int(rng.integers(2, 9))))
        predictor = np.column_stack([one, -1.4 * one + apart * other])
        x = rng.normal(size=(20, len(one)))
        budget = (np.linalg.norm(x @ predictor) / 50) ** 2
        cleaner = make_cleaner(kind, predictor, budget, rng.normal(size=len(one)), seed=1)
        released, summary = cleaner.apply_measured(x)
        assert summary.n_withheld == 0
        loss = float(exact_loss(predictor, x, released).max())
        assert loss <= budget
        assert abs(loss**0.5 - summary.largest**0.5) < 0.001 * budget**0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@settings(max_examples=40, deadline=None)
@given(problems())
def test_apply__never_exceeds_the_budget(kind, dtype, problem):
    predictor, x, centre, budget = problem
    x = x.astype(dtype)
    cleaner = make_cleaner(kind, predictor, budget, centre, seed=1)
    released, summary = cleaner.apply_measured(x)
    kept = ~np.isnan(released[:, 0])
    predictor, seen = cleaner.predictor, seen_by(cleaner, x)
    loss = exact_loss(predictor, seen[kept], released[kept])
    assert (loss <= budget).all()
    if kind != "printed" and summary.largest > 0.7 * budget:  # as the audit compares them
        assert float(loss.max()) <= 1.05 * summary.largest
    assert summary.n_withheld == np.count_nonzero(~kept)
    assert summary.n_records == 20
    if kind != "printed":
        if dtype == "float32":  # each rank and dtype is compiled apart
            fast = clean_with_kernel(x, cleaner._form(x.dtype), dtype, lifted=True, out=None)
            ours = ~fast.withheld
            assert (exact_loss(predictor, seen[ours], fast.released[ours]) <= budget).all()
        again = FactoredCleaner.of(cleaner, dtype)
        records = again.reconstruct(again.apply(x))
        kept = ~np.isnan(records[:, 0])
        assert (exact_loss(predictor, seen[kept], records[kept]) <= budget).all()


@pytest.mark.parametrize("kind", KINDS)
def test_apply__spends_all_but_a_little_of_the_budget_in_float64(kind):
    rng = np.random.default_rng(0)
    predictor = rng.normal(size=(30, 3))
    x = rng.normal(size=(200, 30)) * 10
    cleaner = make_cleaner(kind, predictor, 0.01, np.zeros(30), seed=1)
    loss = exact_loss(cleaner.predictor, seen_by(cleaner, x), cleaner.apply(x))
    assert loss.max() <= 0.01
    # The printed form has no grid: for it rounding is all.
    assert 1 - float(loss.min()) / 0.01 < (2e-9 if kind == "printed" else 1e-6)


def test_apply__refuses_by_default_and_withholds_on_request():
    predictor = np.array([[1e6], [1.0]])
    x = np.array([[1.0, 2.0], [1e-6, 1.0]], np.float32)
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=1e-4)
    with pytest.raises(GuaranteeError, match="cost 1 of 2 records") as caught:
        cleaner.apply(x)
    assert "float64" in caught.value.remedy
    assert caught.value.code == "unrepresentable"
    released, summary = replace(cleaner, on_unrepresentable="withhold").apply_measured(x)
    np.testing.assert_array_equal(np.isnan(released).all(axis=1), [True, False])
    assert (summary.n_records, summary.n_withheld) == (2, 1)
    assert cleaner.apply(x.astype(np.float64)).shape == (2, 2)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(["float32", "float64"]))
def test_budget_zero__is_never_refused_and_keeps_its_rounding_bound(problem, dtype):
    predictor, x, centre, _ = problem
    x = x.astype(dtype)
    cleaner = make_cleaner("greedy", predictor, 0.0, centre, seed=1)
    released, summary = cleaner.apply_measured(x)
    promise = cleaner.guarantee
    assert promise.kind == "exact_up_to_rounding"
    sizes = np.linalg.norm(x.astype(float), axis=1) + np.linalg.norm(released.astype(float), axis=1)
    error = np.sqrt(exact_loss(predictor, x, released).astype(float))
    # Terms in the centre are not per unit of the record; they are rounding of the centre's size.
    allowed = promise.number * (sizes + 3 * np.linalg.norm(centre)) + 1e-300
    assert (error <= allowed).all()
    assert summary.total == 0
    assert summary.n_withheld == 0


def test_summary__merges_and_agrees_with_the_exact_loss():
    rng = np.random.default_rng(0)
    predictor, x = rng.normal(size=(8, 2)), rng.normal(size=(60, 8))
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.5)
    whole = cleaner.apply_measured(x)[1]
    parts = cleaner.apply_measured(x[:13])[1].merge(cleaner.apply_measured(x[13:])[1])
    loss = exact_loss(predictor, x, cleaner.apply(x)).astype(float)
    assert whole.total == pytest.approx(loss.sum(), rel=1e-6)  # it does not see the grid's
    assert whole.largest == pytest.approx(loss.max(), rel=1e-6)
    assert whole.n_at_budget == np.count_nonzero(loss > 0.5 * (1 - 1e-3))
    assert asdict(parts) == pytest.approx(asdict(whole))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_apply_measured__overwrites_records_only_when_it_may(dtype):
    rng = np.random.default_rng(0)
    predictor = rng.normal(size=(8, 2))
    x = (rng.normal(size=(60, 8)) * 10).astype(dtype)
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.5)
    given = x.copy()
    released, summary = cleaner.apply_measured(x)
    np.testing.assert_array_equal(x, given)
    again, same = cleaner.apply_measured(x, overwrite_x=True)
    np.testing.assert_array_equal(again, released)
    assert same == summary
    assert (again is x) == (dtype != "int64")


def test_apply__stores_narrow_records_so_that_their_errors_cancel():
    """Rounded plainly, most of these records would be over their budget."""
    rng = np.random.default_rng(0)
    predictor = rng.normal(size=(40, 3)) * 1e3
    x = rng.normal(size=(300, 40)).astype(np.float32) * 100
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=1e-4)
    wide = cleaner.apply(x.astype(np.float64))
    plain = exact_loss(predictor, x, wide.astype(np.float32))
    assert (plain > 1e-4).mean() > 0.5
    released, summary = cleaner.apply_measured(x)
    loss = exact_loss(predictor, x, released).astype(float)
    assert released.dtype == np.float32
    assert (loss <= 1e-4).all()
    assert summary.n_withheld == 0
    assert summary.total == pytest.approx(loss.sum(), rel=1e-3)
    assert np.abs(released - wide).max() <= 2 * np.spacing(np.abs(wide.astype(np.float32)).max())
    alone = np.vstack([cleaner.apply(row) for row in x[:20]])
    np.testing.assert_array_equal(alone, released[:20])


@pytest.mark.parametrize("kind", ["greedy", "kkt", "likely", "null_first", "simultaneous"])
@pytest.mark.parametrize("seed", range(4))
def test_apply__gives_away_a_millionth_at_most_where_scales_lie_six_orders_apart(kind, seed):
    rng = np.random.default_rng(seed)
    # Sizes of 1e-3 to 1e3, and coefficients as fits give them: every feature counts alike.
    scale = np.geomspace(1e-3, 1e3, 24)
    rng.shuffle(scale)
    predictor = rng.normal(size=(24, 3)) / scale[:, None]
    x = rng.normal(size=(60, 24)) * scale
    budget = 0.01
    cleaner = make_cleaner(kind, predictor, budget, np.zeros(24), seed)
    stored, summary = cleaner.apply_measured(x)
    assert summary.n_withheld == 0
    losses = [lose_exactly(cleaner.predictor, *pair) for pair in zip(x, stored, strict=True)]
    assert all(loss <= Fraction(budget) for loss in losses)
    # Every record has more than its budget to lose: what is not spent is given away.
    assert min(losses) >= Fraction(budget) * (1 - Fraction(1, 10**6))


def lose_exactly(predictor, seen, released):
    """Squared error of the desired prediction of one record, in rational numbers."""
    moved = [Fraction(float(a)) - Fraction(float(b)) for a, b in zip(seen, released, strict=True)]
    return sum(
        sum(m * Fraction(float(a)) for m, a in zip(moved, column, strict=True)) ** 2
        for column in predictor.T
    )
