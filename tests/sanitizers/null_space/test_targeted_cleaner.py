"""Algorithm 2: the printed knapsack in a sound basis, its variants, and where it is algorithm 1."""

from __future__ import annotations

import numpy as np
import pytest

from flows.reproduce.printed_cleaner import PrintedCleaner
from privpipe.errors import InputError, OptionError, PrivacyWarning
from privpipe.records.memory import Records
from privpipe.sanitizers.null_space.algorithms import (
    NullSpaceCleaner,
    TargetedCleaner,
    TargetedOptions,
    fit_targeted,
    fit_targeted_cleaner,
)
from tests.oracles import clean_targeted, exact_loss
from tests.sanitizers.xu_records import make_features, make_labels, make_records


def make_problem(n=10, n_desired=3, n_confidential=4, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n, n_desired)),
        rng.normal(size=(n, n_confidential)),
        rng.normal(size=(60, n)),
    )


@pytest.mark.parametrize("budget", [0.0, 0.02, 1.0, 1e3])
def test_null_first__is_the_knapsack_of_figure_3(budget):
    desired, secret, x = make_problem()
    cleaner = TargetedCleaner.from_predictors(desired, secret, utility_budget=budget)
    expected = clean_targeted(desired, secret, x, budget)
    np.testing.assert_allclose(cleaner.apply(x), expected, atol=2e-6)  # the grid's step


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_one_desired_label__is_algorithm_1(budget):
    desired, secret, x = make_problem(n_desired=1)
    first = NullSpaceCleaner.from_predictor(desired, utility_budget=budget)
    second = TargetedCleaner.from_predictors(desired, secret, utility_budget=budget)
    np.testing.assert_allclose(second.apply(x), first.apply(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", ["null_first", "simultaneous"])
def test_variants__hide_more_than_algorithm_1_at_the_same_budget(variant):
    desired, secret, x = make_problem(n_desired=4, n_confidential=2)
    first = NullSpaceCleaner.from_predictor(desired, utility_budget=0.5)
    second = TargetedCleaner.from_predictors(desired, secret, utility_budget=0.5, variant=variant)

    def privacy(cleaner):
        return (((cleaner.apply(x) - x) @ secret) ** 2).sum(axis=1).mean()

    if variant == "null_first":
        # What both remove first is the same; compare what the budget bought.
        base = NullSpaceCleaner.from_predictor(desired, utility_budget=0.0).apply(x)
        bought = [(((c.apply(x) - base) @ secret) ** 2).sum() for c in (first, second)]
        assert bought[1] > bought[0]
    else:
        assert privacy(second) != pytest.approx(privacy(first), rel=1e-3)
    assert (exact_loss(desired, x, second.apply(x)) <= 0.5).all()


def test_simultaneous__is_optimal_for_theorem_4_in_its_basis():
    desired, secret, x = make_problem(n_desired=4, n_confidential=6, n=9)
    cleaner = TargetedCleaner.from_predictors(
        desired, secret, utility_budget=0.3, variant="simultaneous"
    )
    b = x @ cleaner.encoder
    rng = np.random.default_rng(1)

    def privacy(kept):
        return (((kept @ cleaner.lift.T - x) @ secret) ** 2).sum(axis=1)

    best = privacy(cleaner.apply(x) @ cleaner.encoder)
    for _ in range(50):
        alpha = rng.uniform(size=b.shape) * rng.choice([0, 1], size=b.shape)
        cost = ((alpha * b) ** 2).sum(axis=1)
        alpha *= np.minimum(1, np.sqrt(0.3 / np.maximum(cost, 1e-12)))[:, None]
        assert (privacy((1 - alpha) * b) <= best * (1 + 1e-5)).all()  # the grid's step


@pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")
def test_fit__takes_both_predictors_from_one_pass_each_from_its_own_labels():
    x = make_features()
    desired, secret = make_labels(x)
    holes = secret.copy()
    holes[::3, 0] = np.nan
    records = Records(x, desired=desired, confidential=holes, n_shards=4)
    passes = []
    reduce = records.reduce
    records.reduce = lambda summarise: passes.append(1) or reduce(summarise)
    cleaner = fit_targeted_cleaner(records, utility_budget=0.1)
    assert len(passes) == 1
    design = np.column_stack([x, np.ones(len(x))])
    known = ~np.isnan(holes[:, 0])
    for found, rows, y in (
        (cleaner.predictor, slice(None), desired),
        (cleaner.confidential, known, secret),
    ):
        best = np.linalg.lstsq(design[rows], y[rows], rcond=None)[0]
        np.testing.assert_allclose(found, best[:7], rtol=1e-8)


def test_fit__augmented_cleans_along_the_ones():
    cleaner = fit_targeted_cleaner(make_records(), utility_budget=0.1, intercept="augmented")
    x = make_features()
    assert cleaner.confidential.shape == cleaner.predictor.shape == (8, 2)
    seen = np.column_stack([x, np.ones(len(x))])
    assert (exact_loss(cleaner.predictor, seen, cleaner.apply(x)) <= 0.1).all()


def test_fit_targeted__reads_options_and_files():
    options = TargetedOptions(
        name="null_space_targeted", utility_budget=0.2, variant="simultaneous", centre=False
    )
    files = {
        "predictor": {"coefficients": np.eye(7)[:, :2]},
        "confidential_predictor": {"coefficients": np.eye(7)[:, 1:4]},
    }
    cleaner = fit_targeted(Records(make_features()), options, **files)
    assert (cleaner.variant, cleaner.solver) == ("simultaneous", "given")
    np.testing.assert_array_equal(cleaner.confidential, np.eye(7)[:, 1:4])


def test_printed__warns_keeps_the_budget_and_protects_next_to_nothing():
    desired, secret, x = make_problem(n_desired=2, n_confidential=2)
    with pytest.warns(PrivacyWarning, match="protects next to nothing"):
        cleaner = PrintedCleaner.from_predictors(desired, secret, utility_budget=0.1)
    released = cleaner.apply(x)
    assert (exact_loss(desired, x, released) <= 0.1).all()
    assert "reproductions only" in cleaner.guarantee.assumptions
    sound = TargetedCleaner.from_predictors(desired, secret, utility_budget=0.1).apply(x)

    def left(features):
        fitted = np.linalg.lstsq(features, x @ secret, rcond=1e-10)[0]
        return np.var(x @ secret - features @ fitted) / np.var(x @ secret)

    assert left(released) < 0.05
    assert left(sound) > 0.3


def test_printed__is_no_option_of_the_method():
    with pytest.raises(OptionError, match="variant"):
        fit_targeted_cleaner(make_records(), utility_budget=0.1, variant="printed")


def test_same_predictor__is_allowed_and_warned_of():
    desired, _, x = make_problem()
    with pytest.warns(PrivacyWarning, match="no privacy is possible"):
        cleaner = TargetedCleaner.from_predictors(desired, desired[:, :1], utility_budget=0.1)
    assert (exact_loss(desired, x, cleaner.apply(x)) <= 0.1).all()


@pytest.mark.parametrize(
    ("changes", "kind", "match"),
    [
        ({"confidential_predictor": np.ones((4, 1))}, InputError, "4 rows, not 10"),
        ({"confidential_predictor": np.zeros((10, 1))}, InputError, "nothing to protect from"),
        ({"confidential_predictor": np.full(10, np.nan)}, InputError, "not finite"),
        ({"variant": "best"}, OptionError, "variant is 'best'"),
        ({"variant": "simultaneous", "representative": "likely"}, OptionError, "itself"),
        ({"utility_budget": -0.1}, OptionError, "utility_budget is -"),
        ({"intercept": np.ones(4)}, InputError, "intercept"),
    ],
)
def test_from_predictors__refuses_bad_input(changes, kind, match):
    desired, secret, _ = make_problem()
    arguments = {
        "desired_predictor": desired,
        "confidential_predictor": secret,
        "utility_budget": 0.1,
        **changes,
    }
    with pytest.raises(kind, match=match):
        TargetedCleaner.from_predictors(**arguments)


def test_fit__needs_confidential_labels():
    x = make_features()
    with pytest.raises(InputError, match="no confidential variable"):
        fit_targeted_cleaner(Records(x, desired=x[:, 0]), utility_budget=0.1)
