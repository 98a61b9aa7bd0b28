"""The exponential mechanism and the identity: what SPPM is compared with.

McSherry and Talwar 2007, as Salamatian et al. section 4.2 use it: release b' with probability
proportional to exp(-beta d(b', b)), the same for every original symbol b.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from privpipe.errors import InputError, OptionError
from privpipe.numerics.mapping.problem.programme import Plan, Programme, measure_plan
from privpipe.numerics.mapping.problem.search_progress import Search
from privpipe.protocols import FloatArray, Guarantee
from privpipe.sanitizers.mapping.alphabet import Distortion, prepare_alphabet
from privpipe.sanitizers.mapping.solving.solve import store_plan
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, UnseenPolicy

# Every symbol is in every column: 4,096 squared probabilities are 128 MiB.
MOST_SYMBOLS = 4096


def keep_symbols(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: Distortion = "hamming",
    *,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """The identity on the interface of `SparseMapping`: releases every symbol as it is.

    Parameters
    ----------
    joint : (n_private, n_symbols)
    codes : (n_symbols, n_attributes)
    distortion
    unseen

    Returns
    -------
    mapping
    """
    alphabet = prepare_alphabet(joint, codes, distortion, 0.0)
    return store_plan(alphabet, Search(alphabet.problem, np.inf), "identity", unseen)


def fit_exponential_mechanism(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: Distortion = "hamming",
    *,
    distortion_budget: float,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Exponential mechanism whose mean distortion is the budget, by bisection on beta.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        Used for the mean distortion and the information; the mechanism itself is the same for
        every prior but for beta.
    codes : (n_symbols, n_attributes)
    distortion
    distortion_budget
        Mean distortion to spend; above that of uniform draws, uniform draws.
    unseen

    Returns
    -------
    mapping
        With every symbol in every column; its `multiplier` and bound are 0, its guarantee
        states epsilon.

    Raises
    ------
    InputError
        If there are more than 4,096 symbols: the mechanism is not sparse.
    OptionError
        If the budget is not positive.

    Notes
    -----
    Guarantee: ``epsilon = 2 beta d_max`` local differential privacy over the alphabet, for
    exact probabilities; draws round probabilities to 2**-53.

    References
    ----------
    Salamatian et al., section 4.2.
    """
    if not np.isfinite(distortion_budget) or distortion_budget <= 0:
        raise OptionError(
            f"distortion_budget is {distortion_budget}.", remedy="Use a finite positive number."
        )
    alphabet = prepare_alphabet(joint, codes, distortion, distortion_budget)
    problem = alphabet.problem
    if problem.n_symbols > MOST_SYMBOLS:
        raise InputError(
            f"the exponential mechanism over {problem.n_symbols} symbols is not sparse.",
            remedy=f"Use at most {MOST_SYMBOLS} symbols, or SPPM.",
        )
    distances = problem.distance.block(0, problem.n_columns)
    beta = _find_beta(problem, distances)
    progress = Search(problem, np.inf)
    progress.plan = _spread(problem, distances, beta)
    stored = store_plan(alphabet, progress, f"beta = {beta / alphabet.unit:.6g}", unseen)
    return replace(stored, guarantee=_promise(2 * beta * float(distances.max())))


def _probabilities(distances: FloatArray, beta: float) -> FloatArray:
    weights = np.exp(-beta * (distances - distances.min(axis=1, keepdims=True)))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _find_beta(problem: Programme, distances: FloatArray) -> float:
    """The beta that spends the budget; the spent distortion falls with beta."""

    def spent(beta: float) -> float:
        return float(problem.mass @ (_probabilities(distances, beta) * distances).sum(axis=1))

    if spent(0.0) <= problem.budget:
        return 0.0
    # One over the distortion of one symbol for all is the size of the answer.
    high = 1.0 / max(float(problem.distance.measure_means(problem.mass).min()), 1e-300)
    while spent(high) > problem.budget:
        high *= 2
    found = float(brentq(lambda beta: spent(beta) - problem.budget, 0.0, high, xtol=1e-300))
    # A hair farther on, where rounding left it on the dear side.
    return found if spent(found) <= problem.budget else found * (1 + 1e-12)


def _spread(problem: Programme, distances: FloatArray, beta: float) -> Plan:
    shares = _probabilities(distances, beta)
    columns, symbols = np.nonzero(shares > 0)
    return measure_plan(problem, symbols, columns, shares[columns, symbols] * problem.mass[columns])


def _promise(epsilon: float) -> Guarantee:
    return Guarantee(
        kind="local_dp",
        number=epsilon,
        unit="epsilon, nats of likelihood ratio between any two originals",
        scope="every record",
        theorem="McSherry and Talwar 2007; epsilon = 2 beta d_max",
        assumptions="The record's symbol is in the alphabet.",
    )
