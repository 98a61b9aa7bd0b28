"""Price a dual point over all pairs, repair it, and name the pairs worth adding.

Within a sparse set of pairs, a symbol with (almost) no mass of some private value has no reason to
keep that value's potential high. Over all pairs the price of some column then falls far. Raising
the potential by the least slack of the offending column and normalising again costs next to nothing
where the mass is small. Any normalised potentials give a valid bound. This is the c-transform of
the column potentials.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from privpipe.numerics.mapping.problem import ordered_pricing, pair_pricing, programme
from privpipe.numerics.mapping.problem.ordered_pricing import PosteriorBins, price_ordered
from privpipe.numerics.mapping.problem.pair_pricing import PriceOracle, Prices, PricingQuestion
from privpipe.numerics.mapping.problem.programme import Duals, Programme
from privpipe.numerics.mapping.problem.search_progress import Found, OutOfTime, Search, waiting
from privpipe.protocols import FloatArray, IntArray

# Of a piece of a round in this process: less than a tenth of a second.
_PAIRS_PER_PIECE = 2**25
_MOST_NAMED = 24
_FEW_BINS = 8  # with more, every symbol has partners enough


@dataclass(eq=False)
class TimedPricing:
    """A pricing oracle that raises `OutOfTime` rather than overrun a search's limit.

    A round over all pairs is the one step of a search whose length grows with the square of the
    alphabet. In memory it is cut into pieces, whose values do not depend on the cut. An oracle
    elsewhere is not called where its slowest call so far would not end in time.

    Parameters
    ----------
    progress
        Of the search; without a limit the oracle is called as it is.
    price
        An oracle; None for the search over all pairs in this process.
    """

    progress: Search
    price: PriceOracle | None = None
    _slowest: float = field(default=0.0, init=False)

    def __call__(self, problem: Programme, question: PricingQuestion) -> Prices:
        """Price all columns of a problem."""
        if self.price is None:
            return self._in_pieces(problem, question)
        self._check(self._slowest)
        begun = self.progress.seconds
        with waiting():
            prices = self.price(problem, question)
        self._slowest = max(self._slowest, self.progress.seconds - begun)
        return prices

    def _in_pieces(self, problem: Programme, question: PricingQuestion) -> Prices:
        groups = pair_pricing.column_groups(problem)
        width = max(1, _PAIRS_PER_PIECE // problem.n_symbols)
        edges = [*range(0, problem.n_columns, width), problem.n_columns]
        parts = []
        for start, stop in pairwise(edges):
            self._check(0.0)
            parts.append(pair_pricing.price_block(problem, question, start, stop, groups))
        return pair_pricing.merge_prices(parts, np.zeros(len(parts), np.int64).tolist())

    def _check(self, needed: float) -> None:
        """Continue only if so many seconds are left; a twentieth of the limit may be overrun."""
        # A piece in this process is short; only a whole round elsewhere is forecast.
        limit = self.progress.max_seconds
        if np.isfinite(limit) and self.progress.seconds + needed >= limit * (1.05 if needed else 1):
            raise OutOfTime


def most_named(problem: Programme) -> int:
    """Cheapest symbols to name for a column, so that their numbers take half a double a value.

    Near an optimum hardly more are near a column's price; before it more would be forgotten again.
    """
    width = -(-(problem.n_symbols - 1).bit_length() // 8) or 1  # bytes of a symbol's number
    return max(1, min(_MOST_NAMED, 4 * problem.n_private // width, problem.n_symbols))


def repair_potentials(problem: Programme, prices: Prices, duals: Duals) -> Duals:
    """Raise potentials so that no symbol undercuts the levels that were priced with.

    Parameters
    ----------
    problem
    prices
        With partners, and with the column potentials as levels.
    duals

    Returns
    -------
    duals
        Normalised potentials, the same multiplier.
    """
    potentials: FloatArray = np.maximum(duals.potentials, programme.LOWEST)
    for slack, partner in zip(prices.slack.T, prices.partner.T, strict=True):
        short = np.flatnonzero((slack < 0.0) & (partner >= 0))
        posterior = problem.posterior[partner[short]]
        # Its most likely private value relative to the prior, where a lift costs the least.
        value = np.argmax(posterior / problem.prior, axis=1)
        lift = -slack[short] / posterior[np.arange(len(short)), value]
        np.maximum.at(potentials, (short, value), duals.potentials[short, value] + lift)
    return replace(duals, potentials=programme.normalise_potentials(potentials, problem.prior))


@dataclass(frozen=True)
class OracleExplorer:
    """Explores any alphabet through a pricing oracle.

    Parameters
    ----------
    price
        The oracle.
    top
        Cheapest symbols named per column.
    """

    price: PriceOracle = field(repr=False)
    top: int

    def __call__(
        self, problem: Programme, duals: Duals, levels: FloatArray | None, near: float
    ) -> Found:
        prices = self.price(problem, PricingQuestion(duals, self.top, True, levels, near, False))
        raw = _raw_bound(problem, prices, duals)
        symbols, columns = _candidates(problem, prices, near)
        found = Found(duals, max(raw, 0.0), raw, symbols, columns)
        # Nothing undercuts its column: the point is its own repair.
        if levels is None or float(prices.slack.min()) >= 0.0:
            return found
        repaired = repair_potentials(problem, prices, duals)
        again = self.price(problem, PricingQuestion(repaired, values=False))
        bound = pair_pricing.measure_bound(problem, again, repaired)
        return found if bound <= found.bound else replace(found, duals=repaired, bound=bound)


@dataclass(frozen=True)
class OrderedExplorer:
    """Explores an ordered alphabet in linear time.

    Parameters
    ----------
    n_bins
        Intervals of the posterior, where columns have many different ones.
    width
        Neighbours named on each side of a cheapest symbol and of a best partner.
    """

    n_bins: int
    width: int = 2

    def __call__(
        self, problem: Programme, duals: Duals, levels: FloatArray | None, near: float
    ) -> Found:
        bins = ordered_pricing.bin_posteriors(problem.posterior, self.n_bins)
        assert bins is not None, "ordered solves are only planned where the posteriors have bins"
        prices = price_ordered(problem, PricingQuestion(duals, self.width, True, levels), bins)
        raw = _raw_bound(problem, prices, duals)
        parts = [self._near(problem, bins, prices, near)]
        best, bound = duals, max(raw, 0.0)
        if levels is not None and float(prices.slack.min()) < 0.0:
            fixed = repair_potentials(problem, prices, duals)
            again = price_ordered(problem, PricingQuestion(fixed, self.width, True), bins)
            parts.append(self._near(problem, bins, again, near))
            new = pair_pricing.measure_bound(problem, again, fixed)
            best, bound = (fixed, new) if new > bound else (best, bound)
        symbols, columns = (np.concatenate(part) for part in zip(*parts, strict=True))
        return Found(best, bound, raw, symbols, columns)

    def _near(
        self, problem: Programme, bins: PosteriorBins, prices: Prices, near: float
    ) -> tuple[IntArray, IntArray]:
        """Cheapest symbols and best partners, each with neighbours; columns stay in order."""
        width = prices.best.shape[1]
        around = self.width if prices.partner.shape[1] <= _FEW_BINS else 0
        symbols = [prices.best.ravel()]
        columns = [np.repeat(np.arange(problem.n_columns), width)]
        place = np.empty(problem.n_columns, np.int64)
        for b in range(prices.partner.shape[1]):
            inside = np.flatnonzero(bins.bin == b)
            place[inside] = np.arange(len(inside))
            ok = np.flatnonzero(prices.slack[:, b] <= near)
            for shift in range(-around, around + 1):
                to = np.clip(place[prices.partner[ok, b]] + shift, 0, len(inside) - 1)
                symbols.append(ok)
                columns.append(inside[to])
        return np.concatenate(symbols), np.concatenate(columns)


def _raw_bound(problem: Programme, prices: Prices, duals: Duals) -> float:
    return pair_pricing.sum_prices(problem.mass, prices) - duals.multiplier * problem.budget


def _candidates(problem: Programme, prices: Prices, near: float) -> tuple[IntArray, IntArray]:
    ok = (prices.partner >= 0) & (prices.slack <= near)
    rows, _ = np.nonzero(ok)
    columns, places = np.nonzero(prices.best >= 0)
    best = np.concatenate([prices.best[columns, places], rows])
    return best, np.concatenate([columns, prices.partner[ok]])
