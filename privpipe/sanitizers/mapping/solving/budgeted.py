"""solve_budgeted_mapping: several private variables, each with a budget of information of its own.

What is minimised is the largest share of its budget that the information about any variable takes.
It is ``max_k I(S_k; released) / b_k``, which is convex in the mapping. By the minimax theorem it is
the largest, over weights of sum 1, of the least ``sum_k weight_k I(S_k; released) / b_k``. And a
weighted sum of informations is one information. Draw k by its weight, apart from the record, and
let the private value be the pair (k, S_k). Then ``I((k, S_k); released)`` is the weighted mean of
the ``I(S_k; released)``. So each choice of weights is the plain problem on a joint whose rows are
stacked, with its pricing, its certificate, its size. Its certified optimum bounds the largest share
of *every* mapping from below. Its mapping is a column of a linear programme of as many rows as
there are variables. The duals of the programme are the next weights (Kelley 1960). Of the mixture
that the programme names the shares are measured anew: mixing lowers them further. A round
after the first has two choices of weights. Neither knows of the other: they are tasks where that
pays.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog, minimize_scalar

from privpipe.errors import ConvergenceError, OptionError
from privpipe.numerics.mapping.certificate import certify_mapping
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, count_threads
from privpipe.numerics.mapping.problem.programme import DistanceKind, measure_information
from privpipe.numerics.mapping.problem.search_progress import Deadline
from privpipe.protocols import ArrayLike, FloatArray, IntArray
from privpipe.sanitizers.mapping.profiles import add_rows
from privpipe.sanitizers.mapping.solving.solve import list_columns, solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, UnseenPolicy

# Two or three variables took about five.
_ROUNDS = 60
# While it is open whether the least share is above 1, the width becomes so much smaller, down to a
# share that rounds to 1.
_NARROWER, _NARROWEST = 0.25, 1e-5
# A solve is as exact as a part of what is open, at most so many widths: bounds hold all the same,
# and early weights are guesses. The first, alone in its round, takes .06 of all instead of .2.
_OF_OPEN, _LOOSEST = 0.25, 16.0
# Of the limit: with less left no round begins; below this one has all of it, and before it half, so
# that none takes all while weights are guesses.
_LAST, _HALVED = 0.03, 0.2


def solve_budgeted_mapping(
    joint: ArrayLike,
    codes: ArrayLike,
    distortion: DistanceKind = "hamming",
    *,
    private: IntArray,
    information_budgets: Sequence[float],
    distortion_budget: float,
    gap: float = 1e-4,
    price: PriceOracle | None = None,
    max_seconds: float = np.inf,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Find the mapping under which every private variable keeps to its own budget, by the most.

    Minimise, over mappings of mean distortion within the budget, the largest of
    ``I(S_k; released) / information_budgets[k]`` over the private variables.

    Parameters
    ----------
    joint, codes, distortion, distortion_budget, price, max_seconds, unseen
        As of `solve_privacy_mapping`; `joint` has a row per combination of the variables.
    private : (n_private, n_variables)
        Which value of each variable a row of the joint has.
    information_budgets : (n_variables,)
        Nats, positive.
    gap
        Target of the certified gap, in nats of the variable of the largest budget. The search
        continues beyond it while it is open whether any mapping keeps to the budgets.

    Returns
    -------
    mapping
        `information` is that about all variables together and `lower_bound` a bound on it, so that
        its `gap` says nothing of the search. Its guarantee's parameters give, for mappings within
        the distortion budget, `budget_share_at_most` (the largest share, of this mapping) and
        `budget_share_at_least` (of any).

    Raises
    ------
    OptionError
        If a budget is not positive, there are not as many as variables, or no mapping of this
        distortion keeps to them. By how much is said.
    ConvergenceError
        If the time, or the gap, leaves open whether any does.

    Notes
    -----
    Guarantee: for the joint given, every budget holds for the mapping as stored, measured in
    float64 from its probabilities. The lower number is that of a certificate.

    References
    ----------
    Salamatian et al., SPPM, problem (2); Kelley 1960, The cutting-plane method.

    Examples
    --------
    Two bits, both revealed by the profile; of the first a tenth may leak of what the second may:

    >>> joint, private = np.eye(4) / 4, np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    >>> mapping = solve_budgeted_mapping(
    ...     joint, private, private=private, information_budgets=(0.01, 0.1), distortion_budget=0.8
    ... )
    >>> dict(mapping.guarantee.parameters)["budget_share_at_most"] < 1
    True
    """
    p, x = np.asarray(joint, dtype=np.float64), np.asarray(codes)
    x = x[:, None] if x.ndim == 1 else x
    budgets = check_budgets(information_budgets, private.shape[1])
    shares = _Shares(p / p.sum(), private, budgets)
    mappings: list[sp.csc_array] = []
    measured: list[FloatArray] = []
    lower, likeliest = 0.0, np.full(len(budgets), 1 / len(budgets))
    proof, best = cast("SparseMapping | None", None), sp.csc_array((1, 1))
    queue, width, stopped = [likeliest], gap / float(budgets.max()), "no further progress"
    deadline, overhead, n_threads, still_open = Deadline(max_seconds), 0.0, 0, np.inf
    given: dict[str, Any] = {"codes": x, "distortion": distortion, "unseen": unseen}
    given["distortion_budget"] = distortion_budget
    for number in range(_ROUNDS):
        # What is done between the solves of a round, and once more at the end, is left.
        free = deadline.left - 2 * overhead
        if number and free <= _LAST * max_seconds < np.inf:
            stopped = "time limit"
            break
        seconds = free if number and free < _HALVED * max_seconds else free / 2
        begun, given["price"] = Deadline(seconds), None if n_threads else price
        exact = max(width, min(_OF_OPEN * still_open, _LOOSEST * width))
        one = partial(_solve_weighted, shares, exact, **given, start=proof)
        for weights, (bound, found) in zip(
            queue, _solve_each(one, queue, begun, price, n_threads), strict=True
        ):
            if proof is None or bound > lower:
                lower, likeliest, proof = bound, weights, found
            mappings.append(found.mapping)
            measured.append(shares.measure(found.mapping))
        solved = begun.spent
        # The first of them is the pilot for the others.
        n_threads = n_threads if number else count_threads(price, 2 * solved, 2)
        mixture, proposed = _mix(mappings, measured)
        best = _step(shares, best, mixture) if number else mixture
        upper = shares.largest(best)
        still_open = upper - lower
        if still_open <= width:
            if not lower <= 1 < upper or width <= _NARROWEST:
                stopped = "gap reached"
                break
            # Whether any mapping keeps to the budgets is open: that is decided first of all.
            width *= _NARROWER
        # Far from the last useful weights the programme guesses: the second stays nearer.
        nearer = 0.5 * (proposed + likeliest)
        queue = [proposed] if np.array_equal(proposed, nearer) else [proposed, nearer]
        overhead = max(overhead, begun.spent - solved)
    assert proof is not None, "the first round has no limit"
    _check_shares(upper, lower, distortion_budget)
    proof = replace(proof, stopped=stopped)
    return _store(shares, proof, likeliest / budgets, best, (lower, upper))


