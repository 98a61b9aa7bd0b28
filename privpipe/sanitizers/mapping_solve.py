"""solve_privacy_mapping: from a joint distribution and codes to a certified SparseMapping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import numpy.typing as npt

from privpipe.errors import OptionError
from privpipe.numerics.frank_wolfe import search_frank_wolfe
from privpipe.numerics.limits import identity_duals, measure_mean_distances
from privpipe.numerics.mapping_problem import Duals, Plan, measure_plan
from privpipe.numerics.mapping_search import search_mapping
from privpipe.numerics.pricing import PriceOracle, Question, measure_bound, price_in_memory
from privpipe.numerics.progress import Progress
from privpipe.protocols import Guarantee
from privpipe.sanitizers.alphabet import Alphabet, Distortion, prepare_alphabet
from privpipe.sanitizers.mapping import SparseMapping, UnseenPolicy

__all__ = ["Solver", "solve_privacy_mapping", "store_plan"]

Solver = Literal["auto", "frank_wolfe"]


def solve_privacy_mapping(
    joint: npt.ArrayLike,
    codes: npt.ArrayLike,
    distortion: Distortion = "hamming",
    *,
    distortion_budget: float,
    gap: float = 1e-6,
    price: PriceOracle | None = None,
    solver: Solver = "auto",
    n_steps: int = 100,
    start: SparseMapping | None = None,
    max_seconds: float = np.inf,
    on_round: Callable[[Progress], None] | None = None,
    unseen: UnseenPolicy = "nearest",
) -> SparseMapping:
    """Find the mapping of least information within a budget of mean distortion.

    Minimise the mutual information of a private value A and the released symbol over all
    random mappings of the original symbol whose mean distortion is at most the budget. The
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
        released symbol), or a function of two blocks of codes that returns such a matrix; both
        with zeros from a symbol to itself.
    distortion_budget
        Largest mean distortion per record, in that unit. 0 gives the identity; from the
        distortion of releasing one symbol for all on, everything becomes that symbol.
    gap
        Wanted certified gap, nats.
    price
        Pricing oracle for all columns; in memory when not given.
    solver
        "auto", or "frank_wolfe": the paper's Algorithm 1 with `n_steps` steps.
    n_steps
        L of Algorithm 1; ignored by "auto".
    start
        A mapping of the same alphabet to begin from: an interrupted solve, a near budget.
    max_seconds
        Time after which no new round begins and inner solves end at their next step; a pricing
        round is finished. The best mapping so far is returned.
    on_round
        Called after each round with the search's progress.
    unseen
        What the mapping does at release with symbols it does not know.

    Returns
    -------
    mapping
        `stopped` says why the search ended; `information - lower_bound` is its true gap, which
        may exceed the wanted one.

    Raises
    ------
    InputError
        If `joint` is not a distribution, codes repeat, or distances are negative or not finite.
    OptionError
        If an option is out of range.

    Notes
    -----
    Guarantee: ``sum(mapping, axis=0) == 1`` to rounding, mean distortion at most the budget to
    a relative 1e-12, and no mapping within the budget has less information than `lower_bound`,
    for the distribution given. Nothing is promised about another distribution.

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
    _check_options(distortion_budget, gap, solver, n_steps, max_seconds)
    alphabet = prepare_alphabet(joint, codes, distortion, distortion_budget)
    limit = _solve_limit(alphabet, gap)
    if limit is not None:
        progress, stopped = limit
    elif solver == "frank_wolfe":
        progress, stopped = search_frank_wolfe(
            alphabet.problem,
            n_steps=n_steps,
            gap=gap,
            price=price or price_in_memory,
            max_seconds=max_seconds,
            on_round=on_round,
        )
    else:
        progress, stopped = search_mapping(
            alphabet.problem,
            gap=gap,
            price=price,
            start=None if start is None else _read_start(alphabet, start),
            max_seconds=max_seconds,
            on_round=on_round,
        )
    return store_plan(alphabet, progress, stopped, unseen)


