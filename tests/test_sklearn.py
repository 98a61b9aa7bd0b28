"""The scikit-learn adapter: scikit-learn's own checks, and the same map as the fit of records."""

from __future__ import annotations

import pickle
from functools import partial

import dask.array as da
import dask.dataframe
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

import privpipe.sklearn as module
from privpipe.errors import InputError, LeftOutWarning, OptionError
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.null_space.algorithms import fit_null_space_cleaner
from privpipe.sklearn import Leace, PcaFilter, RecordSanitizer, TargetOnly

EXACT = {"utility_budget": 0.0, "ridge": 1e-3}

RNG = np.random.default_rng(5)
X = RNG.normal(size=(80, 6))
DESIRED = X[:, 0] - 2 * X[:, 1] + 0.1 * RNG.normal(size=80)


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")  # its classes are integers
@pytest.mark.filterwarnings("ignore::privpipe.errors.PrivacyWarning")  # some have one feature
@parametrize_with_checks(
    [
        RecordSanitizer(options=EXACT),
        RecordSanitizer(options={**EXACT, "intercept": "augmented"}),
        RecordSanitizer(options={**EXACT, "utility_budget": 0.01}),
    ]
)
def test_record_sanitizer__passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


REQUIRED = {
    "null_space": {"utility_budget": 0.01, "ridge": 1e-3},
    "null_space_targeted": {"utility_budget": 0.01, "ridge": 1e-3},
    # Some checks have two features and three classes.
    "minimax": {"inner_tolerance": 1e-4, "n_filtered": 1},
    "pca": {"n_filtered": 1},
    "rand": {"n_filtered": 1},
}
UNSUITED = {
    "privacy_mapping": "reads attributes",
    "noisy": "draws at random",
    "minimax_own": "is of a width of its own",
}
EVERY = [
    name for name, method in METHODS.items() if name not in UNSUITED and method.releases == "rows"
]


def test_transformers__are_those_of_all_methods_that_fit_a_matrix():
    assert sorted(module.TRANSFORMERS.values()) == sorted(EVERY)
    for name, method in module.TRANSFORMERS.items():
        made = getattr(module, name)(**REQUIRED.get(method, {}))
        assert clone(made).get_params() == made.get_params()
        assert made._read_options()[0].name == method
    with pytest.raises(OptionError, match="no option 'utility_budgt', did you mean 'utility_bu"):
        module.NullSpaceCleaner(utility_budgt=1)


@parametrize_with_checks(
    [
        getattr(module, name)(**REQUIRED.get(method, {}), confidential_columns=[0])
        for name, method in module.TRANSFORMERS.items()
    ]
)
@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")  # its classes are integers
@pytest.mark.filterwarnings("ignore::privpipe.errors.PrivacyWarning")  # some have one feature
def test_transformer_of_each_method__passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_confidential_columns__are_learnt_from_and_not_released():
    frame = pd.DataFrame(X, columns=[*"abcdef"])
    cleaner = module.Leace(confidential_columns=["e", 1]).set_output(transform="pandas")
    released = cleaner.fit_transform(frame, DESIRED)
    assert [*released] == [*"acdf"]
    told = module.Leace().fit(X[:, [0, 2, 3, 5]], DESIRED, confidential=X[:, [4, 1]])
    np.testing.assert_array_equal(released, told.transform(X[:, [0, 2, 3, 5]]))
    # Nothing linear of them is left.
    left = LinearRegression().fit(released, X[:, [1, 4]])
    assert left.score(released, X[:, [1, 4]]) < 1e-10
    arrays = da.from_array(X, chunks=(30, 6)), da.from_array(DESIRED, chunks=30)
    lazy = module.Leace(confidential_columns=[4, 1]).fit(*arrays).transform(arrays[0])
    np.testing.assert_allclose(lazy.compute(), released, atol=1e-9)
    with pytest.raises(OptionError, match="given twice"):
        cleaner.fit(frame, DESIRED, confidential=X[:, 0])
    with pytest.raises(OptionError, match="no confidential column 'ee', did you mean 'e'"):
        module.Leace(confidential_columns=["ee"]).fit(frame, DESIRED)
    with pytest.raises(InputError, match="n_features = 2 none is left"):
        module.Leace(confidential_columns=[0, 1]).fit(X[:, :2], DESIRED)


def test_grid_search__chooses_a_budget_by_privacy_with_routed_variables():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(400, 6))
    secret = np.where(x[:, 2] + 0.2 * rng.normal(size=400) > 0, "f", "m")
    target = x[:, 0] - x[:, 1]
    with config_context(enable_metadata_routing=True):
        cleaner = module.NullSpaceCleaner(ridge=1e-3)
        scorer, budgets = module.scorers["privacy"], {"utility_budget": [0.0, 50.0]}
        search = GridSearchCV(cleaner, budgets, scoring=scorer, cv=3)
        search.fit(x, target, confidential=secret)
    # A large budget removes more than the null space: less of the secret is left.
    assert search.best_params_ == {"utility_budget": 50.0}
    raw = module.score_privacy(FunctionTransformer(), x, target, secret)
    assert raw < search.best_score_ <= 0


