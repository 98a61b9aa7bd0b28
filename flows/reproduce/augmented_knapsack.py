"""The augmented fractional knapsack of Xu et al. 2017, Figure 1, for any gains and costs.

Cleaning needs its closed forms alone, which `privpipe.numerics.null_space.knapsack` has.
"""

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.null_space.knapsack import check_budget, spent_before
from privpipe.protocols import FloatArray, IntArray


def solve_augmented_knapsack(gain: FloatArray, cost: FloatArray, budget: float) -> FloatArray:
    """Choose how much of each component to remove within a utility budget.

    For each record, maximise ``sum(alpha**2 * gain)`` subject to
    ``sum(alpha**2 * cost) <= budget`` and ``0 <= alpha <= 1``. In ``alpha**2`` this is the
    fractional knapsack, so taking components by decreasing ``gain / cost`` is optimal and at
    most one share is fractional. Ties are taken in the order of the components.

    Parameters
    ----------
    gain : (n_records, n_components)
        Confidential error won by removing a component whole. Non-negative.
    cost : (n_records, n_components)
        Utility lost by removing a component whole, in squared units of the desired
        prediction. Non-negative; a component of zero cost is removed whole.
    budget
        Largest loss of utility per record, in the units of `cost`.

    Returns
    -------
    alpha : (n_records, n_components), float64
        Share of each component to remove.

    Raises
    ------
    OptionError
        If `budget` is negative or not finite.
    InputError
        If `gain` and `cost` differ in shape, are not matrices, or hold negative or non-finite
        values.

    Notes
    -----
    Guarantee (exact arithmetic; the cleaner adds the rounding margin):
    ``(alpha**2 * cost).sum(axis=1) <= budget * (1 + 1e-12)`` for every record, in float64.
    Rows do not influence one another.

    References
    ----------
    Xu et al. 2017, Cleaning the Null Space, Figure 1 with the augmented step 4.

    Examples
    --------
    >>> solve_augmented_knapsack(np.ones((1, 3)), np.array([[0.0, 4.0, 16.0]]), budget=8.0)
    array([[1. , 1. , 0.5]])
    """
    check_budget(budget)
    gain, cost = np.asarray(gain, np.float64), np.asarray(cost, np.float64)
    _check_components(gain, cost)
    free = cost == 0
    order = _order_by_ratio(gain, cost)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        # In the order in which components are removed, each finds spent what the earlier ones cost.
        spent = spent_before(np.take_along_axis(cost, order, axis=1))
        left = np.empty_like(cost)
        np.put_along_axis(left, order, np.maximum(budget - spent, 0.0), axis=1)
        # The share is of alpha**2, hence the root; at most one component of a record is fractional.
        return np.where(free, 1.0, np.sqrt(np.minimum(left / cost, 1.0)))


def _order_by_ratio(gain: FloatArray, cost: FloatArray) -> IntArray:
    """Components by decreasing ``gain / cost``, free ones first, ties as they are.

    A quotient of floats overflows, or vanishes, where its exponent does not fit: such components
    would all tie. Mantissas and exponents are divided apart, so that every ratio keeps its place.
    """
    free = cost == 0
    above, up = np.frexp(gain)
    below, down = np.frexp(np.where(free, 1.0, cost))
    mantissa, carry = np.frexp(above / below)
    # Nothing gained comes last, free ones first; halves of the range, so that no sum overflows.
    exponent = np.where(gain == 0, np.iinfo(np.int32).min // 2, up - down + carry)
    exponent = np.where(free, np.iinfo(np.int32).max // 2, exponent)
    mantissa = np.where(free, 1.0, mantissa)
    return np.lexsort((-mantissa, -exponent), axis=1)


def _check_components(gain: FloatArray, cost: FloatArray) -> None:
    if gain.ndim != 2 or gain.shape != cost.shape:
        raise InputError(
            f"gain has shape {gain.shape} and cost {cost.shape}.",
            remedy="Give both as (n_records, n_components).",
        )
    for name, table in (("gain", gain), ("cost", cost)):
        bad = int(np.count_nonzero(~(np.isfinite(table) & (table >= 0))))
        if bad:
            raise InputError(
                f"{name} holds {bad} negative or non-finite values.",
                remedy="Gains and costs are finite and at least 0.",
            )
