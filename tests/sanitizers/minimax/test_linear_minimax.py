"""Linear minimax filters: optimality, reduced form, monotone Phi, sharding, attacks, bad input."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression

from privpipe import Records
from privpipe.errors import InputError, OptionError
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.minimax import linear_minimax
from privpipe.sanitizers.minimax.baselines import LeastSquaresOptions, fit_least_squares_filter
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from tests.sanitizers.labelled_data import draw_labelled


def _records(n_shards: int = 1, **more: Any) -> Records:
    x, target, private = draw_labelled(400)
    return Records(x, **{"desired": target, "confidential": private, **more}, n_shards=n_shards)


def _column(fitted: Any, name: str) -> np.ndarray:
    return np.asarray(fitted.history[:, fitted.history_columns.index(name)])


def test_fit_minimax_filter__ends_where_the_gradient_vanishes() -> None:
    options = MinimaxOptions(max_iterations=300, tolerance=0.0, inner_tolerance=1e-12, starts=1)
    fitted = fit_minimax_filter(_records(), options)
    assert _column(fitted, "gradient_norm")[-1] < 1e-4 * _column(fitted, "gradient_norm")[0]
    assert fitted.stopped in {"gradient", "progress", "line_search"}


def test_fit_minimax_filter__reduced_form_reaches_the_general_optimum() -> None:
    x, target, private = draw_labelled(300, n_private=2, seed=3)
    classes = target + (x[:, 4] + np.random.default_rng(0).normal(size=300) > 1.5)
    records = Records(x, desired=classes, confidential=private)
    exact = {"regularisation": 1e-9, "max_iterations": 400, "tolerance": 0.0}
    reduced = fit_minimax_filter(records, MinimaxOptions(**exact))
    assert reduced.n_features_out == 2
    with pytest.warns(UserWarning, match="leak to adversaries that are not linear"):
        general = fit_minimax_filter(records, MinimaxOptions(n_filtered=4, **exact))
    assert _column(reduced, "phi")[-1] == pytest.approx(_column(general, "phi")[-1], abs=2e-4)


def test_fit_minimax_filter__finds_the_closed_form_of_least_squares() -> None:
    x, target, private = draw_labelled(300, n_private=2, seed=4)
    records = Records(x, desired=target, confidential=private)
    kinds: dict[str, Any] = {"desired_task": "regression", "confidential_task": "regression"}
    closed = fit_least_squares_filter(records, LeastSquaresOptions(ridge=1e-12, **kinds))
    options = MinimaxOptions(
        regularisation=0.0, max_iterations=500, tolerance=0.0, inner_tolerance=1e-13, **kinds
    )
    found = fit_minimax_filter(records, options)

    def phi(z: np.ndarray) -> float:
        g = np.column_stack([z, np.ones(len(z))])
        share = [
            np.mean((y - g @ np.linalg.lstsq(g, y, rcond=None)[0]) ** 2) / y.var()
            for y in (target, private)
        ]
        return float(10.0 * share[0] - share[1])

    assert closed.n_features_out == found.n_features_out == 1
    assert phi(found.apply(x)) == pytest.approx(phi(closed.apply(x)), abs=1e-6)
    assert _column(found, "phi")[-1] == pytest.approx(phi(closed.apply(x)), abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    tradeoff=st.sampled_from([0.1, 1.0, 10.0]),
    with_intercept=st.booleans(),
    n_private=st.integers(2, 4),
    single_out=st.booleans(),
)
def test_fit_minimax_filter__lowers_phi_at_every_iteration(
    seed: int, tradeoff: float, with_intercept: bool, n_private: int, single_out: bool
) -> None:
    x, target, private = draw_labelled(120, n_private=n_private, seed=seed)
    options = MinimaxOptions(
        tradeoff=tradeoff,
        with_intercept=with_intercept,
        single_out=0.0 if single_out else None,
        max_iterations=6,
        inner_tolerance=1e-9,
    )
    fitted = fit_minimax_filter(Records(x, desired=target, confidential=private), options)
    assert (np.diff(_column(fitted, "phi")) <= 1e-8).all()
    assert _column(fitted, "inner_gap")[-1] <= 1e-9


@pytest.mark.parametrize("n_shards", [2, 7, 60])
def test_fit_minimax_filter__does_not_depend_on_the_sharding(n_shards: int) -> None:
    whole, cut = fit_minimax_filter(_records()), fit_minimax_filter(_records(n_shards))
    np.testing.assert_allclose(_column(cut, "phi"), _column(whole, "phi"), atol=1e-9)
    np.testing.assert_allclose(cut.weights, whole.weights, atol=1e-6)


@pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")
def test_fit_minimax_filter__leaves_out_records_without_a_label() -> None:
    x, target, private = draw_labelled(400)
    words = np.array(["a", "b", "c"])[private.astype(int)]
    gaps = np.arange(400) % 5 == 0
    records = Records(x, desired=np.where(gaps, np.nan, target), confidential=words, n_shards=3)
    codes = records._whole.confidential
    codes[np.arange(400) % 7 == 0] = -1.0  # the missing code of a categorical variable
    keep = ~gaps & (np.arange(400) % 7 != 0)
    rest = Records(x[keep], desired=target[keep], confidential=words[keep])
    np.testing.assert_allclose(
        fit_minimax_filter(records).weights, fit_minimax_filter(rest).weights, atol=1e-6
    )


def test_fit_minimax_filter__takes_shards_without_some_class() -> None:
    x, target, private = draw_labelled(400)
    order = np.argsort(private, kind="stable")  # every shard has one or two of the three classes
    columns = {"desired": target[order], "confidential": private[order]}
    cut = fit_minimax_filter(Records(x[order], **columns, n_shards=5))
    whole = fit_minimax_filter(Records(x[order], **columns))
    np.testing.assert_allclose(cut.weights, whole.weights, atol=1e-6)


def test_fit_minimax_filter__hides_what_was_seen_and_keeps_what_was_wanted() -> None:
    x, target, private = draw_labelled(3000)
    train, test = slice(0, 1500), slice(1500, 3000)
    columns = {"desired": target[train], "confidential": private[train]}
    fitted = fit_minimax_filter(Records(x[train], **columns))

    def accuracy(values: np.ndarray, y: np.ndarray) -> float:
        return float(
            LogisticRegression(max_iter=500)
            .fit(values[train], y[train])
            .score(values[test], y[test])
        )

    z = fitted.apply(x)
    assert accuracy(x, private) > 0.75
    assert accuracy(z, private) < 0.42  # chance is .33, its standard error .012
    assert accuracy(z, target) > 0.8
    assert _column(fitted, "loss_confidential:confidential_0")[-1] > 0.98 * fitted.baselines[1]


def test_fit_minimax_filter__alternating_takes_the_printed_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options: dict[str, Any] = {"solver": "alternating", "with_intercept": False}
    records = _records()
    start = fit_minimax_filter(records, MinimaxOptions(max_iterations=0, **options))
    monkeypatch.setattr(linear_minimax, "LEARNING_RATE", 0.003)
    slow = fit_minimax_filter(records, MinimaxOptions(max_iterations=40, **options))
    np.testing.assert_array_equal(start.weights, 0)
    phi = _column(slow, "phi")
    assert (np.diff(phi) <= 1e-9).all()
    fast = fit_minimax_filter(records, MinimaxOptions(max_iterations=10))
    assert _column(fast, "phi")[-1] < phi[-1]
    monkeypatch.setattr(linear_minimax, "LEARNING_RATE", 3.0)
    wild = fit_minimax_filter(records, MinimaxOptions(max_iterations=5, **options))
    assert (np.diff(_column(wild, "phi")) > 0).any()


def test_fit_minimax_filter__spends_few_small_rounds() -> None:
    fitted = fit_minimax_filter(_records())
    assert _column(fitted, "rounds")[-1] <= 40
    assert (np.diff(_column(fitted, "bytes")) > 0).all()


def test_fit_minimax_filter__is_blind_to_duplicated_and_constant_features() -> None:
    x, target, private = draw_labelled(400)
    whole = fit_minimax_filter(_records())
    assert np.isfinite(whole.weights).all()
    assert abs(whole.weights[7, 0]) < 1e-6 * np.abs(whole.weights).max()
    np.testing.assert_allclose(whole.weights[8], whole.weights[0], rtol=1e-6)
    bare = fit_minimax_filter(Records(x[:, :7], desired=target, confidential=private))
    assert _column(whole, "phi")[-1] == pytest.approx(_column(bare, "phi")[-1], abs=0.02)


def test_fit_minimax_filter__reads_strings_and_integers_as_classes() -> None:
    x, target, private = draw_labelled(200)
    words = np.array(["no", "yes"])[target.astype(int)]
    named = fit_minimax_filter(Records(x, desired=words, confidential=private + 1))
    coded = fit_minimax_filter(Records(x, desired=target, confidential=private))
    np.testing.assert_allclose(named.weights, coded.weights, atol=1e-9)


def test_fit_minimax_filter__several_tasks_are_all_weighed() -> None:
    x, target, private = draw_labelled(600)
    number = x[:, 5] + 0.1 * np.random.default_rng(0).normal(size=600)
    records = Records(
        x,
        desired=np.column_stack([target, number]),
        confidential=np.column_stack([private, x[:, 6]]),
    )
    fitted = fit_minimax_filter(records, MinimaxOptions(max_iterations=40))
    assert fitted.n_features_out == 2
    share = dict(zip(fitted.task_names, fitted.history[-1, 2:6] / fitted.baselines, strict=True))
    assert share["desired:desired_0"] < 0.6
    assert share["desired:desired_1"] < 0.1
    assert share["confidential:confidential_0"] > 0.95
    assert share["confidential:confidential_1"] > 0.95


def test_fit_minimax_filter__reconstruction_is_traded_for_privacy() -> None:
    x, _, private = draw_labelled(600)
    records = Records(x, confidential=private)
    shares = []
    for tradeoff in (1.0, 100.0):
        options = MinimaxOptions(
            reconstruction_weight=1.0, n_filtered=3, tradeoff=tradeoff, max_iterations=40
        )
        fitted = fit_minimax_filter(records, options)
        shares.append(fitted.history[-1, 2:4] / fitted.baselines)
        names = fitted.task_names
    hidden, restored = names.index("confidential:confidential_0"), names.index("features:features")
    assert shares[0][hidden] > 0.9 > 0.5 > shares[1][hidden]
    assert shares[1][restored] < shares[0][restored] < 0.85
    # The best that any three directions can do is the principal ones.
    spectrum = np.linalg.eigvalsh(np.cov(x.T))
    assert shares[1][restored] == pytest.approx(spectrum[:-3].sum() / spectrum.sum(), abs=0.01)


def test_linear_filter__is_a_record_map() -> None:
    fitted = fit_minimax_filter(_records())
    x = draw_labelled(20)[0]
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.apply(x), fitted.apply(x))
    assert fitted.apply(x.astype(np.float32)).dtype == np.float32
    parts = np.concatenate([fitted.apply(x[:7]), fitted.apply(x[7:])])
    np.testing.assert_allclose(parts, fitted.apply(x), rtol=1e-12)
    assert fitted.guarantee.kind == "none"
    with pytest.raises(InputError, match="do not fit a map of 9 features"):
        fitted.apply(x[:, :3])
    x[3, 2] = np.nan
    with pytest.raises(InputError, match="1 of 20 records hold values that are not finite"):
        fitted.apply(x)


def test_method_row__fits_from_options() -> None:
    method = METHODS["minimax"]
    fitted = method.fit(_records(), method.options(name="minimax", max_iterations=1))
    assert fitted.kind == "minimax_filter"


X, TARGET, PRIVATE = draw_labelled(60)
BROKEN = X.copy()
BROKEN[5, 1] = np.inf


@pytest.mark.filterwarnings("ignore::privpipe.errors.GuessWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidential": np.zeros(60)}, "'confidential_0' has a single class"),
        ({"desired": np.ones(60)}, "'desired_0' has a single class"),
        ({"confidential": None}, "no confidential variable"),
        ({"desired": None}, "no desired variable"),
        ({"features": BROKEN}, "training records hold features that are not finite"),
        ({"desired": np.full(60, np.nan)}, "All 60 training records lack"),
        ({"confidential": np.arange(60)}, "60 records are too few for 60 classes"),
        ({"desired": np.full(60, 0.5)}, "is constant in the training records"),
    ],
)
def test_fit_minimax_filter__refuses_records_it_cannot_use(
    arguments: dict[str, Any], message: str
) -> None:
    columns = {"features": X, "desired": TARGET, "confidential": PRIVATE, **arguments}
    with pytest.raises(InputError, match=message):
        fit_minimax_filter(Records(columns.pop("features"), **columns))


def test_fit_minimax_filter__refuses_codes_out_of_range() -> None:
    records = Records(X, desired=TARGET.astype(bool), confidential=PRIVATE.astype(int).astype(str))
    records._whole.confidential[4] = 7.0
    with pytest.raises(InputError, match=r"codes outside 0 .. 2"):
        fit_minimax_filter(records)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_filtered": 10}, "n_filtered is 10 for records of 9 features"),
        ({"desired_weights": (1.0, 2.0)}, "desired_weights has 2 entries for 1 variables"),
        ({"confidential_weights": (0.0,)}, "or one <= 0"),
        ({"single_out": 9.0}, "single_out is 9.0, no class"),
        ({"single_out": 1.0, "confidential_task": "regression"}, "is read as a number"),
        ({"reconstruction_weight": 1.0}, "reconstruction has no reduced form"),
        ({"n_filtered": 3, "start": "zero"}, "stationary point"),
    ],
)
@pytest.mark.filterwarnings("ignore:n_filtered is")
def test_fit_minimax_filter__refuses_options_that_contradict(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        fit_minimax_filter(
            Records(X, desired=TARGET, confidential=PRIVATE), MinimaxOptions(**options)
        )


@pytest.mark.parametrize("options", [{"tradeoff": -1.0}, {"n_filtered": 0}, {"rho": 3.0}])
def test_minimax_options__refuse_what_is_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        MinimaxOptions(**options)


@pytest.mark.filterwarnings("ignore:n_filtered is 5")
@pytest.mark.parametrize("n_classes", [6, 15, 60, 102])
def test_fit__a_round_is_of_the_bytes_that_the_design_counts(n_classes: int) -> None:
    rng = np.random.default_rng(0)
    private = rng.permutation(np.repeat(np.arange(n_classes), 10))
    x = rng.standard_normal((len(private), 8)) + 0.3 * rng.standard_normal((n_classes, 8))[private]
    records = Records(x, desired=x[:, 0] > 0, confidential=private.astype(str))
    options = MinimaxOptions(n_filtered=5, start="rand", max_iterations=1, regularisation=1e-3)
    fitted = fit_minimax_filter(records, options)
    largest, gap = (
        fitted.history[-1, list(fitted.history_columns).index(name)]
        for name in ("largest_round_bytes", "inner_gap")
    )
    inputs, q = 6, 6 * (n_classes - 1)
    filters, target = 2 * 8 * 8 * 5, 16 * inputs + 8 * inputs * (inputs + 1)
    hessian = 16 * q + 4 * q * (q + 1) + 4 * inputs * (inputs + 1)
    assert 4 * q * (q + 1) < largest <= filters + target + hessian + 100
    assert gap <= options.inner_tolerance