def test_scorers__of_a_search_say_what_is_left_of_both_variables():
    """Together, of pipelines that predict too, and in words where routing is off."""
    rng = np.random.default_rng(8)
    x = rng.normal(size=(400, 6))
    secret = np.where(x[:, 2] + x[:, 0] + 0.2 * rng.normal(size=400) > 0, "f", "m")
    target = x[:, 0] - x[:, 1] > 0
    grid = {"utility_budget": [1e-3, 10.0]}
    search = partial(GridSearchCV, scoring=module.scorers, refit="privacy", cv=3)
    with config_context(enable_metadata_routing=True):
        found = search(module.NullSpaceCleaner(), grid).fit(x, target, confidential=secret)
        pipeline = make_pipeline(module.NullSpaceCleaner(), LogisticRegression())
        named = {f"nullspacecleaner__{name}": values for name, values in grid.items()}
        through = search(pipeline, named).fit(x, target, confidential=secret)
        # Its fit needs the variable as well.
        targeted = search(module.TargetedNullSpaceCleaner(), grid)
        targeted.fit(x, target, confidential=secret)
    assert targeted.best_score_ <= 0
    for one in (found, through):
        (least, most), (kept, lost) = (
            one.cv_results_[f"mean_test_{name}"] for name in ("privacy", "utility")
        )
        assert least < most <= 0
        assert lost < 0.7 < 0.9 < kept
    with pytest.raises(OptionError, match="no confidential variable") as off:
        search(module.NullSpaceCleaner(), grid, error_score="raise").fit(x, target)
    assert "enable_metadata_routing" in off.value.remedy


def test_pickle__holds_no_training_record():
    x = np.random.default_rng(9).normal(size=(2_000, 6)) + 0.123456789
    fitted = module.NullSpaceCleaner(utility_budget=0.01).fit(x, x[:, 0])
    content = pickle.dumps(fitted)
    again = pickle.loads(content)
    np.testing.assert_array_equal(again.transform(x), fitted.transform(x))
    assert len(content) < 8_000
    assert not [row for row in x if row.tobytes() in content]


def test_fit__a_method_of_attributes_is_not_for_matrices():
    with pytest.raises(OptionError, match="no row-wise method 'privacy_mapping'"):
        RecordSanitizer("privacy_mapping").fit(X, DESIRED)


@pytest.mark.parametrize("budget", [0.0, 0.3])
def test_fit__learns_the_map_that_fit_null_space_cleaner_learns(budget):
    ours = RecordSanitizer(options={"utility_budget": budget}).fit(X, DESIRED)
    theirs = fit_null_space_cleaner(Records(X, desired=DESIRED), utility_budget=budget)
    np.testing.assert_array_equal(ours.transform(X), theirs.apply(X))
    assert ours.guarantee_ == theirs.guarantee


def test_fit__classes_may_be_text():
    towns = np.where(X[:, 2] > 0, "Ulm", "Bern")
    ours = RecordSanitizer(options=EXACT)
    found = ours.fit(X, towns).transform(X)
    np.testing.assert_array_equal(found, ours.fit(X, towns.astype(object)).transform(X))
    truth = fit_null_space_cleaner(Records(X, desired=towns), **EXACT)
    np.testing.assert_array_equal(found, truth.apply(X))


def test_transform__keeps_names_and_goes_into_pipelines():
    frame = pd.DataFrame(X, columns=list("abcdef"))
    cleaner = RecordSanitizer(options=EXACT).set_output(transform="pandas")
    assert list(cleaner.fit_transform(frame, DESIRED).columns) == list("abcdef")
    model = make_pipeline(clone(cleaner), LinearRegression()).fit(frame, DESIRED)
    raw = LinearRegression().fit(frame, DESIRED)
    assert model.score(frame, DESIRED) == pytest.approx(raw.score(frame, DESIRED), abs=1e-6)
    wider = RecordSanitizer(options={**EXACT, "intercept": "augmented"}).fit(frame, DESIRED)
    assert list(wider.get_feature_names_out()) == [f"released_{j}" for j in range(7)]


