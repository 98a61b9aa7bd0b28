"""solve_privacy_mapping against a general solver and an independent certificate."""

from __future__ import annotations

import numpy as np
import pytest

from privpipe import SparseMapping, certify_mapping, solve_privacy_mapping
from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.problem.programme import measure_information
from privpipe.numerics.mapping.problem.search_progress import read_clock
from privpipe.protocols import FloatArray, IntArray
from privpipe.store.models import digest_map
from tests.oracles_sppm import all_distances, frank_wolfe_as_printed, solve_exactly


def random_joint(n_private: int, n_symbols: int, seed: int, empty: bool = False) -> FloatArray:
    rng = np.random.default_rng(seed)
    joint = rng.gamma(0.4, size=(n_private, n_symbols)) + 1e-4
    if empty:
        joint[:, ::7] = 0.0
        joint[0, 1::5] = 0.0
    return np.asarray(joint / joint.sum())


def profiles(n: int, seed: int) -> IntArray:
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(range(4), range(3), range(5), indexing="ij"), -1).reshape(-1, 3)
    return np.asarray(rng.permutation(grid)[:n])


def toy(n: int) -> FloatArray:
    joint = np.zeros((2, n))
    joint[0, : n // 2], joint[1, n // 2 :] = 1.0, 1.0
    return joint / joint.sum()


def check(mapping: SparseMapping, joint: FloatArray, codes: IntArray, kind: str) -> None:
    """Feasible, and worth what it says, by code that shares nothing with the solver."""
    found = certify_mapping(
        joint,
        codes,
        mapping.mapping,
        multiplier=mapping.multiplier,
        potentials=mapping.potentials,
        distortion=kind,
        distortion_budget=mapping.distortion_budget,
    )
    assert found.column_error <= 1e-12
    assert found.excess <= 1e-12 * max(1.0, mapping.distortion_budget)
    assert found.information == pytest.approx(mapping.information, abs=1e-11)
    assert found.lower_bound >= mapping.lower_bound - 1e-11
    assert (mapping.probabilities >= 0).all()
    prior = joint.sum(axis=1)
    assert (np.exp(mapping.potentials) @ prior <= 1 + 1e-9).all()


@pytest.mark.parametrize("n_private", [2, 3])
@pytest.mark.parametrize(
    ("kind", "budget"), [("hamming", 0.3), ("squared", 0.4), ("absolute", 0.3)]
)
def test_solve_privacy_mapping__matches_a_general_solver(
    n_private: int, kind: str, budget: float
) -> None:
    joint, codes = random_joint(n_private, 24, 1), profiles(24, 2)
    mapping = solve_privacy_mapping(joint, codes, kind, distortion_budget=budget, gap=1e-8)
    assert mapping.stopped == "gap reached"
    assert mapping.gap <= 1e-8
    optimum = solve_exactly(joint, all_distances(codes, kind), budget)
    assert mapping.information == pytest.approx(optimum, abs=1e-6)
    assert mapping.lower_bound <= optimum + 1e-6
    check(mapping, joint, codes, kind)


@pytest.mark.parametrize("kind", ["squared", "absolute"])
def test_solve_privacy_mapping__ordered_alphabets(kind: str) -> None:
    joint = random_joint(2, 40, 3)
    codes = np.cumsum(np.random.default_rng(4).exponential(size=40))[:, None]
    mapping = solve_privacy_mapping(joint, codes, kind, distortion_budget=2.0, gap=1e-7)
    optimum = solve_exactly(joint, all_distances(codes, kind), 2.0)
    assert mapping.gap <= 1e-7
    assert mapping.information == pytest.approx(optimum, abs=1e-6)
    check(mapping, joint, codes, kind)


def test_solve_privacy_mapping__symbols_of_no_probability_stay() -> None:
    joint, codes = random_joint(2, 40, 5, empty=True), profiles(40, 6)
    mapping = solve_privacy_mapping(joint, codes, distortion_budget=0.2, gap=1e-8)
    assert mapping.gap <= 1e-8
    check(mapping, joint, codes, "hamming")
    empty = np.flatnonzero(joint.sum(0) == 0)
    assert len(empty)
    assert (mapping.mapping.toarray()[empty, empty] == 1).all()
    optimum = solve_exactly(joint, all_distances(codes, "hamming"), 0.2)
    assert mapping.information == pytest.approx(optimum, abs=1e-6)


def test_solve_privacy_mapping__own_distances() -> None:
    joint, codes = random_joint(2, 20, 7), profiles(20, 8)
    matrix = (codes[:, None] != codes[None]) @ np.array([1.0, 2.5, 0.3])
    mapping = solve_privacy_mapping(joint, codes, matrix, distortion_budget=0.4, gap=1e-8)
    assert mapping.information == pytest.approx(solve_exactly(joint, matrix.T, 0.4), abs=1e-6)


def test_solve_privacy_mapping__relabelling_changes_nothing() -> None:
    joint, codes = random_joint(2, 30, 9), profiles(30, 10)
    order = np.random.default_rng(11).permutation(30)
    plain = solve_privacy_mapping(joint, codes, distortion_budget=0.3, gap=1e-9)
    moved = solve_privacy_mapping(joint[::-1, order], codes[order], distortion_budget=0.3, gap=1e-9)
    assert moved.information == pytest.approx(plain.information, abs=2e-9)
    assert moved.lower_bound == pytest.approx(plain.lower_bound, abs=2e-9)


@pytest.mark.parametrize("n", [64, 100, pytest.param(257, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", ["n/64", "n/16", "n/4", "n*n/256", "n*n/64", "n*n/32"])
def test_solve_privacy_mapping__toy_is_certified(n: int, scale: str) -> None:
    budget = eval(scale, {"n": n})
    codes = np.arange(n)[:, None]
    mapping = solve_privacy_mapping(toy(n), codes, "squared", distortion_budget=budget, gap=1e-7)
    assert mapping.gap <= 1e-7, mapping.stopped
    check(mapping, toy(n), codes, "squared")


@pytest.mark.parametrize("seed", [1, *(pytest.param(k, marks=pytest.mark.slow) for k in (0, 2, 3))])
@pytest.mark.parametrize("mixed", [False, True])
def test_solve_privacy_mapping__uneven_priors_and_positions(seed: int, mixed: bool) -> None:
    rng = np.random.default_rng(seed)
    n = 700 + 31 * seed
    joint = toy(n) * rng.uniform(0.2, 1.8, (2, n)) + mixed * rng.uniform(0, 0.3 / n, (2, n))
    joint /= joint.sum()
    codes = np.cumsum(rng.exponential(size=n))[:, None]
    budget = float(rng.choice([n / 64, n / 4, n * n / 256, n * n / 32]))
    mapping = solve_privacy_mapping(joint, codes, "squared", distortion_budget=budget, gap=1e-4)
    assert mapping.gap <= 1e-4, mapping.stopped
    check(mapping, joint, codes, "squared")


def test_solve_privacy_mapping__less_information_for_more_distortion() -> None:
    joint, codes = random_joint(3, 36, 12), profiles(36, 13)
    values = [
        solve_privacy_mapping(joint, codes, distortion_budget=b, gap=1e-7).information
        for b in (0.0, 0.05, 0.1, 0.3, 0.8, 3.0)
    ]
    assert values == sorted(values, reverse=True)
    assert values[0] == pytest.approx(measure_information(joint.T))
    assert values[-1] == 0.0


def test_solve_privacy_mapping__no_budget_is_the_identity_and_certified() -> None:
    joint, codes = random_joint(2, 30, 14, empty=True), profiles(30, 15)
    mapping = solve_privacy_mapping(joint, codes, distortion_budget=0.0)
    assert (mapping.mapping.toarray() == np.eye(30)).all()
    assert mapping.gap <= 1e-12
    check(mapping, joint, codes, "hamming")


def test_solve_privacy_mapping__budget_for_one_symbol_is_perfect_privacy() -> None:
    joint, codes = random_joint(2, 30, 16), profiles(30, 17)
    mapping = solve_privacy_mapping(joint, codes, distortion_budget=3.0)
    assert mapping.information <= 1e-15
    assert mapping.stopped == "perfect privacy"
    assert len(np.unique(mapping.released)) == 1


def test_solve_privacy_mapping__nothing_private_is_the_identity() -> None:
    mass = random_joint(1, 20, 18)
    joint = np.concatenate([0.3 * mass, 0.7 * mass])
    mapping = solve_privacy_mapping(joint, profiles(20, 19), distortion_budget=0.5, gap=1e-9)
    assert mapping.information <= 1e-12
    assert mapping.distortion == 0.0
    constant = np.concatenate([mass, 0 * mass])
    mapping = solve_privacy_mapping(constant, profiles(20, 19), distortion_budget=0.5)
    assert mapping.stopped == "nothing to hide"


def test_solve_privacy_mapping__interrupted_and_started_again() -> None:
    joint, codes = random_joint(2, 60, 20), profiles(60, 21)

    seen: list[float] = []

    def stop_after_two(progress: object) -> None:
        seen.append(progress.reached)  # type: ignore[attr-defined]
        if len(seen) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve_privacy_mapping(
            joint, codes, distortion_budget=0.3, gap=1e-8, on_round=stop_after_two
        )
    short = solve_privacy_mapping(joint, codes, distortion_budget=0.3, gap=1e-8, max_seconds=1e-9)
    assert short.stopped == "time limit"
    assert short.gap > 1e-8
    check(short, joint, codes, "hamming")
    whole = solve_privacy_mapping(joint, codes, distortion_budget=0.3, gap=1e-8, start=short)
    assert whole.gap <= 1e-8
    check(whole, joint, codes, "hamming")


def test_frank_wolfe__equals_the_printed_algorithm() -> None:
    rng = np.random.default_rng(22)
    joint, codes = random_joint(2, 40, 23), rng.uniform(size=(40, 2)) * 3
    printed = frank_wolfe_as_printed(joint, all_distances(codes, "squared"), 0.3, n_steps=12)
    fast = solve_privacy_mapping(
        joint, codes, "squared", distortion_budget=0.3, solver="frank_wolfe", n_steps=12, gap=1e-12
    )
    steps = [value for _, value in printed.steps]
    np.testing.assert_allclose(fast.history[:, 1], steps, atol=1e-8)
    assert fast.stopped == "12 steps"
    difference = fast.mapping.toarray() - printed.mapping.toarray()
    assert np.abs(difference).max() <= 1e-5
    check(fast, joint, codes, "squared")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"joint": np.ones((2, 4))}, InputError, "sums to 8"),
        ({"joint": np.array([[0.5, -0.1, 0.3, 0.3]])}, InputError, "negative"),
        ({"joint": np.array([0.5, 0.5])}, InputError, "shape"),
        ({"codes": [[0], [1], [1], [2]]}, InputError, "1 symbols twice"),
        ({"codes": [[0], [1]]}, InputError, "4 symbols"),
        ({"codes": [[0.0], [1.0], [np.nan], [2.0]]}, InputError, "not finite"),
        ({"distortion": "cosine"}, OptionError, "cosine"),
        ({"distortion": -np.ones((4, 4))}, InputError, "negative"),
        ({"distortion": np.ones((4, 4))}, InputError, "from every symbol to itself"),
        ({"distortion": np.zeros((3, 3))}, InputError, "shape"),
        ({"distortion_budget": -0.1}, OptionError, "distortion_budget is -0.1"),
        ({"distortion_budget": np.inf}, OptionError, "finite"),
        ({"gap": 0.0}, OptionError, "gap"),
        ({"solver": "simplex"}, OptionError, "simplex"),
        ({"n_steps": 0}, OptionError, "n_steps"),
    ],
)
def test_solve_privacy_mapping__says_what_is_wrong(
    change: dict[str, object], error: type[Exception], match: str
) -> None:
    arguments: dict[str, object] = {
        "joint": np.full((2, 4), 1 / 8),
        "codes": [[0], [1], [2], [3]],
        "distortion_budget": 0.1,
    }
    with pytest.raises(error, match=match):
        solve_privacy_mapping(**{**arguments, **change})  # type: ignore[arg-type]


