"""From predictions on the grid to coordinates, and from coordinates to records, in NumPy.

Every operation, and their order, is that of the compiled kernel, so that the bits agree; and no
record's bits depend on which others are in its block, as they would in a matrix product.
"""

from __future__ import annotations

import numpy as np

from privpipe.numerics.null_space.grid.fixed_order import multiply_in_order
from privpipe.protocols import FloatArray


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
    if turn.shape[0] > turn.shape[1]:
        rest = p - multiply_in_order(b, turn.T)
        for i in range(p.shape[1]):
            unexplained = unexplained + rest[:, i] * rest[:, i]
        unexplained = np.sqrt(unexplained)
    return b, size, unexplained


def lift_coordinates(coordinates: FloatArray, lift: FloatArray, centre: FloatArray) -> FloatArray:
    """``centre + lift @ b``, (n_records, n_features), float64."""
    wide = multiply_in_order(coordinates, lift.T)
    wide += centre
    return wide


def bound_norms(coordinates: FloatArray, reach: FloatArray, centre_norm: float) -> FloatArray:
    """Bounds on the norms of any records made of coordinates, (n_records,)."""
    bound = np.full(len(coordinates), centre_norm)
    for j, length in enumerate(reach):
        bound = bound + length * np.abs(coordinates[:, j])
    return bound