def test_fit__wrong_options_are_told_with_what_was_chosen():
    with pytest.raises(OptionError, match="no row-wise method 'nul_space', did you mean 'null_sp"):
        RecordSanitizer("nul_space").fit(X, DESIRED)
    with pytest.raises(OptionError, match="utility_budget: Field required"):
        RecordSanitizer().fit(X, DESIRED)
    with pytest.raises(OptionError, match=r"utility_budget is -12\.0: Input should be"):
        RecordSanitizer(options={"utility_budget": -12.0}).fit(X, DESIRED)
    # A URL may hold a password.
    options = {"utility_budget": 1, "rule": "s3://key:secret@bucket/x"}
    with pytest.raises(OptionError, match="rule: Input should be") as caught:
        RecordSanitizer(options=options).fit(X, DESIRED)
    assert "secret" not in f"{caught.value} {caught.value.__context__!r}"


@pytest.mark.parametrize("x", [["77.125", "secret"], [["77.125", "secret"]] * 3, [77.125, 3.0]])
def test_fit__records_that_do_not_fit_are_told_without_values(x):
    fitted = RecordSanitizer(options=EXACT).fit(X[:, :2], DESIRED)
    for refused in (lambda: clone(fitted).fit(x, np.zeros(len(x))), lambda: fitted.transform(x)):
        with pytest.raises(InputError) as caught:
            refused()
        assert not [
            v for v in ("77", "secret") if v in f"{caught.value} {caught.value.__context__}"
        ]


def test_fit__a_missing_role_is_told(monkeypatch):
    needy = module.METHODS["null_space"].options
    monkeypatch.setattr(needy, "needs", lambda _: frozenset({"confidential"}))
    with pytest.raises(InputError, match="'null_space' needs confidential"):
        RecordSanitizer(options=EXACT).fit(X, DESIRED)


def test_record_sanitizer__its_map_knows_the_names_of_the_columns():
    """And the transformer itself refuses columns in another order, as scikit-learn's do."""
    frame = pd.DataFrame(X, columns=[*"abcdef"])
    cleaner = RecordSanitizer(options=EXACT).fit(frame, DESIRED)
    released = cleaner.map_.apply(frame[[*"fedcba"]])[[*"abcdef"]]
    np.testing.assert_array_equal(released, cleaner.transform(frame))
    with pytest.raises(InputError, match="same order"):
        cleaner.transform(frame[[*"fedcba"]])
    with pytest.raises(InputError, match="lack 'a'"):
        cleaner.map_.apply(frame.rename(columns={"a": "z"}))


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")  # classes 0 .. 3
@pytest.mark.parametrize("table", ["frame", "text", "integers", "lazy"])
def test_confidential_columns__are_read_as_where_they_are_given_apart(table):
    """Four classes are erased as classes, not as their numbers."""
    random = np.random.default_rng(0)
    kind = random.integers(0, 4, 400)
    x = np.round(
        random.normal(size=(400, 5)) + 2 * np.eye(4, 5)[kind], 1 if table != "integers" else 0
    )
    y = x @ [1.0, 2.0, 0.0, 0.0, 0.5]
    given = pd.DataFrame(x, columns=list("abcde")).assign(kind=kind)
    columns: list[str | int] = ["kind"]
    if table == "text":
        given["kind"] = np.array(list("wxyz"))[kind]
    if table == "integers":
        given, columns = given.to_numpy().astype(int), [5]
    if table == "lazy":
        given, y = dask.dataframe.from_pandas(given, npartitions=3), da.from_array(y, chunks=100)
    eraser = module.Leace(confidential_columns=columns).fit(given, y)
    released = np.asarray(eraser.transform(given))
    classes = np.eye(4)[kind]
    left = (released - released.mean(axis=0)).T @ (classes - classes.mean(axis=0)) / 400
    assert np.abs(left).max() < 1e-12
    assert (released.shape, eraser.n_features_in_) == ((400, 5), 6)
    if table == "lazy":  # by name, in any order, with the confidential column or without it
        again = eraser.transform(given[list("edcba")]).compute()
        np.testing.assert_allclose(again[list("abcde")], released, atol=1e-12)


@pytest.mark.parametrize("columns", [0, "sex", [0.0], [True], [9]])
def test_confidential_columns__that_are_none_are_refused(columns):
    with pytest.raises(OptionError, match="confidential"):
        module.TargetOnly(confidential_columns=columns).fit(X, DESIRED)


def test_transform__a_lazy_array_of_other_columns_is_refused():
    lazy = da.from_array(X, chunks=(40, 6))
    made = module.NullSpaceCleaner(**EXACT, confidential_columns=[0])
    made.fit(lazy, da.from_array(DESIRED, chunks=40))
    made.fit(pd.DataFrame(X, columns=list("abcdef")), DESIRED)
    made.fit(lazy, da.from_array(DESIRED, chunks=40))
    assert not hasattr(made, "feature_names_in_")
    for wrong in (lazy[:, :5], da.concatenate([lazy, lazy], axis=1), lazy[:, 0]):
        with pytest.raises(InputError, match=r"columns|dimensions"):
            made.transform(wrong)


