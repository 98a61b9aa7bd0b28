"""From shards to predictors where labels are missing, records weigh, or features nearly depend."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe.errors import RankError
from privpipe.numerics.moments import measure_scale
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.predictors import fit_predictor, summarise_design
from tests.sanitizers.xu_records import make_features, make_labels

ROLES = ("desired", "confidential")


def make_holes(n_records=240):
    """Features, labels missing apart and together, and weights that follow no pattern of these."""
    x = make_features(n_records)
    desired, secret = make_labels(x)
    desired[::5, 1], secret[::4, 0] = np.nan, np.nan  # every 20th record has neither whole
    return x, desired, secret, np.arange(n_records) % 7 + 1.0


def add_twin(x):
    """Another feature that hardly differs from the first: too near for co-moments."""
    return np.column_stack([x, x[:, 0] + 1e-7 * np.random.default_rng(0).normal(size=len(x))])


def fit(records, *, with_intercept=True):
    moments = records.reduce(
        lambda shard: summarise_design(
            shard, schema=records.schema, coding="zero_one", roles=("desired",)
        )
    )
    return fit_predictor(
        records,
        "desired",
        moments=moments,
        coding="zero_one",
        ridge=0.0,
        with_intercept=with_intercept,
    )


def take_onehot(n_classes, n_records, seed):
    """One column per class: they add up to one, like the intercept."""
    return np.eye(n_classes)[np.random.default_rng(seed).integers(0, n_classes, n_records)]


@pytest.mark.parametrize("n_records", [60, 2000])
@pytest.mark.parametrize("n_classes", [2, 3, 4, 20])
def test_fit_predictor__refuses_the_columns_of_a_category_on_every_processor(n_classes, n_records):
    for seed in range(4):
        x = take_onehot(n_classes, n_records, seed)
        y = x[:, :1] + np.random.default_rng(seed).normal(size=(n_records, 1))
        with pytest.raises(RankError, match=r"[123] of"):  # small samples leave classes out
            fit(Records(x, desired=y, n_shards=3))


def test_fit_predictor__takes_features_that_nearly_depend():
    x = make_features()
    near = np.column_stack([x, x[:, 0] + 1e-10 * np.random.default_rng(0).normal(size=len(x))])
    desired, _ = make_labels(x)
    assert fit(Records(near, desired=desired, n_shards=3)).solver == "tsqr"


@pytest.mark.parametrize("weights", [None, 1.3])
def test_summarise_design__sees_that_a_constant_is_constant(weights):
    """A sum of 200,000 times .1 is off by 1e-12 of itself, by another amount for each kernel."""
    x = np.column_stack([np.full(200_000, 0.1), np.arange(200_000) % 7])
    weighted = None if weights is None else np.full(len(x), weights)
    records = Records(x, desired=x[:, 1:], weights=weighted, n_shards=2)
    moments = records.reduce(
        lambda shard: summarise_design(
            shard, schema=records.schema, coding="zero_one", roles=("desired",)
        )
    ).of_role(None)
    assert moments.mean[0] == pytest.approx(0.1, rel=1e-15)
    assert moments.scatter[0, 0] < 1e-25
    assert measure_scale(moments, 2, with_intercept=True)[0] == 1


@pytest.mark.parametrize(("roles", "n_expected"), [((), 240), (ROLES, 228), (ROLES[1:], 180)])
def test_summarise_design__knows_features_of_records_with_some_label_asked_for(roles, n_expected):
    x, desired, secret, _ = make_holes()
    records = Records(x, desired=desired, confidential=secret)
    found = records.reduce(
        lambda shard: summarise_design(shard, schema=records.schema, coding="zero_one", roles=roles)
    ).of_role(None)
    labelled = {"desired": ~np.isnan(desired[:, 1]), "confidential": ~np.isnan(secret[:, 0])}
    rows = np.any([labelled[role] for role in roles], axis=0) if roles else slice(None)
    assert found.count == n_expected
    np.testing.assert_allclose(found.mean, x[rows].mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("change", [lambda x: x, add_twin], ids=["co-moments", "tsqr"])
def test_fit_predictor__weighs_the_records_that_have_their_labels(change):
    x, desired, _, weights = make_holes()
    x, kept = change(x), np.flatnonzero(~np.isnan(desired[:, 1]))
    repeated = np.repeat(kept, weights[kept].astype(int))
    found = fit(Records(x, desired=desired, weights=weights, n_shards=3))
    expected = fit(Records(x[repeated], desired=desired[repeated]))
    assert found.solver == expected.solver
    np.testing.assert_allclose(found.predict(x), expected.predict(x), rtol=1e-5, atol=1e-6)


def test_fit_predictor__without_intercept_is_least_squares_through_the_origin():
    x = add_twin(make_features())
    desired, _ = make_labels(x[:, :7])
    found = fit(Records(x, desired=desired, n_shards=3), with_intercept=False)
    assert found.solver == "tsqr"
    best = (x / x.std(axis=0)) @ np.linalg.lstsq(x / x.std(axis=0), desired, rcond=None)[0]
    np.testing.assert_allclose(found.predict(x), best, atol=1e-6)
