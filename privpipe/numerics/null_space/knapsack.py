"""Closed forms of the augmented fractional knapsack, all rows of a chunk at once, in NumPy.

Xu et al. 2017, Figure 1 with the augmented step 4. Take the coordinates ``b`` of a predictor
(`factorisation`). Removing the share alpha of coordinate j costs ``alpha**2 * b_j**2`` and leaves
``(1 - alpha) b_j``. What stays is formed by subtracting from ``|b_j|``: that keeps the digits which
forming ``1 - alpha`` would cancel. Every operation, and their order, is that of the compiled
kernel, so the bits agree. No record's bits depend on which others are in its block, as they would
in a matrix product.
"""

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.rounding import multiply_in_order
from privpipe.protocols import FloatArray

SMALLEST, LARGEST = 1e-280, 1e260
"""Between these all squares are numbers: what coordinates beyond 1e150 lose by rounding alone costs
more, so that such records are withheld. Beyond them up to 2.5 times the budget was spent."""


def check_budget(budget: float) -> None:
    """Raise OptionError unless `budget` is 0 or a number from `SMALLEST` to `LARGEST`."""
    # A caller may hand over a text, or a list.
    is_number = not np.iterable(budget) and np.asarray(budget).dtype.kind in "iuf"
    if not is_number or not (budget == 0 or SMALLEST <= budget <= LARGEST):
        remedy = f"Use 0 or a number from {SMALLEST:g} to {LARGEST:g} (squared units)."
        raise OptionError(f"utility_budget is {budget!r}.", remedy=remedy, code="budget")


def spent_before(cost: FloatArray) -> FloatArray:
    """Cost of all components before each one, without subtracting (which would cancel)."""
    spent = np.zeros_like(cost)
    # Summed forwards: a total less the rest would cancel where one cost is far above the others.
    np.cumsum(cost[:, :-1], axis=1, out=spent[:, 1:])
    return spent


FEW = 12
"""Up to so many coordinates what is spent before each is summed without sorting."""


def shrink_by_rule(coordinates: FloatArray, budget: FloatArray, rule: str) -> FloatArray:
    """Shrink by the rule of that name: "greedy", "in_order" or "kkt"."""
    rules = {"greedy": shrink_coordinates, "in_order": shrink_in_order, "kkt": shrink_evenly}
    return rules[rule](coordinates, budget)


def shrink_coordinates(coordinates: FloatArray, budget: FloatArray) -> FloatArray:
    """Solve algorithm 1's knapsack in the coordinates whose squares are the costs ("greedy").

    With the costs ``H = b**2`` and gains 1 the knapsack takes the components by increasing
    ``|b|``, ties by their number.

    Parameters
    ----------
    coordinates : (n_records, rank)
        ``b``, in units of the desired prediction.
    budget : (n_records,)
        Budget of each record, non-negative, in squared units of the desired prediction.

    Returns
    -------
    retained : (n_records, rank), float64
        What is left of each coordinate; ``((coordinates - retained)**2).sum(1) <= budget``.

    References
    ----------
    Xu et al. 2017, Figure 1 (augmented) with G = 1, and Figure 2.

    Examples
    --------
    >>> shrink_coordinates(np.array([[3.0, 1.0]]), np.array([5.0]))
    array([[1., 0.]])
    """
    rank = coordinates.shape[1]
    # One coordinate needs no order.
    if rank == 1:
        return shrink_in_order(coordinates, budget)
    if rank <= FEW:
        with np.errstate(over="ignore", under="ignore"):
            return _shrink(coordinates, budget, _spent_on_smaller(coordinates * coordinates))
    # Stable: ties are taken by number, as the kernel counts them.
    order = np.argsort(np.abs(coordinates), axis=1, kind="stable")
    retained = np.empty_like(coordinates)
    shrunk = shrink_in_order(np.take_along_axis(coordinates, order, axis=1), budget)
    np.put_along_axis(retained, order, shrunk, axis=1)
    return retained


def shrink_in_order(coordinates: FloatArray, budget: FloatArray) -> FloatArray:
    """Remove coordinates in the order of their columns until the budget is spent ("in_order").

    This is algorithm 2's knapsack. In its basis ``G / H`` is the same for all records, so columns
    sorted once, by decreasing gain, need no sorting per record.

    Parameters
    ----------
    coordinates : (n_records, rank)
        ``b``, in units of the desired prediction, columns by decreasing gain per cost.
    budget : (n_records,)
        Budget of each record, non-negative.

    Returns
    -------
    retained : (n_records, rank), float64

    References
    ----------
    Xu et al. 2017, Figure 3, step 4.

    Examples
    --------
    >>> shrink_in_order(np.array([[3.0, 1.0]]), np.array([4.0]))
    array([[1., 1.]])
    """
    with np.errstate(over="ignore", under="ignore"):
        return _shrink(coordinates, budget, spent_before(coordinates * coordinates))


def _shrink(coordinates: FloatArray, budget: FloatArray, spent: FloatArray) -> FloatArray:
    """What is left of coordinates of which each finds so much spent."""
    size = np.abs(coordinates)
    # Rounding may carry what is spent over the budget: nothing is left then, never a root of less.
    left = np.maximum(budget[:, None] - spent, 0.0)
    # The share alpha of b costs (alpha b)^2 <= left, so |b| falls by at most the root of what is
    # left.
    rest = np.maximum(size - np.sqrt(left), 0.0)
    return _with_sign(np.where(size * size <= left, 0.0, rest), coordinates)