def test_fit__confidential_variables_of_several_kinds_are_each_read_by_itself():
    """Numbers beside text are numbers: as classes, one for each record, they would erase all."""
    several = pd.DataFrame({"age": RNG.normal(size=80), "sex": np.where(X[:, 0] > 0, "m", "f")})
    released = module.Leace().fit(X, DESIRED, confidential=several).transform(X)
    assert released.var(axis=0).min() > 0.01
    some = np.where(X[:, 0] > 0, "k", "l").astype(object)
    some[:8] = None
    with pytest.warns(LeftOutWarning, match="8 of 80 records have no confidential label"):
        module.Leace().fit(X, DESIRED, confidential=some)


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")
def test_scores__of_rare_classes_and_of_whole_numbers():
    cleaner = RecordSanitizer(options=EXACT).fit(X, DESIRED)
    with pytest.raises(InputError, match="has 4 records"):
        module.score_privacy(cleaner, X, DESIRED, np.arange(80) < 4)
    known = np.arange(80) % 4 > 0
    classes = np.where(known, np.where(X[:, 0] > 0, "a", "b"), None)
    of_known = module.score_privacy(cleaner, X[known], DESIRED[known], classes[known])
    assert module.score_privacy(cleaner, X, DESIRED, classes) == of_known
    numbers = np.round(50 + 10 * DESIRED).astype(int)
    for whole in (numbers, numbers - numbers.min()):  # negative ones are never classes
        assert module.score_utility(cleaner, X, whole) > 0.95
    two = np.column_stack([DESIRED > 0, DESIRED > 1])
    assert module.score_utility(cleaner, X, two) > 0.8


def test_fit__what_masks_hide_is_not_read():
    hidden = np.ma.masked_greater(X, 2.5)
    with pytest.raises(InputError):
        RecordSanitizer(options=EXACT).fit(X, DESIRED).map_.apply(hidden)
    with pytest.raises(InputError, match="contains NaN"):
        RecordSanitizer(options=EXACT).fit(X, DESIRED).transform(hidden)
    with pytest.raises(InputError, match="contains NaN"):
        RecordSanitizer(options=EXACT).fit(hidden, DESIRED)
    with pytest.raises(InputError, match="contains NaN"):
        RecordSanitizer(options=EXACT).fit(X, np.ma.masked_greater(DESIRED, 1.0))
    with pytest.raises(InputError, match="Complex data not supported") as refused:
        RecordSanitizer(options=EXACT).fit(X + 1j, DESIRED)
    assert "j" not in str(refused.value)


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")
@pytest.mark.parametrize("kind", ["polars", "arrow", "lists"])
def test_confidential_columns__are_classes_in_every_table(kind):
    """Whole numbers beside others became numbers where the table is none of pandas."""
    rng = np.random.default_rng(3)
    k = rng.integers(0, 3, 300)
    a, b, c = rng.normal(size=(3, 300))
    frame = pd.DataFrame({"a": a + (k == 1), "b": b, "k": k, "c": c})
    make = {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas, "lists": to_lists}[kind]
    columns = [2] if kind == "lists" else ["k"]
    expected = Leace(confidential_columns=["k"]).fit(frame, k > 0).transform(frame)
    given = make(frame)
    released = Leace(confidential_columns=columns).fit(given, k > 0).transform(given)
    np.testing.assert_array_equal(released, expected)


def test_lists__of_numbers_are_no_table():
    """Pandas takes them for a column, and was asked since lists are read column by column."""
    numbers = np.random.default_rng(0).normal(size=40).tolist()
    with pytest.raises(InputError, match="Expected 2D array"):
        RecordSanitizer(options={"utility_budget": 0.1}).fit(numbers, numbers)


def to_lists(frame):
    return [list(row) for row in frame.itertuples(index=False)]


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")
def test_targets__that_are_classes_for_records_are_classes_for_a_fit():
    rng = np.random.default_rng(3)
    x, k = rng.normal(size=(300, 4)), rng.integers(0, 3, 300)
    x[:, 0] += k
    for y in (pd.Series(k, dtype="Int64"), pd.DataFrame({"k": k, "v": x[:, 0]})):
        width = sum(one.n_categories or 1 for one in Records(x, desired=y).schema.desired)
        assert TargetOnly().fit(x, y).transform(x).shape[1] == width


def test_feature_names__of_components_are_not_those_of_columns():
    frame = pd.DataFrame(np.random.default_rng(3).normal(size=(60, 3)), columns=list("abc"))
    fitted = PcaFilter(n_filtered=3).fit(frame, frame["a"] > 0)
    assert fitted.get_feature_names_out().tolist() == ["released_0", "released_1", "released_2"]
