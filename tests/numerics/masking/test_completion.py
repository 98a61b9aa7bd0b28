"""The Gram recursion of problem (3) against the iteration on whole matrices, and its optimum."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from privpipe.errors import InputError
from privpipe.numerics.masking.completion import FixedPointOptions, WeightedBlock, solve_completion
from tests.oracles import complete_literally, measure_completion


def make_problem(
    seed: int, t: int, q: int, n: int, m: int, heavy: float
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Data and row weights of records and of surrogates whose responses are not observed."""
    random = np.random.default_rng(seed)
    factors = random.normal(size=(t + q, 2))
    records = factors @ random.normal(size=(2, n)) + 0.3 * random.normal(size=(t + q, n))
    surrogates = records @ random.choice([-1.0, 1.0], (n, m)) / math.sqrt(m)
    surrogates[:t] = 0.0
    weights = np.concatenate([np.full(t, heavy), np.ones(q)])
    hidden = weights.copy()
    hidden[:t] = 0.0
    return [records, surrogates], [weights, hidden]


def as_blocks(data: list[np.ndarray], weights: list[np.ndarray]) -> list[WeightedBlock]:
    return [WeightedBlock(r @ r.T, w) for r, w in zip(data, weights, strict=True)]


@settings(max_examples=25, deadline=None)
# A level of the continuation that is the penalty itself, to rounding.
@example(seed=0, t=1, q=2, n=8, m=2, heavy=0.2, share=0.25, cuts=[], unseen=False)
@given(
    seed=st.integers(0, 2**32 - 1),
    t=st.integers(1, 3),
    q=st.integers(2, 6),
    n=st.integers(8, 40),
    m=st.integers(2, 20),
    heavy=st.sampled_from([0.2, 1.0, 3.0]),
    share=st.floats(0.02, 0.5),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    unseen=st.booleans(),
)
def test_solve_completion__is_the_literal_iteration(
    seed: int,
    t: int,
    q: int,
    n: int,
    m: int,
    heavy: float,
    share: float,
    cuts: list[int],
    unseen: bool,
) -> None:
    """Whatever the shapes, the weights, the rows that a block lacks, and the chunks of the sums."""
    data, weights = make_problem(seed, t, q, n, m, heavy)
    if unseen:  # a feature that no surrogate has
        data[1][-1], weights[1][-1] = 0.0, 0.0
    whole = np.hstack(data)
    entries = np.hstack(
        [np.tile(w[:, None], r.shape[1]) for w, r in zip(weights, data, strict=True)]
    )
    penalty = share * np.linalg.norm(entries * whole, 2)
    steps = FixedPointOptions(tolerance=-1, early_tolerance=-1, gap=-1, max_iterations=12)
    chunks = np.split(data[0], sorted(min(cut, n) for cut in cuts), axis=1)
    summed = sum((part @ part.T for part in chunks), np.zeros((t + q, t + q)))
    blocks = [WeightedBlock(summed, weights[0]), *as_blocks(data[1:], weights[1:])]
    found = solve_completion(blocks, penalty, steps)
    made = np.hstack([f @ r for f, r in zip(found.factors, data, strict=True)])
    expected = complete_literally(whole, entries, penalty, 12)
    np.testing.assert_allclose(made, expected, atol=1e-10 * np.abs(whole).max())


@pytest.mark.parametrize(("seed", "heavy"), [(3, 1.0), (4, 3.0), (5, 0.2)])
def test_solve_completion__meets_first_order_conditions_and_the_interior_point(
    seed: int, heavy: float
) -> None:
    import cvxpy as cp

    data, weights = make_problem(seed, 2, 4, 15, 8, heavy)
    whole = np.hstack(data)
    entries = np.hstack(
        [np.tile(w[:, None], r.shape[1]) for w, r in zip(weights, data, strict=True)]
    )
    found = solve_completion(as_blocks(data, weights), 1.5)
    made = np.hstack([f @ r for f, r in zip(found.factors, data, strict=True)])
    z = cp.Variable(whole.shape)
    loss = cp.sum_squares(cp.multiply(np.sqrt(entries), z - whole)) / 2
    best = cp.Problem(cp.Minimize(1.5 * cp.normNuc(z) + loss)).solve(solver=cp.CLARABEL)
    mine = measure_completion(made, whole, entries, 1.5)
    assert mine == pytest.approx(best, rel=1e-6)
    assert mine == pytest.approx(found.objective, rel=1e-9)
    assert 0 <= found.gap + 1e-12 * mine <= 1e-9 * mine
    # The weighted residual is a subgradient of the nuclear norm: sum of u v^T on the range.
    residual = entries * np.where(entries > 0, whole - made, 0.0) / 1.5
    u, s, vt = np.linalg.svd(made, full_matrices=False)
    rank = len(found.singular_values)
    assert s[rank:].max(initial=0.0) < 1e-7 * s[0]
    np.testing.assert_allclose(u[:, :rank].T @ residual @ vt[:rank].T, np.eye(rank), atol=1e-5)
    assert np.linalg.norm(residual, 2) <= 1 + 1e-6


def test_solve_completion__masked_responses_are_linear_in_masked_features() -> None:
    data, weights = make_problem(5, 2, 6, 60, 30, 1.0)
    found = solve_completion(as_blocks(data, weights), 3.0)
    surrogates = found.factors[1] @ data[1]
    responses, features = surrogates[:2], surrogates[2:]
    fitted = np.linalg.lstsq(features.T, responses.T, rcond=1e-8)[0].T @ features
    assert np.linalg.norm(responses - fitted) <= 1e-10 * np.linalg.norm(responses)


def test_solve_completion__says_why_it_stopped() -> None:
    data, weights = make_problem(5, 1, 4, 30, 10, 1.0)
    blocks = as_blocks(data, weights)
    assert solve_completion(blocks, 2.0).stopped in ("change", "gap")
    short = FixedPointOptions(tolerance=-1, gap=-1, max_iterations=3)
    assert solve_completion(blocks, 2.0, short).stopped == "iterations"
    alone = FixedPointOptions(tolerance=1e-6, gap=-1)
    assert solve_completion(blocks, 2.0, alone).stopped == "change"


@pytest.mark.parametrize("penalty", [0.0, -1.0, math.nan, math.inf])
def test_solve_completion__refuses_what_is_no_problem(penalty: float) -> None:
    blocks = [WeightedBlock(np.eye(2), np.ones(2))]
    with pytest.raises(InputError, match="not finite and positive"):
        solve_completion(blocks, penalty)
    with pytest.raises(InputError, match="Nothing is observed"):
        solve_completion([WeightedBlock(np.zeros((2, 2)), np.ones(2))], 1.0)
    with pytest.raises(InputError, match="negative"):
        solve_completion([WeightedBlock(np.eye(2), -np.ones(2))], 1.0)
