"""Columns priced on workers: the same bits as in memory, and seen on the cluster."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from distributed import Client

from privpipe import fit_privacy_mapping
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.passes.pricing_rounds import ClusterPricing, plan_columns
from privpipe.numerics.mapping.problem.pair_pricing import Prices, PricingQuestion, price_in_memory
from privpipe.sanitizers.mapping.solving.budgeted import solve_budgeted_mapping
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping
from privpipe.store.models import digest_map
from tests.laws_of_records import make_grid
from tests.numerics.test_mapping_pricing import make_problem, random_duals
from tests.sanitizers.mapping.solving.test_solve import profiles, random_joint
from tests.sanitizers.mapping.test_strata import draw, make_records, options

pytestmark = pytest.mark.slow


def assert_answers(there: Prices, here: Prices) -> None:
    """The same bits, of all that a question has an answer to; see `Prices`."""
    for name in ("values", "best", "partner"):
        np.testing.assert_array_equal(getattr(there, name), getattr(here, name))
    near = here.partner >= 0
    expected = np.where(near, np.minimum(here.slack, 0.0), np.inf)
    np.testing.assert_array_equal(there.slack, expected)


@pytest.mark.parametrize(("kind", "run"), [("hamming", "0123abcd"), ("matrix", "0123abce")])
def test_cluster_pricing__gives_the_bits_of_memory(client: Client, kind: str, run: str) -> None:
    problem = make_problem(kind)
    price = ClusterPricing(client, run, "cluster")
    levels = np.linspace(0, 1, problem.n_columns)
    for question in (
        PricingQuestion(random_duals(problem, 1), 4, True),
        PricingQuestion(random_duals(problem, 2), 2, True, levels),
        PricingQuestion(random_duals(problem, 3)),
    ):
        assert_answers(price(problem, question), price_in_memory(problem, question))


@pytest.mark.parametrize(("solver", "run"), [("auto", "89abcdef"), ("frank_wolfe", "89abcdf0")])
def test_cluster_pricing__gives_the_same_mapping_for_any_workers(
    client: Client, solver: str, run: str
) -> None:
    joint, codes = random_joint(2, 48, 1), profiles(48, 2)
    given = {"distortion_budget": 0.3, "gap": 1e-7, "n_steps": 5, "solver": solver}
    alone = solve_privacy_mapping(joint, codes, **given)  # type: ignore[arg-type]
    price = ClusterPricing(client, run, "cluster")
    shared = solve_privacy_mapping(joint, codes, price=price, **given)  # type: ignore[arg-type]
    assert price.n_sent >= 8
    for name in ("pointers", "released", "probabilities", "potentials"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    assert shared.lower_bound == alone.lower_bound


def test_cluster_pricing__runs_as_price_columns_on_both_workers(client: Client) -> None:
    problem = make_problem("hamming")
    price = ClusterPricing(client, "00ff00ff", "cluster")
    for seed in range(4):
        price(problem, PricingQuestion(random_duals(problem, seed)))
    logs = client.run(
        lambda dask_worker: [
            str(key) for key, *_ in dask_worker.state.log if str(key).startswith("price_columns-")
        ]
    )
    assert len(logs) == 2
    assert all(any("00ff00ff" in key for key in keys) for keys in logs.values())


def test_cluster_pricing__auto_stays_where_sending_costs_more(client: Client) -> None:
    problem = make_problem("hamming")
    price = ClusterPricing(client, "11111111")
    price(problem, PricingQuestion(random_duals(problem, 1)))
    assert price.n_sent == 0


def test_plan_columns__covers_every_column_once() -> None:
    for n in (1, 3, 70, 65_536, 1_000_003):
        edges = plan_columns(n, n)
        assert edges[0] == 0
        assert edges[-1] == n
        assert all(a < b for a, b in pairwise(edges))
        assert 4 <= len(edges) - 1 <= 64 or n < 4


def test_spread__fits_of_values_give_the_same_mapping_for_any_workers(client: Client) -> None:
    records = make_records(*draw(4_000))
    alone = fit_privacy_mapping(records, options())
    assert digest_map(
        fit_privacy_mapping(records, options(), ClusterPricing(client, "0f0f0f0f"))
    ) == (digest_map(alone))


@pytest.mark.parametrize(("seconds", "n_tasks", "sent"), [(10.0, 4, True), (0.2, 50, False)])
def test_pays__a_pilot_decides_by_what_tasks_cost_and_says_so(
    client: Client, seconds: float, n_tasks: int, sent: bool
) -> None:
    heard: list[Event] = []
    price = ClusterPricing(DaskExecutor(client, "0e0e0e0e", heard.append))
    assert 0 < price.task_seconds < 1.0
    price.__dict__["task_seconds"] = 0.01
    assert price.pays("solve_apart", seconds, n_tasks) == sent
    assert [(one.what, one.amount) for one in heard if one.what == "decides"] == [("decides", sent)]
    numbers = dict(heard[-1].numbers)
    assert numbers == {"here": seconds, "task": 0.01, "workers": 2.0}
    assert not price.pays("solve_apart", 0.001, n_tasks)  # no task would shorten it
    assert ClusterPricing(client, "0e0e0e0f", "cluster").pays("solve_apart", 0.0, 1)
    assert not ClusterPricing(client, "0e0e0e10", "inline").pays("solve_apart", 1e9, 9)
    assert not ClusterPricing(Executor()).pays("solve_apart", 1e9, 9)


def test_spread__sets_of_symbols_on_workers_give_the_same_mapping(client: Client) -> None:
    codes, private = draw(3_000)
    records, every = make_records(codes, private), ("attribute_0", "attribute_1", "attribute_2")
    plain = options(by=None, attributes=every)
    alone = fit_privacy_mapping(records, plain)
    assert "symbols charged" in alone.stopped
    price = ClusterPricing(client, "0f0f0f10", "cluster")
    assert digest_map(fit_privacy_mapping(records, plain, price)) == digest_map(alone)


def test_spread__choices_of_weights_on_workers_give_the_same_mapping(client: Client) -> None:
    """Budgets of several variables: of a round's two choices neither needs the other."""
    joint, codes = random_joint(6, 48, 3), profiles(48, 2)
    given = {"private": make_grid(2, 3), "information_budgets": (0.2, 0.1), "gap": 1e-6}
    given |= {"distortion_budget": 0.3}
    alone = solve_budgeted_mapping(joint, codes, **given)
    heard: list[Event] = []
    price = ClusterPricing(DaskExecutor(client, "0f0f0f11", heard.append), place="cluster")
    shared = solve_budgeted_mapping(joint, codes, price=price, **given)
    solved = [one for one in heard if one.work == "solve_apart" and one.what == "advances"]
    assert len(solved) >= 2
    for name in ("pointers", "released", "probabilities", "potentials"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    assert shared.guarantee == alone.guarantee


def test_spread__what_nobody_reads_is_not_begun() -> None:
    begun: list[int] = []

    def solve(one: int) -> int:
        begun.append(one)
        return one

    price = ClusterPricing(Executor())
    assert next(price.spread(solve, iter(range(9)), 2)) == 0
    assert begun == [0, 1]
    assert next(price.spread(solve, iter(range(9)), 0)) == 0
    assert begun == [0, 1, 0]
    assert list(price.spread(solve, range(3))) == [0, 1, 2]
