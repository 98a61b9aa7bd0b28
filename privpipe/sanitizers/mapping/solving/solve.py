"""solve_privacy_mapping: from a joint distribution and codes to a certified SparseMapping."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from privpipe.errors import ConvergenceError, InputError, OptionError
from privpipe.numerics.mapping.certificate import MappingCertificate, certify_mapping
from privpipe.numerics.mapping.mapping_search import search_mapping
from privpipe.numerics.mapping.problem import pair_pricing, programme
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, PricingQuestion
from privpipe.numerics.mapping.problem.programme import Duals
from privpipe.numerics.mapping.problem.search_progress import Deadline, Search
from privpipe.numerics.mapping.search.frank_wolfe import search_frank_wolfe
from privpipe.protocols import ArrayLike, FloatArray
from privpipe.sanitizers.grounds import say_promise
from privpipe.sanitizers.mapping.alphabet import Alphabet, Distortion, prepare_alphabet
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, UnseenPolicy

# Of the limit: what a forecast of the certificate may take, and when it is made anew.
_FORECAST, _AGAIN = 0.01, 0.2
# Columns that are priced for it at most.
_MOST_COLUMNS = 512
# Of a forecast of seconds.
_MARGIN = 1.1
# Of the limit: a search without time has nothing to certify.
_MOST = 0.5


def forecast_certificate(alphabet: Alphabet, duals: Duals, max_seconds: float) -> float:
    """Seconds of a limit that the certificate of these potentials will take.

    Some columns are priced with them, all the others without mass. A column's work depends on the
    potentials, which let it pass over most symbols or over hardly any.
    """
    n, number, last, now = len(alphabet.order), 2, 0.0, 0.0
    while number <= min(n, _MOST_COLUMNS) and now <= _FORECAST * max_seconds:
        rows = np.linspace(0, n - 1, number).astype(np.int64)
        joint = np.zeros_like(alphabet.joint)
        joint[:, rows] = alphabet.joint[:, rows] + np.finfo(np.float64).tiny
        clock = Deadline(max_seconds)
        certify_mapping(
            joint / joint.sum(),
            alphabet.codes,
            sparse.eye_array(n, format="csc"),
            multiplier=duals.multiplier / alphabet.unit,
            potentials=_give_back_potentials(alphabet, duals),
            distortion=alphabet.distortion,
            distortion_budget=0.0,
        )
        last, now, number = now, clock.spent, 2 * number
    # The last doubling added a quarter of `number` columns; what all have in common is in `now`.
    seconds = now + max(now - last, 0.0) * n / max(number / 4, 1.0)
    return float(min(_MARGIN * seconds, _MOST * max_seconds))


Solver = Literal["auto", "frank_wolfe"]
SOLVERS: tuple[Solver, ...] = ("auto", "frank_wolfe")

# Nats below 0 at which a potential is as good as none, and from which a search can still move.
_FAR = 60.0
# Of the smallest distance: what may be moved for it changes nothing in float64.
_LEAST_BUDGET = 1e-30


def solve_privacy_mapping(
    joint: ArrayLike,
    codes: ArrayLike,
    distortion: Distortion = "hamming",
    *,
    distortion_budget: float,
    gap: float = 1e-6,
    price: PriceOracle | None = None,
    solver: Solver = "auto",
    n_steps: int = 100,
    start: SparseMapping | None = None,
    max_seconds: float = np.inf,
    on_round: Callable[[Search], None] | None = None,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Find the mapping of least information within a budget of mean distortion.

    Minimise the mutual information of a private value A and the released symbol. The minimum is
    over all random mappings of the original symbol whose mean distortion is at most the budget. The
    result carries a lower bound that holds for every mapping, and the numbers to check it.

    Parameters
    ----------
    joint : (n_private, n_symbols)
        Joint probabilities of the private value (of several variables: of their combination)
        and the symbol. Symbols of probability 0 stay themselves and may be released.
    codes : (n_symbols, n_attributes)
        Attribute codes, or positions, of the symbols; no row twice.
    distortion
        "hamming": number of differing attributes, 0 to n_attributes. "squared": sum of
        squared differences. "absolute": sum of absolute differences. Or a matrix (original by
        released symbol), with zeros from a symbol to itself.
    distortion_budget
        Largest mean distortion per record, in that unit. 0 gives the identity; from the
        distortion of releasing one symbol for all on, everything becomes that symbol.
    gap
        Target of the certified gap, nats.
    price
        Pricing oracle for all columns; in memory when not given.
    solver
        "auto", or "frank_wolfe": the paper's Algorithm 1 with `n_steps` steps.
    n_steps
        L of Algorithm 1; ignored by "auto".
    start
        A mapping of the same alphabet whose potentials are the beginning: of an interrupted
        solve, a near budget, last year's joint. They are normalised for this joint, so that a
        start can cost time but never change what is promised.
    max_seconds
        Seconds of processors and of waiting for workers that the whole solve takes. Its certificate
        is forecast by the potentials of the search, and gets at most half of them. Near the end no
        round begins that would not fit, and inner solves end at their next step. The best mapping
        so far is returned; with too little time, the identity.
    on_round
        Called after each round with the search's progress.
    unseen
        What the mapping does at release with symbols it does not know.

    Returns
    -------
    mapping
        `stopped` says why the search ended; `information - lower_bound` is its true gap, which
        may exceed the target.

    Raises
    ------
    InputError
        If `joint` is not a distribution, codes repeat, or distances are negative, not finite or
        too far apart for float64.
    OptionError
        If an option is out of range, or `start` is of another alphabet.
    ConvergenceError
        If what was found does not pass `certify_mapping`.

    Notes
    -----
    Guarantee: for the distribution given, ``sum(mapping, axis=0) == 1`` to rounding, and mean
    distortion is at most the budget to a relative `1e-12`. No mapping within the budget has less
    information than `lower_bound`. Nothing is promised about another distribution. Every number
    returned is that of `certify_mapping`, which shares no code with the solvers and takes its own
    rounding off the bound.

    Departure: the paper stops after L steps without a bound; the second gradient term of its
    section 3.4 is identically zero and left out.

    References
    ----------
    Salamatian et al., SPPM: Sparse Privacy Preserving Mappings, problem (2), Algorithms 1, 2.

    Examples
    --------
    >>> joint = np.array([[0.4, 0.1], [0.1, 0.4]])
    >>> mapping = solve_privacy_mapping(joint, [[0], [1]], distortion_budget=0.25)
    >>> round(mapping.distortion, 6), mapping.gap <= 1e-6
    (0.25, True)
    """
    check_solve_options(distortion_budget, gap, solver, n_steps, max_seconds)
    deadline = Deadline(max_seconds)
    alphabet = prepare_alphabet(joint, codes, distortion, distortion_budget)
    problem = replace(alphabet.problem, budget=_searchable_budget(alphabet))
    beginning = None if start is None else read_start(alphabet, start)
    limit = _solve_limit(alphabet, gap)
    if limit is not None:
        progress, stopped = limit
    else:
        watch = _Watch(alphabet, deadline, on_round)
        left = watch.leave_time(Search(problem, gap))
        given: dict[str, Any] = {"gap": gap, "max_seconds": left, "on_round": watch, "price": price}
        try:
            # Extreme problems overflow on the way; what is not finite is never taken.
            with np.errstate(all="ignore"):
                if solver == "frank_wolfe":
                    progress, stopped = search_frank_wolfe(problem, n_steps=n_steps, **given)
                else:
                    progress, stopped = search_mapping(problem, start=beginning, **given)
        except ArithmeticError:
            raise ConvergenceError(
                "the arithmetic of the search broke down.",
                remedy="Bring distances and budget nearer to each other, or use solver = 'auto'.",
            ) from None
        if problem.budget > alphabet.problem.budget:  # only moves that cost nothing are left
            progress.plan = programme.keep_free_pairs(alphabet.problem, progress.plan)
    return store_plan(alphabet, progress, stopped, unseen)


