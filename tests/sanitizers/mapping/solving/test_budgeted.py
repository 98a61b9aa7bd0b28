"""Several private variables, each within a budget of its own: kept to, certified as the least."""

from __future__ import annotations

import pickle
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

from privpipe import PrivacyMappingOptions, Records, fit_privacy_mapping, solve_privacy_mapping
from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion, price_in_memory
from privpipe.numerics.mapping.problem.programme import Programme, measure_information
from privpipe.protocols import Column, ShardSchema
from privpipe.sanitizers.mapping.privacy_mapping import check_mapping
from privpipe.sanitizers.mapping.solving import assurance
from privpipe.sanitizers.mapping.solving.assurance import assure_mapping
from privpipe.sanitizers.mapping.solving.budgeted import solve_budgeted_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping
from tests.laws_of_records import make_grid

PRIVATE = make_grid(2, 3)


def draw_joint(seed: int, n_symbols: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.asarray(
        rng.dirichlet(np.full(6, 0.4), n_symbols).T * rng.dirichlet(np.ones(n_symbols))
    )


def tell(mapping: SparseMapping, joint: np.ndarray, variable: int) -> float:
    """Information about one variable, by the definition."""
    rows = np.stack([joint[PRIVATE[:, variable] == v].sum(axis=0) for v in range(variable + 2)])
    return measure_information(np.asarray(mapping.mapping @ rows.T))


def solve(joint: np.ndarray, budgets: tuple[float, ...], **changes: Any) -> SparseMapping:
    given: dict[str, Any] = {"distortion_budget": 0.25, "gap": 1e-6, **changes}
    codes = make_grid(joint.shape[1])
    return solve_budgeted_mapping(
        joint, codes, private=PRIVATE, information_budgets=budgets, **given
    )


def solve_by_cvxpy(joint: np.ndarray, budgets: tuple[float, ...]) -> float:
    """The least largest share, by a general convex solver; hamming distance of one attribute."""
    n = joint.shape[1]
    mapping = cp.Variable((n, n), nonneg=True)  # released by original
    told = []
    for k, budget in enumerate(budgets):
        rows = np.stack([joint[PRIVATE[:, k] == v].sum(axis=0) for v in range(k + 2)])
        masses, prior = mapping @ rows.T, rows.sum(axis=1)
        product = cp.reshape(cp.sum(masses, axis=1), (n, 1), order="C") @ prior[None]
        told.append(cp.sum(cp.rel_entr(masses, product)) / budget)
    mass = joint.sum(axis=0)
    limits = [cp.sum(mapping, axis=0) == 1, mass @ (1 - cp.diag(mapping)) <= 0.25]
    programme = cp.Problem(cp.Minimize(cp.max(cp.hstack(told))), limits)
    programme.solve(solver="CLARABEL")
    return float(programme.value)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budgets", [(0.5, 0.5), (0.2, 0.9)])
def test_solve_budgeted_mapping__is_the_optimum_of_a_convex_solver(
    seed: int, budgets: tuple[float, float]
) -> None:
    joint = draw_joint(seed)
    mapping = solve(joint, budgets)
    said = dict(mapping.guarantee.parameters)
    shares = [tell(mapping, joint, k) / budget for k, budget in enumerate(budgets)]
    assert max(shares) == pytest.approx(said["budget_share_at_most"], rel=1e-9)
    assert said["budget_share_at_most"] - said["budget_share_at_least"] <= 1e-6 / max(budgets)
    theirs = solve_by_cvxpy(joint, budgets)
    assert said["budget_share_at_least"] - 1e-6 <= theirs <= said["budget_share_at_most"] + 1e-6
    assert mapping.distortion <= 0.25 * (1 + 1e-9)
    assert mapping.lower_bound <= mapping.information


def test_solve_budgeted_mapping__gives_the_tighter_budget_its_due() -> None:
    """Two variables told by two attributes: what the joint optimum spends evenly is moved."""
    joint = draw_joint(7)
    together = solve_privacy_mapping(joint, make_grid(6), distortion_budget=0.25, gap=1e-6)
    budgets = (0.3 * tell(together, joint, 0), 3 * tell(together, joint, 1))
    with pytest.raises(OptionError) as error:
        solve(joint, (budgets[0] / 100, budgets[1]))
    assert error.value.code == "budgets-need-distortion"
    roomy = solve(joint, (tell(together, joint, 0), 3 * tell(together, joint, 1)))
    assert tell(roomy, joint, 0) < tell(together, joint, 0)
    assert roomy.information > together.information  # the price, told as such


def test_solve_budgeted_mapping__says_by_how_much_budgets_are_too_small() -> None:
    joint = draw_joint(1)
    enough = dict(solve(joint, (0.5, 0.5)).guarantee.parameters)["budget_share_at_most"]
    too_small = 0.5 * enough / 2
    with pytest.raises(OptionError, match=r"at least (2|1\.99|2\.0)\d* times its budget") as error:
        solve(joint, (too_small, too_small))
    factor = float(str(error.value).split("Multiply the budgets by ")[1].split(",")[0])
    solve(joint, (factor * too_small, factor * too_small))  # the number needed suffices
    # A gap that says nothing of the share is no reason to leave it open: it goes on until it knows.
    kept = solve(joint, (0.5 * enough * 1.001,) * 2, gap=0.1)
    assert dict(kept.guarantee.parameters)["budget_share_at_most"] <= 1
    with pytest.raises(OptionError, match="keeps to information_budgets"):
        solve(joint, (0.5 * enough * 0.995,) * 2, gap=0.1)
    with pytest.raises(ConvergenceError, match="open") as error_open:
        solve(joint, (0.5 * enough * 1.001,) * 2, gap=0.1, max_seconds=1e-9)
    assert error_open.value.code == "budgets-open"


@pytest.mark.parametrize("n_threads", [1, 2])
def test_solve_budgeted_mapping__solves_two_choices_of_weights_apart(n_threads: int) -> None:
    """Neither of a round's two knows of the other: where they are solved changes no bit."""
    joint, taken = draw_joint(2), list[list[float]]()

    def price(problem: Programme, question: PricingQuestion) -> Prices:
        return price_in_memory(problem, question)

    def spread(solve: Any, problems: Any, at_once: int) -> list[Any]:
        assert at_once == n_threads
        problems = [pickle.loads(pickle.dumps(one)) for one in problems]
        taken.append([seconds for _, seconds in problems])
        return [pickle.loads(pickle.dumps(solve))(one) for one in problems]

    more = {"n_threads": n_threads, "spread": spread, "pays": lambda *_: True}
    vars(price).update(more)
    alone = solve(joint, (0.2, 0.9), max_seconds=1e3)
    apart = solve(joint, (0.2, 0.9), max_seconds=1e3, price=price)
    assert max(map(len, taken)) == 2
    np.testing.assert_array_equal(apart.probabilities, alone.probabilities)
    assert apart.guarantee == alone.guarantee
    first, second = next(one for one in taken if len(one) == 2)
    # One after the other has half; side by side both have all that is left.
    assert first == pytest.approx(second / (3 - n_threads), rel=0.1)


@pytest.mark.parametrize("budgets", [(0.1,), (0.1, 0.2, 0.3), (0.1, 0.0), (0.1, np.nan)])
def test_solve_budgeted_mapping__refuses_budgets_that_are_none(budgets: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match="information_budgets") as error:
        solve(draw_joint(0), budgets)
    assert error.value.code == "budgets"


def make_options(**changes: object) -> PrivacyMappingOptions:
    given: dict[str, object] = {
        "name": "privacy_mapping",
        "attributes": ("a", "b"),
        "private": ("sex", "race"),
        "distortion_budget": 0.6,
        "gap": 1e-4,
        "information_budgets": (0.2, 0.2),
    }
    return PrivacyMappingOptions(**{**given, **changes})  # type: ignore[arg-type]


def draw_records(n: int) -> Records:
    rng = np.random.default_rng(5)
    attributes = np.stack([rng.integers(0, 4, n), rng.integers(0, 3, n)], axis=1)
    sex = (attributes[:, 0] + rng.integers(0, 4, n) >= 4).astype(np.int64)
    race = np.where(rng.random(n) < 0.6, attributes[:, 1], rng.integers(0, 3, n))
    private = np.stack([sex, race], axis=1)
    return Records(np.zeros((n, 1)), confidential=private.astype(str), attributes=attributes)


def test_fit_privacy_mapping__promises_each_variable_apart_and_all_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = draw_records(20_000)
    doubts: list[float] = []

    def watch(*args: Any, confidence: float, **given: Any) -> SparseMapping:
        doubts.append(1 - confidence)
        return assure_mapping(*args, confidence=confidence, **given)

    monkeypatch.setattr(assurance, "assure_mapping", watch)
    names = [column.name for column in records.schema.confidential]
    mapping = fit_privacy_mapping(records, make_options(private=tuple(names)))
    said = dict(mapping.guarantee.parameters)
    for name in names:
        assert said[f"{name}_plug_in"] <= 0.2
        assert said[f"{name}_plug_in"] < said[f"{name}_at_most"] < np.log(3)
        assert f"about {name}" in mapping.guarantee.statement
    assert said["budget_share_at_least"] <= said["budget_share_at_most"] < 1
    assert said["confidence"] == 0.95
    assert len(doubts) == 3  # each promise takes its share of what may go wrong with any
    assert sum(doubts) <= 0.05 * (1 + 1e-9)
    number = float(mapping.guarantee.number or 0.0)
    assert max(said[f"{name}_at_most"] for name in names) < number
    assert number > said["plug_in"]


@pytest.mark.parametrize(
    "other",
    [
        {"max_posterior_odds": 3.0},
        {"max_leakage": 0.5},
        {"solver": "frank_wolfe"},
        {"information_budgets": (0.1,)},
    ],
)
def test_check__refuses_budgets_with_other_programmes_or_of_other_variables(
    other: dict[str, object],
) -> None:
    schema = ShardSchema(0, attributes=(Column("a", 4), Column("b", 3)))
    check_mapping(make_options(), schema)
    with pytest.raises(OptionError, match="information_budgets") as error:
        check_mapping(make_options(**other), schema)
    assert error.value.code in ("budgets", "budgets-alone")
