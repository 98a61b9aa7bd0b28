"""HeadSolver and InexactSolver against scipy on the same convex problem."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize as so

from privpipe.numerics.logistic import (
    bound_softmax_curvature,
    make_class_basis,
    measure_softmax,
    multiply_softmax_curvature,
    pack_symmetric,
    sum_softmax_curvature,
)
from privpipe.numerics.minimax.newton import HeadSolver, InexactSolver

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
        packed = (pack_symmetric(full) / 300, pack_symmetric(block) / 300)
        if isinstance(solver, InexactSolver) and solver.needs_product:
            product = multiply_softmax_curvature(inputs, p, basis, solver.probe) / 300
            solver.take_product(product)
            solver.propose()
            continue
        fresh = not isinstance(solver, InexactSolver) or n == 0
        solver.receive(losses.mean(), inputs.T @ slopes / 300, packed if fresh else None)
        if solver.accepted and (solver.gap < 1e-14 or solver.stalled):
            return n
        solver.propose()
    return n_rounds


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
@pytest.mark.parametrize(
    ("k", "inexact", "limit"), [(2, False, 30), (5, False, 30), (2, True, 60), (5, True, 100)]
)
def test_head_solver__finds_the_minimum(scale: float, k: int, inexact: bool, limit: int) -> None:
    inputs, classes, basis = _draw(k, scale)
    solver = _make(np.zeros((5, k - 1)), inexact)
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


def _make(start: np.ndarray, inexact: bool) -> HeadSolver:
    if inexact:
        return InexactSolver(start, ridge=RIDGE, n_free=1, tolerance=1e-14)
    return HeadSolver(start, ridge=RIDGE, n_free=1)


def test_head_solver__of_features_of_very_different_scales_takes_newton_steps() -> None:
    """What keeps steps finite was a share of the mean curvature: small features hardly moved."""
    inputs, classes, basis = _draw(3, 1.0)
    scales = np.array([1e4, 1.0, 1e-2, 1e-4, 1.0])

    def count(inputs: np.ndarray, ridge: float) -> tuple[int, HeadSolver]:
        solver = HeadSolver(np.zeros((5, 2)), ridge=ridge, n_free=1)
        return _drive(solver, inputs, classes, basis, 200), solver

    (rounds, plain), (scaled_rounds, scaled) = count(inputs, 1e-20), count(inputs * scales, 1e-20)
    assert scaled_rounds <= rounds + 2
    assert np.allclose(scaled.head * scales[:, None], plain.head, rtol=1e-4)


@pytest.mark.parametrize("inexact", [False, True])
def test_head_solver__refuses_a_step_that_overshoots(inexact: bool) -> None:
    inputs, classes, basis = _draw(3, 1.0)
    rng = np.random.default_rng(5)
    far = rng.normal(size=(5, 2))
    classes = np.where(rng.random(300) < 0.02, classes, (inputs @ far @ basis.T).argmax(1))
    solver = _make(9 * far, inexact)
    values, n_refused = [], 0
    for _ in range(80 if inexact else 40):
        losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
        packed = (
            pack_symmetric(sum_softmax_curvature(inputs, p, basis)) / 300,
            pack_symmetric(bound_softmax_curvature(inputs.T @ inputs)) / 300,
        )
        if isinstance(solver, InexactSolver) and solver.needs_product:
            solver.take_product(multiply_softmax_curvature(inputs, p, basis, solver.probe) / 300)
            solver.propose()
            continue
        solver.receive(losses.mean(), inputs.T @ slopes / 300, packed)
        values.append(solver.value)
        n_refused += not solver.accepted
        solver.propose()
    assert n_refused > 0
    assert (np.diff(values) <= 1e-12).all()
    assert solver.gap < 1e-12


@pytest.mark.parametrize("k", [2, 3, 7])
def test_multiply_softmax_curvature__is_the_difference_of_slopes(k: int) -> None:
    inputs, classes, basis = _draw(k, 1.0)
    rng = np.random.default_rng(1)
    head, direction = rng.normal(size=(2, 5, k - 1))

    def slope(v: np.ndarray) -> np.ndarray:
        return inputs.T @ measure_softmax(inputs @ v, classes, basis)[1]

    p = measure_softmax(inputs @ head, classes, basis)[2]
    product = multiply_softmax_curvature(inputs, p, basis, direction)
    step = 1e-5
    differences = (slope(head + step * direction) - slope(head - step * direction)) / (2 * step)
    np.testing.assert_allclose(product, differences, rtol=1e-6, atol=1e-6)
    whole = sum_softmax_curvature(inputs, p, basis) @ direction.T.ravel()
    np.testing.assert_allclose(product.T.ravel(), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scale", [0.01, 1.0, 50.0])
def test_inexact_solver__says_how_far_the_head_is(scale: float) -> None:
    inputs, classes, basis = _draw(5, scale)
    best = _make(np.zeros((5, 4)), inexact=True)
    _drive(best, inputs, classes, basis, 300)
    solver = InexactSolver(np.zeros((5, 4)), ridge=RIDGE, n_free=1, tolerance=1e-4)
    for n in range(200):
        losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
        block = pack_symmetric(bound_softmax_curvature(inputs.T @ inputs)) / 300
        if solver.needs_product:
            solver.take_product(multiply_softmax_curvature(inputs, p, basis, solver.probe) / 300)
        else:
            solver.receive(
                losses.mean(), inputs.T @ slopes / 300, (np.empty(0), block) if n == 0 else None
            )
        if solver.accepted and solver.gap <= 1e-4:
            break
        solver.propose()
    assert solver.value - best.value <= 1.2 * solver.gap <= 1.2e-4


@pytest.mark.parametrize("inexact", [False, True])
def test_head_solver__begins_at_zero_where_the_old_head_does_worse(inexact: bool) -> None:
    inputs, classes, basis = _draw(3, 1.0)
    far = 40.0 * np.random.default_rng(0).normal(size=(5, 2))
    solver = _make(far, inexact)
    losses, slopes, p = measure_softmax(inputs @ far, classes, basis)
    hessian = np.empty(0) if inexact else sum_softmax_curvature(inputs, p, basis)
    block = bound_softmax_curvature(inputs.T @ inputs)
    packed = (hessian if inexact else pack_symmetric(hessian) / 300, pack_symmetric(block) / 300)
    solver.receive(losses.mean(), inputs.T @ slopes / 300, packed)
    assert solver.accepted
    assert not solver.head.any()
    assert not (isinstance(solver, InexactSolver) and solver.needs_product)


def test_head_solver__is_not_lost_at_a_filter_that_is_only_looked_at() -> None:
    """Outputs a thousand times as large, as where a line search goes too far."""
    inputs, classes, basis = _draw(2, 1.0)
    far = np.column_stack([1e3 * inputs[:, :4] ** 3, np.ones(300)])
    solver = _make(np.array([[3.0], [-4.0], [5.0], [2.0], [0.3]]), inexact=False)
    assert _drive(solver, far, classes, basis, 60) < 60


def test_head_solver__steps_where_every_record_is_told_with_certainty() -> None:
    """Probabilities of one and zero: a Hessian of rounding alone; an intercept has no ridge."""
    inputs, classes, basis = _draw(3, 1.0)
    inputs = np.column_stack([1e6 * inputs[:, :4], np.ones(300)])
    head = np.random.default_rng(0).normal(size=(5, 2))
    classes = (inputs @ head @ basis.T).argmax(1)
    solver = HeadSolver(1e3 * head, ridge=1e-12, n_free=1)
    losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
    hessian = sum_softmax_curvature(inputs, p, basis) / 300
    hessian[4, 4] -= 1e-6  # as rounding leaves it
    with pytest.raises(np.linalg.LinAlgError):
        np.linalg.cholesky(hessian)
    block = bound_softmax_curvature(inputs.T @ inputs) / 300
    packed = (pack_symmetric(hessian), pack_symmetric(block))
    solver.receive(losses.mean(), inputs.T @ slopes / 300, packed)
    solver.propose()
    assert np.isfinite(solver.gap)
    assert np.isfinite(solver.trial).all()


@pytest.mark.parametrize(("seed", "k", "far"), [(0, 6, 0), (1, 6, 20), (3, 3, 20), (4, 6, 20)])
def test_head_solver__solves_what_is_told_without_error(seed: int, k: int, far: float) -> None:
    """Hardly any ridge and classes apart: the curvature falls a million times below its bound."""
    rng = np.random.default_rng(seed)
    inputs = np.column_stack([rng.normal(size=(300, 4)), np.ones(300)])
    basis, truth = make_class_basis(k), rng.normal(size=(5, k - 1))
    classes = (inputs @ truth @ basis.T).argmax(1)
    solver = HeadSolver(far * truth, ridge=1e-9, n_free=1)
    _drive(solver, inputs, classes, basis, 45)
    assert not solver.stalled
    assert solver.gap < 1e-9


def test_head_solver__begins_at_zero_where_it_is_sure_and_errs() -> None:
    """Some are told wrongly by large scores: a loss that hardly bends."""
    rng = np.random.default_rng(2)
    inputs = np.column_stack([rng.normal(size=(300, 4)), np.ones(300)])
    basis, truth = make_class_basis(3), rng.normal(size=(5, 2))
    classes = (inputs @ truth @ basis.T).argmax(1)
    turned = truth + 0.05 * np.random.default_rng(3).normal(size=truth.shape)
    solver = HeadSolver(60 * turned, ridge=1e-9, n_free=1)
    losses, slopes, p = measure_softmax(inputs @ solver.trial, classes, basis)
    hessian = pack_symmetric(sum_softmax_curvature(inputs, p, basis)) / 300
    block = pack_symmetric(bound_softmax_curvature(inputs.T @ inputs)) / 300
    assert losses.mean() < np.log(3)  # better than a guess
    solver.receive(losses.mean(), inputs.T @ slopes / 300, (hessian, block))
    assert not solver.head.any()


def test_inexact_solver__weighs_damping_by_the_bound_of_the_curvature() -> None:
    """As the solver with a Hessian does: the block that shapes its steps is smaller."""
    inputs, _, _ = _draw(5, 1.0)
    packed = pack_symmetric(bound_softmax_curvature(inputs.T @ inputs)) / 300
    direction = np.random.default_rng(0).normal(size=(5, 4))
    exact, inexact = (_make(np.zeros((5, 4)), inexact) for inexact in (False, True))
    exact._keep((np.empty(0), packed), 4)
    inexact._keep((np.empty(0), packed), 4)
    assert inexact._bound(direction) == pytest.approx(exact._bound(direction), rel=0.02)
