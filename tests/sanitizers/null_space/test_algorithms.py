"""Algorithm 1: the printed loop, the fit from shards, its options and bad input."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privpipe.errors import InputError, OptionError, PrivacyWarning, RankError
from privpipe.numerics.moments import solve_least_squares
from privpipe.protocols import Column, ShardSchema
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import (
    NullSpaceCleaner,
    NullSpaceOptions,
    fit_null_space,
    fit_null_space_cleaner,
)
from privpipe.sanitizers.null_space.predictors import summarise_design
from tests.oracles import clean_as_printed, exact_loss
from tests.sanitizers.xu_records import make_deficient, make_features, make_labels, make_records


@pytest.mark.parametrize("budget", [0.0, 1e-3, 0.4, 1e4])
@pytest.mark.parametrize("n_desired", [1, 3])
def test_apply__is_the_printed_algorithm(budget, n_desired):
    rng = np.random.default_rng(0)
    predictor, x = rng.normal(size=(9, n_desired)), rng.normal(size=(40, 9))
    cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=budget)
    expected = clean_as_printed(predictor, x, budget)
    # The grid moves predictions by a millionth of the root of the budget at most.
    np.testing.assert_allclose(cleaner.apply(x), expected, atol=1e-6 * np.sqrt(budget) + 1e-9)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(1e-6, 10))
def test_apply__releases_equal_what_is_desired_equal(seed, budget):
    rng = np.random.default_rng(seed)
    predictor, x = rng.normal(size=(8, 2)), rng.normal(size=8)
    null = np.linalg.svd(predictor.T)[2][2:]
    twins = x + rng.normal(size=(5, 6)) @ null
    released = NullSpaceCleaner.from_predictor(predictor, utility_budget=budget).apply(twins)
    # These twins agree to rounding: hardly ever does a boundary of the grid lie between them.
    np.testing.assert_allclose(
        released, np.broadcast_to(released[0], released.shape), atol=1e-6 * np.sqrt(budget)
    )


def test_apply__takes_one_record_as_well_as_many():
    cleaner = NullSpaceCleaner.from_predictor(np.ones(3), utility_budget=0.5)
    x = np.arange(12).reshape(4, 3)
    np.testing.assert_array_equal(cleaner.apply(x[2]), cleaner.apply(x)[2])
    assert cleaner.apply(x).dtype == np.float64
    assert cleaner.apply(x.astype(np.float32)).dtype == np.float32


def test_fit__is_least_squares_whatever_the_shards():
    x = make_features()
    desired, _ = make_labels(x)
    design = np.column_stack([x, np.ones(len(x))])
    best = np.linalg.lstsq(design, desired, rcond=None)[0]
    for n_shards in (1, 7):
        cleaner = fit_null_space_cleaner(make_records(n_shards=n_shards), utility_budget=0.1)
        np.testing.assert_allclose(cleaner.predictor, best[:7], rtol=1e-9)
        np.testing.assert_allclose(cleaner.intercept, best[7], rtol=1e-9)
        np.testing.assert_allclose(cleaner.centre, x.mean(axis=0), rtol=1e-12)
        assert cleaner.solver == "co-moments"
        assert 1 < cleaner.condition < 1e5


@pytest.mark.parametrize("intercept", ["separate", "augmented", "none"])
@pytest.mark.parametrize("representative", ["closest", "likely"])
def test_fit__keeps_the_budget_with_every_intercept(intercept, representative):
    records = make_records()
    x = make_features()
    fit = partial(
        fit_null_space_cleaner,
        records,
        utility_budget=0.04,
        intercept=intercept,
        representative=representative,
    )
    if intercept == "augmented" and representative == "likely":
        with pytest.raises(OptionError, match="cleans records as they are"):
            fit()
        return
    cleaner = fit()
    released = cleaner.apply(x)
    seen = np.column_stack([x, np.ones(len(x))]) if cleaner.augmented else x
    assert (exact_loss(cleaner.predictor, seen, released) <= 0.04).all()
    np.testing.assert_allclose(
        cleaner.predict(released), cleaner.predict(seen), atol=0.2 + 1e-9, rtol=0
    )
    assert cleaner.n_features_out == released.shape[1] == 7 + (intercept == "augmented")


def test_fit__says_what_is_dependent_unless_there_is_ridge():
    with pytest.raises(RankError, match="number 7") as caught:
        fit_null_space_cleaner(make_deficient(), utility_budget=0.1)
    assert "ridge" in caught.value.remedy
    cleaner = fit_null_space_cleaner(make_deficient(), utility_budget=0.1, ridge=1e-6)
    assert cleaner.solver == "tsqr"
    assert cleaner.predictor[7].max() == 0


def test_fit__factors_the_records_where_their_gram_matrix_is_ill_conditioned():
    x = make_features()
    twin = x[:, 0] + 1e-7 * np.random.default_rng(0).normal(size=len(x))
    records = Records(np.column_stack([x, twin]), desired=make_labels(x)[0], n_shards=5)
    cleaner = fit_null_space_cleaner(records, utility_budget=0.1)
    assert cleaner.solver == "tsqr"
    assert cleaner.condition > 1e12
    scaled = records.shards().__next__().features
    assert scaled.shape[1] == 8
    design = np.column_stack([x, twin])
    design = (design - design.mean(axis=0)) / design.std(axis=0)
    best = design @ np.linalg.lstsq(design, make_labels(x)[0], rcond=None)[0]
    fitted = np.column_stack([x, twin]) @ cleaner.predictor
    np.testing.assert_allclose(
        fitted - fitted.mean(axis=0), best - best.mean(axis=0), atol=1e-6 * best.std()
    )


@pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")
def test_fit__leaves_out_records_without_their_label_and_counts_weights():
    x = make_features()
    desired, secret = make_labels(x)
    holes = desired.copy()
    holes[::5, 1] = np.nan
    kept = ~np.isnan(holes).any(axis=1)
    with_holes = fit_null_space_cleaner(Records(x, desired=holes), utility_budget=0.1)
    without = fit_null_space_cleaner(Records(x[kept], desired=desired[kept]), utility_budget=0.1)
    weighted = fit_null_space_cleaner(
        Records(x, desired=desired, weights=kept.astype(float), n_shards=3), utility_budget=0.1
    )
    for other in (without, weighted):
        np.testing.assert_allclose(with_holes.predictor, other.predictor, rtol=1e-9)
    assert secret.shape == (len(x), 2)


def test_summarise_design__merges_in_any_order():
    x = make_features(60)
    desired, secret = make_labels(x)
    desired[3], secret[::4] = np.nan, np.nan
    records = Records(x, desired=desired, confidential=secret, n_shards=6)
    roles = ("desired", "confidential")
    parts = [
        summarise_design(shard, schema=records.schema, coding="zero_one", roles=roles)
        for shard in records.shards()
    ]
    forward = parts[0]
    for part in parts[1:]:
        forward = forward.merge(part)
    backward = parts[-1]
    for part in parts[-2::-1]:
        backward = backward.merge(part)
    for role, y in (("desired", desired), ("confidential", secret)):
        complete = ~np.isnan(y).any(axis=1)
        rows = np.hstack([x, y])[complete]
        expected = (rows - rows.mean(axis=0)).T @ (rows - rows.mean(axis=0))
        for found in (forward.of_role(role), backward.of_role(role)):
            assert found.count == complete.sum()
            np.testing.assert_allclose(found.scatter, expected, rtol=1e-9, atol=1e-8)
            assert solve_least_squares(found, 7).coefficients.shape == (7, 2)


def test_budget__per_label_is_multiplied_by_the_labels():
    predictor = np.random.default_rng(0).normal(size=(5, 3))
    total = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.1)
    each = NullSpaceCleaner.from_predictor(predictor, utility_budget=0.1, budget="per_label")
    assert each.utility_budget == pytest.approx(3 * total.utility_budget)
    assert each.guarantee.number == each.utility_budget


def test_fit_null_space__reads_options_and_files():
    options = NullSpaceOptions(
        name="null_space", utility_budget=0.2, rule="kkt", budget="per_label"
    )
    cleaner = fit_null_space(make_records(), options)
    assert (cleaner.rule, cleaner.utility_budget) == ("kkt", 0.4)
    given = {"coefficients": np.eye(7)[:, :2], "intercept": np.array([1.0, 2.0])}
    brought = fit_null_space(make_records(), options, predictor=given)
    np.testing.assert_array_equal(brought.predictor, np.eye(7)[:, :2])
    np.testing.assert_array_equal(brought.intercept, [1.0, 2.0])
    assert brought.solver == "given"


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"desired_predictor": np.ones((6, 1))}, InputError, "6 rows, the records 7 features"),
        ({"desired_predictor": np.zeros((7, 1))}, InputError, "same for every record"),
        ({"desired_predictor": np.full((7, 1), np.inf)}, InputError, "not finite"),
        ({"utility_budget": -1.0}, OptionError, "utility_budget is -"),
        ({"ridge": np.nan}, OptionError, "ridge"),
        ({"budget": "each"}, OptionError, "budget is 'each'"),
    ],
)
def test_fit__refuses_bad_input(changes, kind, match):
    with pytest.raises(kind, match=match):
        fit_null_space_cleaner(make_records(), **{"utility_budget": 0.1, **changes})


def test_fit__needs_labels_and_finite_features():
    x = make_features()
    with pytest.raises(InputError, match="no desired variable"):
        fit_null_space_cleaner(Records(x), utility_budget=0.1)
    x[5, 2] = np.nan
    with pytest.raises(InputError, match="1 of 240 training records"):
        fit_null_space_cleaner(Records(x, desired=x[:, 0]), utility_budget=0.1)


def test_apply__counts_records_that_are_not_finite_and_features_that_do_not_fit():
    cleaner = NullSpaceCleaner.from_predictor(np.ones(3), utility_budget=0.5)
    x = np.ones((6, 3))
    x[1, 2], x[4, 0] = np.inf, np.nan
    with pytest.raises(InputError, match="2 of 6 records"):
        cleaner.apply(x)
    with pytest.raises(InputError, match=r"shape \(6, 2\) do not fit a map of 3"):
        cleaner.apply(x[:, :2])


def test_more_labels_than_features__leave_nothing_to_remove_but_the_budget():
    rng = np.random.default_rng(0)
    predictor, x = rng.normal(size=(3, 5)), rng.normal(size=(20, 3))
    with pytest.warns(PrivacyWarning, match="determine the whole record"):
        cleaner = NullSpaceCleaner.from_predictor(predictor, utility_budget=1e-6)
    assert cleaner.rank == 3
    np.testing.assert_allclose(cleaner.apply(x), x, atol=1e-2)


def test_fit__warns_where_a_variable_is_both_desired_and_confidential():
    records = make_records()
    column = Column("same")
    records._schema = ShardSchema(7, (column, Column("b")), (column, Column("c")))
    with pytest.warns(PrivacyWarning, match="share same"):
        fit_null_space_cleaner(records, utility_budget=0.1)


def test_adversary__succeeds_on_raw_and_fails_on_released_records():
    rng = np.random.default_rng(7)
    x = rng.normal(size=(2000, 10))
    secret = x @ rng.normal(size=10)
    desired = x[:, 0] + x[:, 1]
    cleaner = fit_null_space_cleaner(Records(x[:1000], desired=desired[:1000]), utility_budget=0.01)

    def explained(features):
        coordinates = np.column_stack([features, np.ones(len(features))])
        fitted = np.linalg.lstsq(coordinates[:1000], secret[:1000], rcond=1e-10)[0]
        rest = secret[1000:] - coordinates[1000:] @ fitted
        return 1 - rest.var() / secret[1000:].var()

    assert explained(x) > 0.999
    assert explained(cleaner.apply(x)) < np.corrcoef(desired, secret)[0, 1] ** 2 + 0.05
    assert explained(cleaner.apply(x)) < 0.5