def _solve_weighted(
    shares: "_Shares", width: float, timed: tuple[FloatArray, float], **given: Any
) -> tuple[float, SparseMapping]:
    """The least weighted sum of shares within seconds: its bound and its mapping."""
    parts, most = timed[0] / shares.budgets, max(timed[1], np.finfo(float).tiny)
    scale = float(parts.sum())
    # A quarter of the width: bound and mapping of several solves add up.
    gap = max(width / (4 * scale), 1e-12)
    found = solve_privacy_mapping(shares.stack(parts / scale), **given, gap=gap, max_seconds=most)
    return scale * found.lower_bound, found


def _solve_each(solve: Any, queue: Any, begun: Deadline, price: Any, n_threads: int) -> Any:
    """Solve for all weights of a round in order, as tasks where workers have threads for them."""
    n = len(queue)
    # Side by side each has all the time; one after the other, its part of what is left by then.
    timed = ((one, begun.left / (n - k if n_threads < n else 1)) for k, one in enumerate(queue))
    return price.spread(solve, timed, n_threads) if n_threads else map(solve, timed)


def check_budgets(budgets: Sequence[float], n_variables: int) -> FloatArray:
    """Budgets as an array; OptionError for what is none, or not one for each variable."""
    found = np.asarray(budgets, dtype=np.float64)
    if found.shape != (n_variables,) or not (np.isfinite(found) & (found > 0)).all():
        problem = f"information_budgets is {tuple(budgets)} for {n_variables} private variables."
        remedy = "Give one positive number of nats for each variable of private, in its order."
        raise OptionError(problem, remedy=remedy, code="budgets")
    return found