def _check_options(
    budget: float, gap: float, solver: str, n_steps: int, max_seconds: float
) -> None:
    if not np.isfinite(budget) or budget < 0:
        raise OptionError(
            f"distortion_budget is {budget}.", remedy="Use a finite number, 0 or more."
        )
    if not np.isfinite(gap) or gap <= 0:
        raise OptionError(f"gap is {gap} nats.", remedy="Use a positive number, as 1e-6.")
    if solver not in ("auto", "frank_wolfe"):
        raise OptionError(f"solver is {solver!r}.", remedy="Use 'auto' or 'frank_wolfe'.")
    if n_steps < 1:
        raise OptionError(f"n_steps is {n_steps}.", remedy="Use 1 or more.")
    if not max_seconds > 0:
        raise OptionError(f"max_seconds is {max_seconds}.", remedy="Use a positive number.")


def _solve_limit(alphabet: Alphabet, gap: float) -> tuple[Progress, str] | None:
    """Nothing private, no budget, or budget enough for one symbol for all."""
    problem = alphabet.problem
    columns = np.arange(problem.n_columns)
    progress = Progress(problem, gap)
    if progress.reached <= 0 or problem.n_private == 1:
        return progress, "nothing to hide"
    if problem.budget == 0:
        duals = identity_duals(problem)
        prices = price_in_memory(problem, Question(duals))
        progress.offer(progress.plan, duals, measure_bound(problem, prices, duals), 0, "limit")
        return progress, "no distortion allowed"
    means = measure_mean_distances(problem)
    if means.min() <= problem.budget:
        only = np.full(problem.n_columns, int(np.argmin(means)))
        plan = measure_plan(problem, only, columns, problem.mass)
        progress.offer(plan, progress.duals, 0.0, problem.n_columns, "limit")
        return progress, "perfect privacy"
    return None


def _read_start(alphabet: Alphabet, start: SparseMapping) -> tuple[Plan, Duals]:
    problem = alphabet.problem
    if start.codes.shape != alphabet.codes.shape or (start.codes != alphabet.codes).any():
        raise OptionError(
            "start is a mapping of another alphabet.",
            remedy="Start from a mapping of the same codes in the same order.",
        )
    place = np.empty(len(alphabet.order), np.int64)
    place[alphabet.order] = np.arange(len(place))
    column = np.full(len(place), -1)
    column[problem.stay] = np.arange(problem.n_columns)
    columns = column[place[np.repeat(np.arange(start.n_symbols), np.diff(start.pointers))]]
    used = columns >= 0
    weights = start.probabilities[used] * problem.mass[columns[used]]
    plan = measure_plan(problem, place[start.released[used]], columns[used], weights)
    potentials = start.potentials[alphabet.order][:, alphabet.private]
    return plan, Duals(np.ascontiguousarray(potentials), start.multiplier)


def store_plan(
    alphabet: Alphabet, progress: Progress, stopped: str, unseen: UnseenPolicy
) -> SparseMapping:
    """Write the best plan of a search in the user's symbols."""
    problem, plan = alphabet.problem, progress.plan
    n = len(alphabet.order)
    idle = np.setdiff1d(np.arange(n), problem.stay)
    symbols = alphabet.order[np.concatenate([plan.symbols, idle])]
    columns = alphabet.order[np.concatenate([problem.stay[plan.columns], idle])]
    shares = np.concatenate([plan.weights / problem.mass[plan.columns], np.ones(len(idle))])
    order = np.argsort(columns * n + symbols, kind="stable")
    pointers = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(columns, minlength=n), out=pointers[1:])
    potentials = np.zeros((n, alphabet.n_private))
    potentials[np.ix_(alphabet.order, alphabet.private)] = progress.duals.potentials
    return SparseMapping(
        codes=alphabet.codes,
        pointers=pointers,
        released=symbols[order],
        probabilities=shares[order],
        potentials=potentials,
        multiplier=progress.duals.multiplier,
        information=plan.information,
        lower_bound=progress.bound,
        distortion=plan.distortion,
        distortion_budget=problem.budget,
        distortion_kind=alphabet.kind,
        stopped=stopped,
        history=np.array(
            [[r.seconds, r.information, r.lower_bound, r.n_pairs] for r in progress.rounds]
        ).reshape(-1, 4),
        unseen=unseen,
        guarantee=_promise(plan.information),
    )


def _promise(information: float) -> Guarantee:
    return Guarantee(
        kind="information_bound",
        number=information,
        unit="nats of mutual information between private value and released symbol",
        scope="in expectation",
        theorem="Salamatian et al., SPPM, problem (1); measured on the mapping itself",
        assumptions="Records follow the joint distribution the mapping was fitted on.",
    )
