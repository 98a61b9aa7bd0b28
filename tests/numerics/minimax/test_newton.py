"""HeadSolver against scipy on the same convex problem, with Hessian and with its bound."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize as so

from privpipe.numerics.minimax.newton import HeadSolver
from privpipe.numerics.regression.logistic import (
    bound_softmax_curvature,
    make_class_basis,
    measure_softmax,
    pack_symmetric,
    sum_softmax_curvature,
)

RIDGE = 1e-3


def _draw(k: int, scale: float):
    rng = np.random.default_rng(k)
    inputs = np.column_stack([scale * rng.normal(size=(300, 4)), np.ones(300)])
    classes = (inputs[:, :4] @ rng.normal(size=(4, k)) + scale * rng.gumbel(size=(300, k))).argmax(
        1
    )
    return inputs, classes, make_class_basis(k)


def _loss(v: np.ndarray, inputs, classes, basis) -> tuple[float, np.ndarray]:
    losses, slopes, _ = measure_softmax(inputs @ v, classes, basis)
    free = np.array([1.0, 1, 1, 1, 0])[:, None]
    return losses.mean() + RIDGE * (
        free * v**2
    ).sum(), inputs.T @ slopes / 300 + 2 * RIDGE * free * v


def _drive(solver: HeadSolver, inputs, classes, basis, n_rounds: int) -> int:
    for n in range(n_rounds):
        losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
        full = sum_softmax_curvature(inputs, p, basis)
        block = bound_softmax_curvature(inputs.T @ inputs)
        nothing = np.empty(0)
        packed = (
            nothing if solver.quasi else pack_symmetric(full) / 300,
            pack_symmetric(block) / 300,
        )
        fresh = not solver.quasi or n == 0
        solver.receive(losses.mean(), inputs.T @ slopes / 300, packed if fresh else None)
        if solver.accepted and (solver.gap < 1e-14 or solver.stalled):
            return n
        solver.propose()
    return n_rounds


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
@pytest.mark.parametrize(("k", "quasi", "limit"), [(2, False, 30), (5, False, 30), (5, True, 200)])
def test_head_solver__finds_the_minimum(scale: float, k: int, quasi: bool, limit: int) -> None:
    inputs, classes, basis = _draw(k, scale)
    solver = HeadSolver(np.zeros((5, k - 1)), ridge=RIDGE, n_free=1, quasi=quasi)
    rounds = _drive(solver, inputs, classes, basis, limit)
    best = so.minimize(
        lambda v: [
            a if np.ndim(a) == 0 else a.ravel()
            for a in _loss(v.reshape(5, -1), inputs, classes, basis)
        ],
        np.zeros(5 * (k - 1)),
        jac=True,
        method="BFGS",
        options={"gtol": 1e-10},
    ).fun
    assert rounds < limit
    assert solver.value == pytest.approx(best, abs=1e-9)
    assert np.abs(_loss(solver.head, inputs, classes, basis)[1]).max() < 1e-5


def test_head_solver__refuses_a_step_that_overshoots() -> None:
    inputs, classes, basis = _draw(3, 1.0)
    far = 40.0 * np.random.default_rng(0).normal(size=(5, 2))
    solver = HeadSolver(far, ridge=RIDGE, n_free=1, quasi=False)
    values = []
    for _ in range(40):
        losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
        packed = (
            pack_symmetric(sum_softmax_curvature(inputs, p, basis)) / 300,
            pack_symmetric(bound_softmax_curvature(inputs.T @ inputs)) / 300,
        )
        solver.receive(losses.mean(), inputs.T @ slopes / 300, packed)
        values.append(solver.value)
        solver.propose()
    assert (np.diff(values) <= 1e-12).all()
    assert solver.gap < 1e-12
