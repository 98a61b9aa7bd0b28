"""Only the target: what is released, that nothing else is, and what follows no record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from privpipe import Records, fit_target_only
from privpipe.capabilities import FollowsTarget
from privpipe.errors import InputError, LeftOutWarning
from privpipe.protocols import Column
from privpipe.sanitizers.null_space.target_only import TargetOnlyOptions

EQUALISED = TargetOnlyOptions(variant="equalised_odds")


def draw(n: int = 600, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Records of three classes along two directions, and a number along a third."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6))
    kinds = np.argmax(x[:, :3] + 0.1 * rng.normal(size=(n, 3)), axis=1)
    return x, kinds


def test_apply__is_the_class_of_the_largest_prediction() -> None:
    x, kinds = draw()
    fitted = fit_target_only(Records(x, desired=np.array(["a", "b", "c"])[kinds]))
    released = fitted.apply(x)
    assert released.shape == (600, 3)
    assert (released.argmax(axis=1) == kinds).mean() > 0.85
    scores = x @ fitted.predictor + fitted.intercept
    np.testing.assert_array_equal(released, np.eye(3)[scores.argmax(axis=1)])
    np.testing.assert_array_equal(fitted.apply(x[3]), released[3])


def test_apply__leaves_classes_to_a_linear_model() -> None:
    """Six classes as one number would be in no order; HAR's activities were read at .35."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(3000, 8))
    kinds = np.argmax(x[:, [3, 0, 5, 1, 4, 2]] + 0.1 * rng.normal(size=(3000, 6)), axis=1)
    released = fit_target_only(Records(x, desired=kinds.astype(str))).apply(x)
    design = np.column_stack([released, np.ones(3000)])
    weights = np.linalg.lstsq(design[:1500], np.eye(6)[kinds[:1500]], rcond=None)[0]
    assert ((design[1500:] @ weights).argmax(axis=1) == kinds[1500:]).mean() > 0.8


def test_apply__of_an_earlier_model_is_what_it_was() -> None:
    """One column for each target, a class as its code, beside a number and two classes."""
    x, kinds = draw()
    two = np.where(x[:, 3] > 0, "no", "yes")
    targets = {"kind": np.array(["a", "b", "c"])[kinds], "number": x[:, 4], "two": two}
    now = fit_target_only(Records(x, desired=pd.DataFrame(targets)))
    assert now.n_features_out == now.apply(x).shape[1] == 5
    then = replace(now, is_class=np.array([1, 0, 1]))
    assert then.n_features_out == then.apply(x).shape[1] == 3
    np.testing.assert_array_equal(then.apply(x)[:, 0], now.apply(x)[:, :3].argmax(axis=1))
    np.testing.assert_array_equal(then.apply(x)[:, 1:], now.apply(x)[:, 3:])


def test_apply__bins_are_about_equally_frequent_and_edges_are_of_no_record() -> None:
    x, _ = draw(4000)
    y = 3.0 + x @ np.arange(6.0) + np.random.default_rng(1).normal(size=4000)
    fitted = fit_target_only(Records(x, desired=y, n_shards=3), TargetOnlyOptions(n_bins=8))
    bins = fitted.apply(x)[:, 0]
    shares = np.bincount(bins.astype(int), minlength=8) / len(bins)
    assert np.abs(shares - 1 / 8).max() < 0.02
    number = fit_target_only(Records(x, desired=y)).apply(x)[:, 0]
    assert np.corrcoef(number, y)[0, 1] > 0.95
    assert not np.isin(fitted.edges, x @ fitted.predictor + fitted.intercept).any()