def noisy_line(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Uneven positions and priors, and a posterior of its own for every symbol."""
    random = np.random.default_rng(1)
    mass = random.uniform(0.2, 1.8, n)
    posterior = np.where(np.arange(n) < n // 2, 0.1, 0.9) + 0.05 * random.normal(size=n)
    posterior = np.clip(posterior, 0.001, 0.999)
    joint = np.stack([mass * (1 - posterior), mass * posterior]) / mass.sum()
    return joint, np.cumsum(random.exponential(size=n))[:, None]


@pytest.mark.slow
@pytest.mark.parametrize("share", [1 / 16, 8.0])
def test_solve__ordered_symbols_with_noisy_posteriors(share: float) -> None:
    n = 2048
    joint, codes = noisy_line(n)
    given = {"distortion_budget": n * share, "gap": 1e-4}
    mapping = solve_privacy_mapping(joint, codes, "squared", **given)  # type: ignore[arg-type]
    assert mapping.stopped == "gap reached"
    assert mapping.gap <= 1e-4


@pytest.mark.slow
def test_solve__many_noisy_posteriors_are_mixed_with_their_neighbours() -> None:
    """The duals of few cells and many groups, and neighbours who join: 2.5e-3 without."""
    n = 8193
    joint, codes = noisy_line(n)
    rounds: list[str] = []
    mapping = solve_privacy_mapping(
        joint,
        codes,
        "absolute",
        distortion_budget=0.05 * n,
        gap=1e-3,
        on_round=lambda progress: rounds.append(progress.rounds[-1].stage),
    )
    assert mapping.stopped == "gap reached"
    assert mapping.gap <= 1e-3
    assert rounds[:3] == ["cells", "cells", "exchange"]
    assert set(rounds[3:]) <= {"exchange"}


@pytest.mark.slow
def test_solve__ends_soon_after_the_time_limit() -> None:
    joint, codes = noisy_line(4096)
    solve_privacy_mapping(*noisy_line(64), "squared", distortion_budget=4.0, gap=1e-3)
    start = read_clock()
    mapping = solve_privacy_mapping(
        joint, codes, "squared", distortion_budget=256.0, gap=1e-9, max_seconds=3.0
    )
    assert mapping.stopped == "time limit"
    assert read_clock() - start < 3.0 + 5.0
    assert mapping.lower_bound <= mapping.information
    assert mapping.distortion <= 256.0 * (1 + 1e-12)


def test_solve__the_same_problem_is_the_same_map_to_the_last_bit() -> None:
    """Keys of draws are named by the digest: what changes from fit to fit would draw again."""
    joint, codes = random_joint(2, 12, 1), profiles(12, 2)
    digests = {
        digest_map(solve_privacy_mapping(joint, codes, distortion_budget=0.3)) for _ in range(2)
    }
    assert len(digests) == 1
