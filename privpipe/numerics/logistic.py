"""Softmax and squared losses of a linear head, with gradients and curvature, summed over records.

A head maps filtered records G (n_records, n_inputs) to scores G V. The classes of a softmax head
are written in an orthonormal zero-sum basis. So K classes have K - 1 scores and the curvature is
not singular. A ridge on V is the ridge on the K columns of the usual form.
"""

from functools import cache, lru_cache, reduce

import numpy as np

from privpipe.protocols import FloatArray, IntArray

SMALL = 64
"""Rows of a matrix up to which its upper triangle is remembered."""


@cache
def make_class_basis(n_classes: int) -> FloatArray:
    """Orthonormal basis of the score vectors that sum to zero (Helmert's, so it is fixed).

    Parameters
    ----------
    n_classes
        At least two.

    Returns
    -------
    basis : (n_classes, n_classes - 1)

    Examples
    --------
    >>> make_class_basis(3).round(3)
    array([[ 0.707,  0.408],
           [-0.707,  0.408],
           [ 0.   , -0.816]])
    """
    basis = np.zeros((n_classes, n_classes - 1))
    for j in range(1, n_classes):
        basis[:j, j - 1] = 1.0
        basis[j, j - 1] = -float(j)
        basis[:, j - 1] /= np.sqrt(j * (j + 1.0))
    basis.flags.writeable = False  # it is shared by all callers
    return basis


def measure_softmax(
    scores: FloatArray, classes: IntArray, basis: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Negative log-likelihood of each record's class, with its slope.

    Parameters
    ----------
    scores : (n_records, n_classes - 1)
        In the coordinates of `basis`.
    classes : (n_records,)
        Class numbers, ``0 .. n_classes - 1``.
    basis : (n_classes, n_classes - 1)

    Returns
    -------
    losses : (n_records,)
        In nats.
    slopes : (n_records, n_classes - 1)
        Derivative of each loss by the scores.
    probabilities : (n_records, n_classes)

    References
    ----------
    Hamm, JMLR 2017, equation (85).
    """
    logits = scores @ basis.T
    # Column by column: reductions along short rows cost several times as much.
    logits -= reduce(np.maximum, logits.T)[:, None]
    right = logits[np.arange(len(logits)), classes]
    p = np.exp(logits, out=logits)
    total = p @ np.ones(p.shape[1])
    p /= total[:, None]
    return np.log(total) - right, p @ basis - basis[classes], p


def sum_softmax_curvature(inputs: FloatArray, shares: FloatArray, basis: FloatArray) -> FloatArray:
    """Hessian of the summed softmax loss by the head.

    It is ``sum_i (B^T (diag p_i - p_i p_i^T) B) kron (g_i g_i^T)``. The first part needs only the
    moments of the inputs by class, the second is one symmetric product.

    Parameters
    ----------
    inputs : (n_records, n_inputs)
    shares : (n_records, n_classes)
    basis : (n_classes, n_classes - 1)

    Returns
    -------
    hessian : (q, q) with q = (n_classes - 1) n_inputs
        By the head's entries ordered score by score, ``head.T.ravel()``.
    """
    n, p = inputs.shape
    m = basis.shape[1]
    if m == 1:  # two classes: one weight per record
        return np.asarray(inputs.T @ (2.0 * shares[:, :1] * shares[:, 1:] * inputs))
    left, right = _find_upper(p)
    pairs = (inputs[:, left] * inputs[:, right]).T @ shares
    by_class = np.empty((p, p, len(basis)))
    by_class[left, right] = by_class[right, left] = pairs
    first = np.einsum("ka,kb,ijk->aibj", basis, basis, by_class, optimize=True)
    spread = ((shares @ basis)[:, :, None] * inputs[:, None, :]).reshape(n, m * p)
    return np.asarray(first.reshape(m * p, m * p) - spread.T @ spread)


def multiply_softmax_curvature(
    inputs: FloatArray, probabilities: FloatArray, basis: FloatArray, direction: FloatArray
) -> FloatArray:
    """Product of the Hessian of the summed softmax loss with a direction, without the Hessian.

    Parameters
    ----------
    inputs : (n_records, n_inputs)
    probabilities : (n_records, n_classes)
    basis : (n_classes, n_classes - 1)
    direction : (n_inputs, n_classes - 1)
        Of the head.

    Returns
    -------
    product : (n_inputs, n_classes - 1)
    """
    change = (inputs @ direction) @ basis.T
    change *= probabilities
    change -= probabilities * (change @ np.ones(change.shape[1]))[:, None]
    return np.asarray(inputs.T @ (change @ basis))


def bound_softmax_curvature(moments: FloatArray) -> FloatArray:
    """Upper bound of the Hessian of a softmax loss: the same block for every score.

    ``diag p - p p^T <= (I - e e^T / K) / 2`` with e the vector of ones. In the zero-sum basis the
    right side is ``I / 2``.

    Parameters
    ----------
    moments : (n_inputs, n_inputs)
        Sum of ``g g^T``.

    Returns
    -------
    block : (n_inputs, n_inputs)

    References
    ----------
    Böhning 1992, Multinomial logistic regression algorithm, theorem 1.
    """
    return 0.5 * moments


def measure_squares(scores: FloatArray, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Squared error of each record, summed over its outputs, with its slope.

    Parameters
    ----------
    scores, targets : (n_records, n_outputs)

    Returns
    -------
    losses : (n_records,)
        In squared units of the targets.
    slopes : (n_records, n_outputs)
    """
    error = scores - targets
    return np.einsum("ij,ij->i", error, error), 2.0 * error


def measure_entropy(counts: FloatArray | IntArray) -> float:
    """Entropy of the empirical distribution of classes, in nats.

    It is the loss of the best guess that does not look at the record.

    >>> measure_entropy(np.array([1, 1, 0])).__round__(4)
    0.6931
    """
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum())


@lru_cache(maxsize=8)
def _remember_upper(size: int) -> tuple[IntArray, IntArray]:
    left, right = np.triu_indices(size)
    return left, right


def _find_upper(size: int) -> tuple[IntArray, IntArray]:
    # Of few records they took a tenth of a fit; of large ones they are memory.
    return _remember_upper(size) if size <= SMALL else np.triu_indices(size)


def pack_symmetric(matrix: FloatArray) -> FloatArray:
    """Upper triangle of a symmetric matrix as a vector, half the bytes to send."""
    return np.asarray(matrix[_find_upper(len(matrix))])


def unpack_symmetric(packed: FloatArray) -> FloatArray:
    """Symmetric matrix from its upper triangle.

    >>> unpack_symmetric(pack_symmetric(np.array([[1.0, 2.0], [2.0, 3.0]])))
    array([[1., 2.],
           [2., 3.]])
    """
    size = int((np.sqrt(8 * len(packed) + 1) - 1) // 2)
    matrix = np.empty((size, size))
    left, right = _find_upper(size)
    matrix[left, right] = matrix[right, left] = packed
    return matrix