def test_apply__reveals_nothing_of_a_record_beside_its_prediction() -> None:
    """Low-order digits of numbers: records that differ off the predictor are released alike."""
    x, _ = draw()
    y = x[:, 0] - x[:, 1]
    fitted = fit_target_only(Records(x, desired=y))
    assert isinstance(fitted, FollowsTarget)
    basis = np.linalg.svd(fitted.predictor.T)[2][1:]
    moved = x + np.random.default_rng(2).normal(size=(600, 5)) @ basis
    same = fitted.predict_target(x) == fitted.predict_target(moved)
    assert same.mean() > 0.99  # but where a sum lies at the boundary of a step
    rows = same[:, 0]
    assert (fitted.apply(x)[rows].tobytes()) == fitted.apply(moved)[rows].tobytes()
    made = fitted.release_target(fitted.predict_target(x), x.dtype)
    assert made.tobytes() == fitted.apply(x).tobytes()


def test_fit__is_the_same_however_records_are_cut() -> None:
    x, kinds = draw()
    one, other = (
        fit_target_only(Records(x, desired=kinds.astype(str), n_shards=n)) for n in (1, 7)
    )
    np.testing.assert_allclose(one.predictor, other.predictor, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(one.apply(x), other.apply(x))


def test_fit__without_a_target_is_refused() -> None:
    x, _ = draw()
    with pytest.raises(InputError, match="desired"):
        fit_target_only(Records(x, confidential=x[:, 0]))


def draw_unequal(n: int = 4000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Records, a target, and a secret that is in the features of the target."""
    rng = np.random.default_rng(8)
    secret = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 6)) + 100
    x[:, 0] += 2 * (secret == 1)
    x[:, 1] -= 2 * (secret == 2)
    target = x[:, :3].sum(axis=1) - 300 + 2 * rng.normal(size=n)
    return x, target, secret


def list_targets(score: np.ndarray) -> dict[str, np.ndarray]:
    """A number, two classes, and three."""
    return {
        "number": score,
        "two": np.where(score > 1, "high", "low"),
        "three": np.array(["a", "b", "c"])[np.digitize(score, [0.0, 2.0])],
    }


def regress_out(values: np.ndarray, known: np.ndarray) -> np.ndarray:
    design = np.column_stack([known, np.ones(len(values))])
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


@pytest.mark.parametrize("kind", ["number", "two", "three"])
def test_equalised_odds__no_prediction_goes_with_the_secret_beyond_the_target(kind: str) -> None:
    x, score, secret = draw_unequal()
    target = list_targets(score)[kind]
    records = Records(x, desired=target, confidential=secret.astype(str), n_shards=3)
    known = score[:, None] if kind == "number" else target[:, None] == np.unique(target)
    left = regress_out(np.eye(3)[secret], known)
    for options, most in ((TargetOnlyOptions(), 1.0), (EQUALISED, 1e-10)):
        fitted = fit_target_only(records, options)
        scores = x @ fitted.predictor
        goes = np.corrcoef(scores.T, left.T)[: scores.shape[1], scores.shape[1] :]
        assert np.abs(goes).max() < most
        assert (np.abs(goes).max() > 0.1) == (most == 1.0)


def test_equalised_odds__is_the_best_of_such_predictors() -> None:
    """The same squares and ridge, minimised within the directions that are left."""
    x, score, secret = draw_unequal()
    records = Records(x, desired=score, confidential=secret.astype(str))
    fitted = fit_target_only(records, EQUALISED)
    z = (x - x.mean(axis=0)) / x.std(axis=0)
    cross = z.T @ regress_out(np.eye(3)[secret], score[:, None]) / len(z)
    basis = np.linalg.svd(cross.T)[2][2:].T  # two directions: three indicators add up to one
    gram = basis.T @ (z.T @ z / len(z) + 0.01 * np.eye(6)) @ basis
    best = basis @ np.linalg.solve(gram, basis.T @ z.T @ (score - score.mean()) / len(z))
    np.testing.assert_allclose(fitted.predictor[:, 0] * x.std(axis=0), best, atol=1e-9)
    assert fitted.predict_target(x).mean() == pytest.approx(score.mean(), abs=1e-6)


def test_equalised_odds__rates_of_classes_differ_less_and_the_target_is_kept() -> None:
    x, score, secret = draw_unequal(20_000)
    target = np.where(score > np.median(score), "yes", "no")
    records = Records(x[:10_000], desired=target[:10_000], confidential=secret[:10_000].astype(str))
    gaps, hits = [], []
    for options in (TargetOnlyOptions(), EQUALISED):
        said = fit_target_only(records, options).apply(x[10_000:])[:, 0]
        true, who = target[10_000:] == "yes", secret[10_000:]
        rates = [[said[(true == t) & (who == k)].mean() for k in range(3)] for t in (0, 1)]
        gaps.append(np.ptp(rates, axis=1).max())
        hits.append((said == true).mean())
    assert gaps[0] > 0.3 > 0.1 > gaps[1]
    assert hits[1] > 0.62  # guessing has half


def test_equalised_odds__changes_nothing_where_the_target_says_it_all() -> None:
    x, score, _ = draw_unequal()
    target = list_targets(score)["three"]
    records = Records(x, desired=target, confidential=np.where(target == "a", "low", "high"))
    same, usual = fit_target_only(records, EQUALISED), fit_target_only(records)
    np.testing.assert_allclose(same.predictor, usual.predictor, rtol=1e-12)


def test_equalised_odds__without_labels_of_both_is_refused() -> None:
    x, score, _ = draw_unequal()
    with pytest.raises(InputError, match="confidential"):
        fit_target_only(Records(x, desired=score), EQUALISED)
    hidden = np.full(len(x), np.nan)
    with pytest.warns(LeftOutWarning), pytest.raises(InputError, match="0 training records have"):
        fit_target_only(Records(x, desired=score, confidential=hidden), EQUALISED)


@pytest.mark.parametrize("kind", ["number", "two", "three"])
def test_equalised_odds__of_which_only_rounding_is_left_is_refused(kind: str) -> None:
    """Twelve secret classes say all of five features: rounding was the plain prediction again."""
    rng = np.random.default_rng(3)
    secret = rng.integers(0, 12, 3000)
    x = 2 * rng.normal(size=(12, 5))[secret] + rng.normal(size=(3000, 5))
    target = list_targets(x.sum(axis=1) + rng.normal(size=3000))[kind]
    with pytest.raises(InputError, match="Nothing is left of a target"):
        fit_target_only(Records(x, desired=target, confidential=secret.astype(str)), EQUALISED)


def test_equalised_odds__leaves_a_class_that_no_training_record_has() -> None:
    x, score, secret = draw_unequal()
    target = list_targets(score)["three"]
    known = Records(x, desired=target, confidential=secret.astype(str))
    schema = replace(known.schema, desired=(Column("kind", 4),))
    records = Records.of_shard(known.reduce(lambda shard: shard), schema)
    fitted = fit_target_only(records, EQUALISED)
    assert np.isfinite(fitted.predictor).all()
    assert fitted.apply(x).sum(axis=0)[3] == 0


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_equalised_odds__says_each_class_about_as_often(share: float) -> None:
    """A narrower prediction is hardly ever above a half: one class was said of all records."""
    x, score, secret = draw_unequal()
    target = np.where(score > np.quantile(score, 1 - share), "yes", "no")
    records = Records(x, desired=target, confidential=secret.astype(str))
    said = [fit_target_only(records, one).apply(x).mean() for one in (None, EQUALISED)]
    assert said[1] == pytest.approx(said[0], abs=0.04)


def test_equalised_odds__of_labels_that_say_nothing_are_refused() -> None:
    x, score, secret = draw_unequal()
    with pytest.raises(InputError, match="No confidential variable varies"):
        fit_target_only(Records(x, desired=score, confidential=["a"] * len(x)), EQUALISED)
    few = np.where(np.arange(len(x)) < 30, secret, np.nan)
    with pytest.warns(LeftOutWarning), pytest.raises(InputError, match="30 training records"):
        fit_target_only(Records(x, desired=score, confidential=few), EQUALISED)