def _check_shares(upper: float, lower: float, distortion_budget: float) -> None:
    """Refuse what no mapping can do, and what was not found."""
    if upper <= 1:
        return
    if lower > 1:
        raise OptionError(
            f"no mapping of mean distortion {distortion_budget:g} keeps to information_budgets: "
            f"the information about some variable is at least {lower:.6g} times its budget.",
            remedy=f"Multiply the budgets by {1.001 * upper:.4g}, or raise distortion_budget.",
            code="budgets-need-distortion",
        )
    raise ConvergenceError(
        f"whether a mapping of mean distortion {distortion_budget:g} keeps to information_budgets "
        f"is open: the largest share of a budget is between {lower:.6g} and {upper:.6g}.",
        remedy=f"Set a smaller gap, more max_seconds, or budgets times {1.001 * upper:.6g}.",
        code="budgets-open",
    )


@dataclass(frozen=True, eq=False)
class _Shares:
    """What a mapping reveals about each variable, in units of its budget."""

    joint: FloatArray
    private: IntArray
    budgets: FloatArray

    @cached_property
    def marginals(self) -> list[FloatArray]:
        """Joint of each variable, (n_values, n_symbols)."""
        return [add_rows(self.joint, values)[1] for values in self.private.T]

    def stack(self, weights: FloatArray) -> FloatArray:
        """Joint of (which variable, its value) and symbol; the weights sum to 1."""
        return np.concatenate([w * rows for w, rows in zip(weights, self.marginals, strict=True)])

    def measure(self, mapping: sp.csc_array) -> FloatArray:
        """Information about each variable over its budget, (n_variables,)."""
        found = [measure_information(np.asarray(mapping @ rows.T)) for rows in self.marginals]
        return np.array(found) / self.budgets

    def largest(self, mapping: sp.csc_array) -> float:
        """The largest of them, which is minimised."""
        return float(self.measure(mapping).max())


def _step(shares: _Shares, here: sp.csc_array, there: sp.csc_array) -> sp.csc_array:
    """The best mapping found on the way from one to another, both ends among them."""

    def go(part: float) -> sp.csc_array:
        return sp.csc_array(here + part * (there - here))

    found = minimize_scalar(
        lambda at: shares.largest(go(at)), bounds=(0, 1), method="bounded", options={"xatol": 1e-4}
    )
    return min((here, go(found.x), there), key=shares.largest)


def _mix(mappings: list[sp.csc_array], shares: list[FloatArray]) -> tuple[sp.csc_array, FloatArray]:
    """The mixture of least largest share, were shares linear, and the programme's weights."""
    table = np.stack(shares, axis=1)
    n_variables, n = table.shape
    found = linprog(
        np.append(np.zeros(n), 1.0),
        np.column_stack([table, -np.ones(n_variables)]),
        np.zeros(n_variables),
        np.append(np.ones(n), 0.0)[None],
        np.ones(1),
        bounds=[*[(0, None)] * n, (None, None)],
        method="highs",
    )
    if found.status != 0:
        problem = "the mixture of mappings was not found."
        remedy = "Use budgets that are nearer to one another."
        raise ConvergenceError(problem, remedy=remedy, code="programme")
    parts = found.x[:-1]
    mixed = sum(share * one for share, one in zip(parts, mappings, strict=True) if share > 0)
    weights = np.maximum(-found.ineqlin.marginals, 0.0)
    return sp.csc_array(mixed / parts.sum()), weights / weights.sum()


def _store(
    shares: _Shares,
    proof: SparseMapping,
    weights: FloatArray,
    best: sp.csc_array,
    bounds: tuple[float, float],
) -> SparseMapping:
    """The mapping found, certified by the weighted potentials of the best bound.

    ``sum_k w_k g_k`` is a potential of the combination: its mean of exponentials is at most the
    weighted mean of theirs. So the bound on the weighted sum bounds the joint information too.
    """
    part = weights / weights.sum()
    # By Jensen, see above: no potential of the combination needs solving for.
    potentials, first = np.zeros((proof.n_symbols, len(shares.joint))), 0
    for weight, values in zip(part, shares.private.T, strict=True):
        found, place = np.unique(values, return_inverse=True)
        potentials += weight * proof.potentials[:, first + place.ravel()]
        first += len(found)
    certified = certify_mapping(
        shares.joint,
        proof.codes,
        best,
        multiplier=proof.multiplier,
        potentials=potentials,
        distortion=proof.distortion_kind,
        distortion_budget=proof.distortion_budget,
    )
    numbers = (("budget_share_at_most", bounds[1]), ("budget_share_at_least", min(bounds)))
    return replace(
        proof,
        **list_columns(best),
        potentials=potentials,
        information=certified.information,
        lower_bound=min(certified.lower_bound, certified.information),
        distortion=certified.distortion,
        guarantee=replace(proof.guarantee, number=certified.information, parameters=numbers),
    )