@dataclass(eq=False)
class _Watch:
    """Leaves the certificate its time, by potentials as a search finds them."""

    alphabet: Alphabet
    deadline: Deadline
    on_round: Callable[[Search], None] | None
    _next: float = 0.0

    def __call__(self, progress: Search) -> None:
        if self.on_round is not None:
            self.on_round(progress)
        if self.deadline.spent >= self._next < np.inf:
            progress.max_seconds = progress.seconds + self.leave_time(progress)

    def leave_time(self, progress: Search) -> float:
        """Seconds from now that are a search's."""
        limit = self.deadline.seconds
        if not np.isfinite(limit):
            self._next = np.inf
            return np.inf
        needed = forecast_certificate(self.alphabet, progress.duals, limit)
        self._next = self.deadline.spent + _AGAIN * limit
        return max(self.deadline.left - needed, np.finfo(float).tiny)


def read_start(alphabet: Alphabet, start: SparseMapping) -> Duals:
    """The dual point of a mapping, normalised for this prior, in the units of the problem."""
    shape, needed = start.potentials.shape, (len(alphabet.codes), alphabet.n_private)
    finite = np.isfinite(start.potentials).all() and 0 <= start.multiplier < np.inf
    alike = np.array_equal(start.codes, alphabet.codes)
    wide = f"has potentials of shape {shape}, and the joint needs {needed}: one per symbol and "
    for fails, what, remedy in (
        (not alike, "is a mapping of another alphabet", "of the same codes in the same order"),
        (shape != needed, f"{wide}private value", "of as many private values, or leave start out"),
        (
            not finite,
            "has a negative multiplier, or non-finite potentials",
            "as a solve returned it",
        ),
    ):
        if fails:
            raise OptionError(f"start {what}.", remedy=f"Start from a mapping {remedy}.")
    problem = alphabet.problem
    g = np.clip(start.potentials[alphabet.order][:, alphabet.private], -1e3, 1e3)
    g = np.maximum(programme.normalise_potentials(g, problem.prior), -_FAR)
    # With a larger multiplier no bound above 0 is possible at all.
    most = np.log(problem.n_private) / max(problem.budget, 1e-300)
    multiplier = min(float(start.multiplier) * alphabet.unit, most)
    return Duals(np.ascontiguousarray(programme.normalise_potentials(g, problem.prior)), multiplier)


