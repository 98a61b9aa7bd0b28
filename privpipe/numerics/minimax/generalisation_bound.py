"""How far Phi on new records may lie above Phi on the training records, for linear filters.

Hamm, JMLR 2017, section 3.4, by the same route (Rademacher complexities of the losses), with the
constants that the route gives and for any filter rather than the global empirical minimiser.
"""

import numpy as np

from privpipe.protocols import FloatArray, IntArray


def bound_generalisation_gap(
    weights: FloatArray, norms: FloatArray, n_scores: IntArray, radius: float, n_records: int
) -> float:
    """Bound on the expectation of ``Phi(new records) - Phi(training records)``.

    Parameters
    ----------
    weights : (n_tasks,)
        Signed weights of the tasks in Phi.
    norms : (n_tasks,)
        Largest Frobenius norm of filter times head that analyst or adversary may use.
    n_scores : (n_tasks,)
        Scores of each softmax head in the zero-sum basis, one less than its classes.
    radius
        Largest Euclidean norm of a record (with a one appended when there are intercepts).
    n_records
        Number of training records.

    Returns
    -------
    bound
        In nats.

    Notes
    -----
    Guarantee: in expectation over training samples of independent records within `radius`, for
    heads confined to `norms`, both fixed before the records are seen, and *every* filter that
    may be learned from them: ``E[Phi_new(u) - Phi_train(u)] <= 2 sum_t |a_t| R_t``, where
    ``R_t = sqrt(2) c_t norms_t radius / sqrt(n_records)`` bounds the Rademacher complexity of
    task t's losses, with ``c_t = 1`` for one score and ``sqrt(2 m_t)`` for ``m_t`` scores.

    Proof. The difference of the two minima of a task is at most the largest deviation of its
    mean loss, in the direction of its sign, over all heads and filters; symmetrisation bounds
    its expectation by twice the Rademacher complexity (Lemma 2). The softmax loss is
    sqrt(2)-Lipschitz in the scores, so contraction (Lemma 5; Maurer 2016, corollary 1, for
    several scores) leaves the complexity of linear maps, ``norms radius sqrt(m / n)`` (Lemma 6).

    Departure: the paper's Theorem 4 compares the empirical *minimiser* with the best filter, and
    needs twice the sum; but no descent on a function that is not convex certifies its global
    minimum, so that statement is not ours to make. Corollary 7 treats one score; several are
    Maurer's. The paper bounds the norms of filter and head apart, which bounds their product.
    Records of one person are not independent; with the norms of a fitted filter in the place of
    norms fixed in advance, the number shows the size of the bound and is no guarantee. On real
    data it is often larger than the losses themselves, and then says nothing.

    References
    ----------
    Hamm, JMLR 2017, Theorem 4, Lemmas 2-6, Corollary 7. Maurer 2016, A vector-contraction
    inequality for Rademacher complexities.

    Examples
    --------
    >>> round(bound_generalisation_gap(
    ...     np.array([10.0, -1.0]), np.ones(2), np.array([1, 1]), radius=1.0, n_records=10_000
    ... ), 4)
    0.3111
    """
    contraction = np.where(n_scores == 1, 1.0, np.sqrt(2.0 * n_scores))
    complexity = np.sqrt(2.0) * contraction * norms * radius / np.sqrt(n_records)
    return float(2.0 * (np.abs(weights) * complexity).sum())
