"""Filters that are functions of one pass of moments: least squares minimax and Privacy LDS.

Hamm, JMLR 2017, equations (47)-(62). Both are generalised eigenproblems; both have only as many
informative directions as the target tasks have outputs, and refuse more.
"""

from collections.abc import Sequence

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.minimax.spectra import count_directions, guard_directions, solve_generalised
from privpipe.protocols import FloatArray
from privpipe.sanitizers.minimax.training.labelled_moments import LabelledMoments, LabelMoments
from privpipe.sanitizers.minimax.training.tasks import Task

# Far above rounding of the eigenproblem and far below any direction worth its leak.
INFORMATIVE = 1e-10
"""An eigenvalue of at most so much of the largest says nothing about the target."""


def cross_moments(task: Task, moments: LabelledMoments) -> FloatArray:
    """Covariance of the features with a task's targets, ``E[x y^T]``, centred.

    Classes are coded one column each, 0 or 1; a number is standardised.

    Returns
    -------
    cross : (n_features, n_outputs)
    """
    if task.role == "features":
        return np.asarray(moments.covariance / task.scale)
    label = moments.labels[task.column]
    if not task.is_classification:
        return np.asarray((label.cross / moments.count / task.scale)[:, None])
    return _class_moments(task, label, moments)[0].T


def between_classes(task: Task, moments: LabelledMoments) -> FloatArray:
    """Columns B with ``B B^T`` the scatter between the classes of a task, per record (60).

    For a number, the part of the features' covariance that it explains.
    """
    if not task.is_classification:
        return cross_moments(task, moments)
    label = moments.labels[task.column]
    cross, share = _class_moments(task, label, moments)
    return np.asarray((cross / np.sqrt(share)[:, None]).T)


def _class_moments(
    task: Task, label: LabelMoments, moments: LabelledMoments
) -> tuple[FloatArray, FloatArray]:
    """Share of each class times the deviation of its mean, and the shares."""
    counts, means = label.counts.astype(np.float64), label.means
    if not np.isnan(task.singled_out):
        chosen = label.values == task.singled_out
        pooled = (counts[~chosen] @ means[~chosen]) / counts[~chosen].sum()
        counts = np.array([counts[~chosen].sum(), counts[chosen][0]])
        means = np.vstack([pooled, means[chosen]])
    # Deviations weighted once here and by the root in `between_classes`: (60) of the paper.
    share = counts / moments.count
    return share[:, None] * (means - moments.mean), share


def find_least_squares_directions(
    tasks: Sequence[Task],
    moments: LabelledMoments,
    n_filtered: int,
    ridge: float,
    *,
    fill: bool = False,
) -> tuple[FloatArray, int]:
    """Minimise Phi with least squares tasks exactly: an eigenproblem.

    With heads solved, a task costs ``const - tr((U^T C U)^-1 U^T C_t C_t^T U)``, so Phi is the sum
    of the eigenvalues of ``(-sum_t a_t C_t C_t^T, C)`` on the space chosen, private tasks having
    negative weights a_t; the smallest are best and only negative ones are worth their leak.

    Parameters
    ----------
    n_filtered
        Number of directions; 0 takes the informative ones. Beyond those, principal directions
        that are uncorrelated with them and with the private variables.
    ridge
        Of the features' covariance, relative to its mean eigenvalue.

    Returns
    -------
    directions : (n_features, n_filtered)
        ``U^T (C + ridge) U = I``.
    n_informative
        Number of negative eigenvalues.

    References
    ----------
    Hamm, JMLR 2017, equations (47)-(58).
    """
    crosses = [cross_moments(task, moments) for task in tasks]
    signs = np.concatenate(
        [np.full(c.shape[1], -t.weight) for t, c in zip(tasks, crosses, strict=True)]
    )
    # Solved in the range of the class moments: a square eigensolver returned 36 directions of
    # rounding as informative ones on motion records.
    values, vectors = solve_generalised(np.column_stack(crosses), signs, moments.covariance, ridge)
    n_informative = int((values < -INFORMATIVE * np.abs(values).max(initial=1e-300)).sum())
    taken = vectors[:, : min(max(n_informative, 1), n_filtered or len(values))]
    missing = max(n_filtered - taken.shape[1], 0)
    if not missing:
        return taken, n_informative
    hide = [t for t in tasks if t.weight < 0]
    closed = np.column_stack([cross_moments(t, moments) for t in hide])
    rest = _guard(moments, closed, moments.covariance @ taken, missing, fill=fill)
    variance = np.einsum("ij,ij->j", rest, moments.covariance @ rest)
    rest = rest / np.sqrt(np.maximum(variance, 1e-300))
    return np.column_stack([taken, rest]), n_informative


def find_privacy_lds(
    tasks: Sequence[Task],
    moments: LabelledMoments,
    n_filtered: int,
    ridge: float,
    *,
    fill: bool = False,
) -> tuple[FloatArray, int]:
    """Directions that separate target classes and not the private ones.

    The informative ones are generalised eigenvectors of the scatters between classes (62); the
    rest are principal directions inside the null space of the private scatter, which a linear
    adversary cannot use, rather than the arbitrary vectors that the eigenproblem leaves open.

    Returns
    -------
    directions : (n_features, n_filtered)
        Of unit length.
    n_informative
        Rank of the target scatter.
    """
    keep = [t for t in tasks if t.weight > 0]
    hide = [t for t in tasks if t.weight < 0]
    target, private = _stack(keep, moments), _stack(hide, moments)
    ones = np.ones(target.shape[1])
    values, vectors = solve_generalised(target, ones, private @ private.T, ridge)
    n_informative = len(values)
    n_taken = min(n_informative, n_filtered or n_informative)
    taken = vectors[:, ::-1][:, :n_taken]
    taken = taken / np.linalg.norm(taken, axis=0)
    missing = (n_filtered or n_informative) - n_taken
    if not missing:
        return taken, n_informative
    rest = _guard(moments, private, taken, missing, fill=fill)
    return np.column_stack([taken, rest]), n_informative


def _guard(
    moments: LabelledMoments, closed: FloatArray, taken: FloatArray, missing: int, *, fill: bool
) -> FloatArray:
    """Principal directions that a linear adversary cannot use; others, or OptionError, if too few.

    A start may hold any direction: training leaves it. A filter that is final may not.
    """
    # The rank by the rule that closes the directions: the classes of a variable are dependent, and
    # whether their last singular value is above eps is for each processor another matter.
    room = len(moments.mean) - count_directions(np.column_stack([closed, taken]))
    if missing <= room:
        return guard_directions(moments.covariance, closed, taken, missing)
    if not fill:
        most = taken.shape[1] + int(room)
        raise OptionError(
            f"n_filtered is {taken.shape[1] + missing}, but only {most} directions avoid the "
            "confidential variables.",
            remedy=f"Use at most {most}.",
        )
    # A start takes what room there is and is filled up: 28 of 400 odd problems were refused
    # before.
    guarded = guard_directions(moments.covariance, closed, taken, int(room))
    there = np.column_stack([taken, guarded])
    nothing = np.empty((len(there), 0))
    open_ = guard_directions(moments.covariance, nothing, there, missing - int(room))
    return np.column_stack([guarded, open_])


def _stack(tasks: Sequence[Task], moments: LabelledMoments) -> FloatArray:
    parts = [np.sqrt(abs(t.weight)) * between_classes(t, moments) for t in tasks]
    return np.column_stack(parts)