def _searchable_budget(alphabet: Alphabet) -> float:
    """The budget, but large enough for arithmetic with it; see `keep_free_pairs`."""
    problem = alphabet.problem
    least = -2 * programme.LOWEST / programme.identity_duals(problem).multiplier
    return max(problem.budget, _LEAST_BUDGET * least)


def check_solve_options(
    budget: float, gap: float, solver: str, n_steps: int, max_seconds: float
) -> None:
    """Raise OptionError for what no solve can do."""
    for fails, what, remedy in (
        (not 0 <= budget < np.inf, f"distortion_budget is {budget}", "a finite number, 0 or more"),
        (not 0 < gap < np.inf, f"gap is {gap} nats", "a positive number, as 1e-6"),
        (solver not in SOLVERS, f"solver is {solver!r}", "'auto' or 'frank_wolfe'"),
        (n_steps < 1, f"n_steps is {n_steps}", "1 or more"),
        (not max_seconds > 0, f"max_seconds is {max_seconds}", "a positive number"),
    ):
        if fails:
            raise OptionError(f"{what}.", remedy=f"Use {remedy}.")


def _solve_limit(alphabet: Alphabet, gap: float) -> tuple[Search, str] | None:
    """Nothing private, hardly a budget, or budget enough for one symbol for all."""
    problem = alphabet.problem
    columns = np.arange(problem.n_columns)
    progress = Search(problem, gap)
    if progress.reached <= 0 or problem.n_private == 1:
        return progress, "nothing to hide"
    # Nothing may move, or not enough to matter: the bound of the identity decides.
    duals = programme.identity_duals(problem)
    if duals.multiplier * problem.budget <= 0.5 * gap:  # the identity is as good as the best
        prices = pair_pricing.price_in_memory(problem, PricingQuestion(duals))
        bound = pair_pricing.measure_bound(problem, prices, duals)
        progress.offer(progress.plan, duals, bound, 0, "limit")
        if progress.reached <= gap:
            return progress, "gap reached" if problem.budget else "no distortion allowed"
    means = problem.distance.measure_means(problem.mass)
    if means.min() <= problem.budget:
        only = np.full(problem.n_columns, int(np.argmin(means)))
        plan = programme.measure_plan(problem, only, columns, problem.mass)
        progress.offer(plan, progress.duals, 0.0, problem.n_columns, "limit")
        return progress, "perfect privacy"
    return None


