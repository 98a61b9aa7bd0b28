"""Every adversary learns what it can learn, and survives degenerate inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from privpipe.attacks.adversaries import ADVERSARIES
from privpipe.attacks.adversaries.estimators import find_bands
from privpipe.attacks.adversaries.linear import LOGISTIC_RIDGES
from privpipe.attacks.adversaries.problem import (
    TIE,
    Fitted,
    Problem,
    choose_best,
    fit_tuned,
    measure_tuning,
)
from privpipe.attacks.adversaries.ridges import solve_ridges
from privpipe.attacks.statistics.roc import measure_area
from privpipe.errors import ConvergenceError, InputError

NUMBERS = [name for name, adversary in ADVERSARIES.items() if adversary.numbers]
NON_LINEAR = [
    "nearest_neighbours",
    "rbf",
    "boosting",
    "forest",
    "quadratic",
    "polynomial",
    "network",
]


def make_problem(x: np.ndarray, y: np.ndarray, n_classes: int | None) -> Problem:
    cut = len(x) * 2 // 3
    return Problem(x[:cut], y[:cut], x[cut:], y[cut:], n_classes)


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("n_classes", [2, 4])
def test_adversaries__learn_classes_with_different_means(name: str, n_classes: int) -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, n_classes, 600).astype(float)
    x = random.normal(size=(600, 6)) + 3 * np.eye(6)[y.astype(int)]
    fitted = ADVERSARIES[name].fit(make_problem(x, y, n_classes))
    fresh = random.integers(0, n_classes, 300)
    decision = fitted.decide(random.normal(size=(300, 6)) + 3 * np.eye(6)[fresh])
    assert decision.shape == (300, n_classes)
    assert np.mean(decision.argmax(axis=1) == fresh) > 0.85
    assert fitted.settings


def test_find_bands__keeps_few_values_apart_and_makes_even_bands_of_many() -> None:
    random = np.random.default_rng(1)
    few = random.permutation(np.maximum(np.arange(1000) - 800, 0))  # all but one are rare
    many = random.normal(size=1000)
    codes = find_bands(np.column_stack([few, many]))(np.column_stack([few + 0.0, many]))
    assert np.array_equal(codes[:, 0], few)
    assert np.bincount(codes[:, 1]).max() <= 5
    assert (np.diff(codes[np.argsort(many), 1].astype(int)) >= 0).all()
    # Of records that were not there: between two values, and beyond all.
    other = find_bands(np.array([[0.0], [2.0]]))(np.array([[-1.0], [1.0], [9.0]]))
    assert other.ravel().tolist() == [0, 1, 1]


@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries__rank_records_by_class_and_not_by_their_size(name: str) -> None:
    """Records of very different size, of which only the direction tells the class."""
    random = np.random.default_rng(7)
    y = random.integers(0, 3, 1500)
    size = np.exp(1.5 * random.normal(size=(1500, 1)))
    x = size * (np.eye(3)[y] + 0.2 * random.normal(size=(1500, 3)))
    x = np.sign(x) * np.log1p(np.abs(x))
    fitted = ADVERSARIES[name].fit(make_problem(x[:1000], y[:1000].astype(float), 3))
    assert measure_area(y[1000:], fitted.decide(x[1000:])) > 0.95


@pytest.mark.parametrize("name", NUMBERS)
def test_adversaries__learn_numbers(name: str) -> None:
    random = np.random.default_rng(1)
    x = random.normal(size=(900, 3))
    y = (2 * x[:, 0] - x[:, 1]) / 5**0.5
    fitted = ADVERSARIES[name].fit(make_problem(x, y, None))
    fresh = random.normal(size=(200, 3))
    said = fitted.decide(fresh)
    assert said.shape == (200,)
    assert np.mean(((2 * fresh[:, 0] - fresh[:, 1]) / 5**0.5 - said) ** 2) < 0.15


@pytest.mark.parametrize("name", NON_LINEAR)
def test_adversaries__that_are_not_linear_see_what_linear_ones_cannot(name: str) -> None:
    random = np.random.default_rng(2)
    x = random.normal(size=(1200, 2))
    y = (x[:, 0] * x[:, 1] > 0).astype(float)
    problem = make_problem(x, y, 2)
    fresh = random.normal(size=(500, 2))
    truth = fresh[:, 0] * fresh[:, 1] > 0
    assert np.mean(ADVERSARIES[name].fit(problem).decide(fresh).argmax(axis=1) == truth) > 0.85
    assert np.mean(ADVERSARIES["logistic"].fit(problem).decide(fresh).argmax(axis=1) == truth) < 0.6


@pytest.mark.parametrize("name", ["quadratic", "polynomial"])
@pytest.mark.parametrize("width", [8, 120])
def test_adversaries__of_second_degree_read_covariances_of_classes(name: str, width: int) -> None:
    """What a linear eraser leaves: classes of one mean, and of other covariances."""
    random = np.random.default_rng(11)
    y = random.integers(0, 3, 1800)
    scale = np.ones((3, width))
    scale[1, :4], scale[2, 4:8] = 3.0, 0.2
    x = random.normal(size=(1800, width)) * scale[y]
    fitted = ADVERSARIES[name].fit(make_problem(x[:1200], y[:1200].astype(float), 3))
    hits = np.mean(fitted.decide(x[1200:]).argmax(axis=1) == y[1200:])
    linear = ADVERSARIES["logistic"].fit(make_problem(x[:1200], y[:1200].astype(float), 3))
    assert hits > (0.8 if width == 8 else 0.55)  # 400 records a class for 120 columns
    assert np.mean(linear.decide(x[1200:]).argmax(axis=1) == y[1200:]) < 0.45


def test_fit_quadratic__reads_directions_of_little_variance() -> None:
    """An ill-conditioned release: what tells is a millionth of the rest, across all columns."""
    random = np.random.default_rng(12)
    y = random.integers(0, 2, 1200)
    hidden = random.normal(size=(1200, 12)) * np.where(np.arange(12) < 3, 1e-3, 1.0)
    hidden[:, :3] *= np.where(y, 4.0, 1.0)[:, None]
    turn = np.linalg.qr(random.normal(size=(12, 12)))[0]
    x = hidden @ turn
    fitted = ADVERSARIES["quadratic"].fit(make_problem(x[:900], y[:900].astype(float), 2))
    assert np.mean(fitted.decide(x[900:]).argmax(axis=1) == y[900:]) > 0.85


@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries__decide_alike_when_they_train_again(name: str) -> None:
    random = np.random.default_rng(13)
    y = random.integers(0, 2, 120).astype(float)
    problem = make_problem(random.normal(size=(120, 5)) + y[:, None], y, 2)
    one, other = (ADVERSARIES[name].fit(problem) for _ in range(2))
    assert one.settings == other.settings
    np.testing.assert_array_equal(one.decide(problem.x_tune), other.decide(problem.x_tune))


@pytest.mark.parametrize("name", ADVERSARIES)
@pytest.mark.parametrize("kind", ["constant", "wide", "duplicate", "rare"])
def test_adversaries__survive_degenerate_inputs(name: str, kind: str) -> None:
    random = np.random.default_rng(3)
    y = (np.arange(90) % (30 if kind == "rare" else 2) == 0).astype(float)
    x = random.normal(size=(90, 200 if kind == "wide" else 3))
    if kind == "constant":
        x = np.zeros((90, 1))
    if kind == "duplicate":
        x = np.repeat(x[:3], 30, axis=0)
    decision = ADVERSARIES[name].fit(make_problem(x, y, 2)).decide(x)
    assert decision.shape == (90, 2)
    assert np.isfinite(decision).all()


def test_fit_logistic__keeps_an_early_stop_where_convergence_overfits() -> None:
    random = np.random.default_rng(4)
    y = random.integers(0, 2, 300).astype(float)
    x = random.normal(size=(300, 150)) + 0.15 * (2 * y[:, None] - 1)
    problem = make_problem(x, y, 2)
    fresh = random.integers(0, 2, 4000)
    x_fresh = random.normal(size=(4000, 150)) + 0.15 * (2 * fresh[:, None] - 1)
    best = ADVERSARIES["logistic"].fit(problem)
    hits = np.mean(best.decide(x_fresh).argmax(axis=1) == fresh)
    from sklearn.linear_model import LogisticRegression

    weak = LogisticRegression(C=1 / (LOGISTIC_RIDGES[-1] * 200), max_iter=2000)
    weak.fit(problem.x_train, problem.y_train)
    assert hits > weak.score(x_fresh, fresh) + 0.02


def test_solve_ridges__equals_the_normal_equations_narrow_and_wide() -> None:
    random = np.random.default_rng(5)
    for n, p in ((50, 4), (20, 60)):
        x, y = random.normal(size=(n, p)) + 1, random.normal(size=(n, 2))
        z, t = x - x.mean(axis=0), y - y.mean(axis=0)
        size = (z**2).sum() / n / p
        for ridge, slope, offset in solve_ridges(x, y):
            expected = np.linalg.solve(z.T @ z / n + ridge * size * np.eye(p), z.T @ t / n)
            np.testing.assert_allclose(slope, expected, atol=1e-5)
            np.testing.assert_allclose(offset, y.mean(axis=0) - x.mean(axis=0) @ slope)


def test_choose_best__takes_the_best_in_tuning_and_refuses_none() -> None:
    problem = make_problem(np.zeros((9, 1)), np.arange(9) % 2.0, 2)
    right = Fitted(lambda x: np.eye(2)[np.arange(6, 9) % 2], "right")
    wrong = Fitted(lambda x: np.eye(2)[1 - np.arange(6, 9) % 2], "wrong")
    assert choose_best(problem, [wrong, right, wrong]).settings == "right"
    numbers = make_problem(np.zeros((9, 1)), np.arange(9.0), None)
    broken = Fitted(lambda x: np.full(len(x), np.nan), "broken")
    with pytest.raises(ConvergenceError, match="finite"):
        choose_best(numbers, [broken])
    # Of four persons none was left to tune by, and the scale of the inputs was blamed.
    empty = Problem(np.zeros((9, 1)), np.arange(9) % 2.0, np.zeros((0, 1)), np.zeros(0), 2)
    with pytest.raises(InputError, match="No record is left to choose") as caught:
        choose_best(empty, [right])
    assert caught.value.code == "too_few_records"


def test_choose_best__leaves_no_choice_to_rounding() -> None:
    problem = make_problem(np.zeros((9, 1)), np.arange(9.0), None)
    first = Fitted(lambda x: problem.y_tune + 1.0, "first")
    second = Fitted(lambda x: problem.y_tune + 1.0 - TIE / 8, "second")
    third = Fitted(lambda x: problem.y_tune + 0.5, "third")
    assert choose_best(problem, [first, second]).settings == "first"
    assert choose_best(problem, [first, second, third]).settings == "third"


def test_fit_tuned__trains_the_chosen_settings_on_all_records() -> None:
    problem = make_problem(np.zeros((9, 1)), np.ones(9), 2)
    trained: list[tuple[int, int | None]] = []

    def train(given: Problem, choice: int | None) -> Iterator[Fitted]:
        trained.append((len(given.x_train), choice))
        for k in (0, 1) if choice is None else (choice,):
            yield Fitted(lambda x, k=k: np.eye(2)[np.full(len(x), k)], f"class {k}", k)

    assert fit_tuned(problem, train).settings == "class 1"
    assert trained == [(6, None), (9, 1)]


def test_measure_tuning__tells_rankings_apart_where_hits_do_not() -> None:
    y = (np.arange(30) == 0).astype(float)
    problem = Problem(np.zeros((1, 1)), y[:1], np.zeros((30, 1)), y, 2)
    blind = np.column_stack([np.ones(30), np.zeros(30)])
    ranking = np.column_stack([np.ones(30), 0.5 * y])
    assert measure_tuning(problem, ranking) > measure_tuning(problem, blind)


def test_sample__bounds_and_keeps_pairs_together() -> None:
    x = np.arange(100.0)[:, None]
    small = make_problem(x, x[:, 0], None).sample(10, 5)
    assert (len(small.x_train), len(small.x_tune)) == (10, 5)
    np.testing.assert_array_equal(small.x_train[:, 0], small.y_train)
    np.testing.assert_array_equal(small.x_tune[:, 0], small.y_tune)


@pytest.mark.parametrize("name", ADVERSARIES)
def test_adversaries__keep_a_class_that_is_rare_in_a_bounded_sample(name: str) -> None:
    """The columns of the decision are the classes, also when a sample could lose one."""
    random = np.random.default_rng(8)
    y = random.choice(4, 3000, p=[0.5, 0.003, 0.297, 0.2]).astype(float)
    x = random.normal(size=(3000, 4)) + 6 * np.eye(4)[y.astype(int)]
    small = make_problem(x, y, 4).sample(100, 60)
    decision = ADVERSARIES[name].fit(small).decide(x)
    assert decision.shape == (3000, 4)
    assert np.mean(decision.argmax(axis=1)[y == 3] == 3) > 0.9