def _spent_on_smaller(cost: FloatArray) -> FloatArray:
    """Cost of the components that are smaller than each one, ties by number, in their order."""
    spent = np.zeros_like(cost)
    for j in range(cost.shape[1]):
        for i in range(cost.shape[1]):
            if i != j:
                # Every coordinate sums what lies before it anew, in one order for all: the kernel
                # does the same without a branch, and the bits agree.
                smaller = cost[:, i] <= cost[:, j] if i < j else cost[:, i] < cost[:, j]
                spent[:, j] += np.where(smaller, cost[:, i], 0.0)
    return spent


def shrink_evenly(coordinates: FloatArray, budget: FloatArray) -> FloatArray:
    """Maximise the sum of the removed shares within the budget ("kkt").

    Theorem 2 requires the largest ``sum(alpha)`` subject to ``sum(alpha**2 b**2) <= budget``. Every
    share has ``0 <= alpha <= 1``. The first-order conditions give ``alpha = min(1, mu / b**2)``, so
    the smallest coordinates go whole and each other one loses ``mu / |b|``.

    Parameters
    ----------
    coordinates : (n_records, rank)
        ``b``, in units of the desired prediction.
    budget : (n_records,)
        Budget of each record, non-negative.

    Returns
    -------
    retained : (n_records, rank), float64

    Notes
    -----
    Departure: the paper solves this with the knapsack of its Figure 1, which maximises the sum
    of ``alpha**2`` instead; see "greedy".

    References
    ----------
    Xu et al. 2017, Theorem 2.

    Examples
    --------
    >>> shrink_evenly(np.array([[2.0, 1.0, -2.0]]), np.array([1.5])).round(12)
    array([[ 1.5,  0. , -1.5]])
    """
    size = np.abs(coordinates)
    order = np.argsort(size, axis=1, kind="stable")
    by_size = np.take_along_axis(size, order, axis=1)
    with np.errstate(over="ignore", under="ignore"):
        removed = _share_evenly(by_size, budget)
    rest = np.empty_like(size)
    np.put_along_axis(rest, order, by_size - np.minimum(removed, by_size), axis=1)
    return _with_sign(rest, coordinates)


def _share_evenly(size: FloatArray, budget: FloatArray) -> FloatArray:
    """How much each coordinate loses; `size` increases along rows.

    Component k is whole when the budget covers all before it, itself, and what the larger ones lose
    at ``mu = cost_k``. That is ``spent_k + cost_k * q_k`` with
    ``q_k = sum(cost_k / cost_i, i >= k)``. The factor q_k is found from the largest down without
    leaving the range of floats. The kernel does the same record by record.
    """
    cost = size * size
    rank = cost.shape[1]
    q = np.ones_like(cost)
    for k in range(rank - 2, -1, -1):
        larger = cost[:, k + 1]
        ratio = np.divide(cost[:, k], larger, out=np.zeros_like(larger), where=larger > 0)
        q[:, k] = 1.0 + ratio * q[:, k + 1]
    spent = spent_before(cost)
    # Whole ones are the first of the order: a later one may not be whole where an earlier is not.
    whole = np.logical_and.accumulate(spent + cost * q <= budget[:, None], axis=1)
    # Where all are whole the last one is looked up only to be left out below.
    first = np.minimum(whole.sum(axis=1), rank - 1)[:, None]
    left = np.maximum(budget[:, None] - np.take_along_axis(spent, first, axis=1), 0.0)
    root = np.sqrt(left / np.take_along_axis(q, first, axis=1))
    # mu = root * size[first], and coordinate i loses mu / size[i].
    start = np.take_along_axis(size, first, axis=1)
    return np.where(whole, size, np.divide(root * start, size, out=size.copy(), where=size > 0))


def _with_sign(size: FloatArray, signed: FloatArray) -> FloatArray:
    # Adding zero turns -0.0 into 0.0: the sign of a coordinate removed whole must not remain.
    return np.copysign(size, signed) + 0.0


def turn_predictions(
    values: FloatArray, shift: FloatArray, turn: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Coordinates of predictions on the grid.

    Parameters
    ----------
    values : (n_records, n_predictions)
    shift : (n_predictions,)
    turn : (n_predictions, rank)
        ``W``.

    Returns
    -------
    coordinates : (n_records, rank)
        ``b = W^T p`` of ``p = values + shift``.
    size : (n_records,)
        ``sum |p_i|``.
    unexplained : (n_records,)
        ``|p - W b|``; 0 where there are as many coordinates as predictions.
    """
    p = values + shift
    b = multiply_in_order(p, turn)
    size = np.abs(p[:, 0])
    for i in range(1, p.shape[1]):
        size = size + np.abs(p[:, i])
    unexplained = np.zeros(len(p))
    # Of as many coordinates as predictions nothing is left; rounding would only pretend some.
    if turn.shape[0] > turn.shape[1]:
        rest = p - multiply_in_order(b, turn.T)
        for i in range(p.shape[1]):
            unexplained = unexplained + rest[:, i] * rest[:, i]
        unexplained = np.sqrt(unexplained)
    return b, size, unexplained


def lift_coordinates(coordinates: FloatArray, lift: FloatArray, centre: FloatArray) -> FloatArray:
    """``centre + lift @ b``, (n_records, n_features), float64."""
    # Term by term, not a matrix product: BLAS would sum in an order that depends on the block.
    wide = multiply_in_order(coordinates, lift.T)
    wide += centre
    return wide