def store_plan(
    alphabet: Alphabet, progress: Search, stopped: str, unseen: UnseenPolicy
) -> SparseMapping:
    """Write the best plan of a search in the user's symbols and units, and certify it.

    Raises
    ------
    ConvergenceError
        If what was found does not pass its own certificate; nothing of it is returned.
    """
    problem, plan = alphabet.problem, progress.plan
    n = len(alphabet.order)
    # Symbols without records stay themselves.
    idle = np.setdiff1d(np.arange(n), problem.stay)
    symbols = alphabet.order[np.concatenate([plan.symbols, idle])]
    columns = alphabet.order[np.concatenate([problem.stay[plan.columns], idle])]
    shares = np.concatenate([plan.weights / problem.mass[plan.columns], np.ones(len(idle))])
    found = SparseMapping(
        codes=alphabet.codes,
        **list_columns(sparse.csc_array((shares, (symbols, columns)), shape=(n, n))),
        potentials=_give_back_potentials(alphabet, progress.duals),
        multiplier=progress.duals.multiplier / alphabet.unit,
        information=plan.information,
        lower_bound=progress.bound,
        distortion=plan.distortion * alphabet.unit,
        distortion_budget=alphabet.budget,
        distortion_kind=alphabet.kind,
        stopped=stopped,
        # No seconds: the digest of a map names the keys of its draws, and two fits to the same
        # records would draw twice for one record.
        history=np.array(
            [
                (number, one.information, one.lower_bound, one.n_pairs)
                for number, one in enumerate(progress.rounds, 1)
            ],
            float,
        ).reshape(-1, 4),
        unseen=unseen,
        guarantee=say_promise("solved", plan.information),
    )
    return certify_plan(alphabet, found, progress.gap)


def _give_back_potentials(alphabet: Alphabet, duals: Duals) -> FloatArray:
    """In the user's symbols and private values."""
    potentials = np.zeros((len(alphabet.order), alphabet.n_private))
    potentials[np.ix_(alphabet.order, alphabet.private)] = duals.potentials
    return potentials


def list_columns(mapping: sparse.csc_array) -> dict[str, Any]:
    """A matrix of probabilities (released by original symbol) as `SparseMapping` holds them."""
    mapping.sort_indices()
    return {
        "pointers": mapping.indptr.astype(np.int64),
        "released": mapping.indices.astype(np.int64),
        "probabilities": np.asarray(mapping.data, dtype=np.float64),
    }


def certify_plan(alphabet: Alphabet, found: SparseMapping, gap: float) -> SparseMapping:
    """The mapping with the numbers of its certificate, by code that no solver uses.

    Raises
    ------
    ConvergenceError
        If it does not pass.
    """
    try:
        proof = certify_mapping(
            alphabet.joint,
            alphabet.codes,
            found.mapping,
            multiplier=found.multiplier,
            potentials=found.potentials,
            distortion=alphabet.distortion,
            distortion_budget=alphabet.budget,
        )
        problem = _find_fault(proof, alphabet.budget)
    except (InputError, OptionError) as error:
        problem = str(error).splitlines()[0]
    if problem:
        raise ConvergenceError(
            f"the mapping found did not pass its certificate: {problem}",
            remedy="Nothing is returned. Report this; leave `start` out, or rescale distances.",
            code="not-certified",
        )
    # The solver's word does not count: where the certificate finds a wider gap, it says so.
    reached = found.stopped != "gap reached" or proof.gap <= gap * (1 + 1e-9) + proof.rounding
    return replace(
        found,
        information=proof.information,
        lower_bound=min(proof.lower_bound, proof.information),
        distortion=proof.distortion,
        stopped=found.stopped if reached else "no further progress",
        guarantee=say_promise("solved", proof.information),
    )


def _find_fault(proof: MappingCertificate, budget: float) -> str:
    """What a solver's mapping must never show, in words; empty when all is well."""
    if not np.isfinite([proof.information, proof.lower_bound, proof.distortion]).all():
        return "a number is not finite."
    if proof.column_error > 1e-9:
        return f"a column sums to 1 within {proof.column_error:.3g} only."
    if proof.excess > 1e-9 * budget:
        return f"it spends {proof.excess:.3g} beyond the budget."
    # Below the bound for every mapping: then one of the two is wrong.
    return f"its gap is {proof.gap:.3g} nats." if proof.gap < -proof.rounding else ""
