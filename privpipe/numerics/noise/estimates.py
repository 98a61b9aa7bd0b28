"""What readers of noisy numbers may say of the records: values without bias, and their errors.

Records are a sample; a release adds noise of a known law. Means, covariances and coefficients are
corrected for it and get the standard error of both. Regression on noisy features is that of
corrected scores (Fuller 1987, Measurement Error Models, section 2.2), with a sandwich for its
error. Of noisy moments the error is that of the first order.

Slopes divide by a spread that may be mostly noise. Their limits are those of the hypotheses that
the score does not reject (`Estimate.find_limits`), and where these have no end they are refused.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from privpipe.errors import InputError, LeftOutWarning, OptionError
from privpipe.protocols import FloatArray

Blocks = Callable[[], Iterable[FloatArray]]
"""Reads all records again, some at a time, (n_records, n_columns)."""

Quantity = Literal[
    "means", "quantiles", "covariances", "correlations", "regression", "logistic", "differences",
    "shares",
]  # fmt: skip
"""Quantiles are quartiles; logistic is the regression of a category. Differences are of means
between groups of records; shares are of the values of a column."""

LEVEL = 0.95
"""A regression is refused where limits at this level have no end."""

_ROUNDING = 1e-12
"""Of a mean of squares: a spread below this share of it is none."""


@dataclass(frozen=True)
class Estimate:
    """A number of the population that the records come from.

    Parameters
    ----------
    name
        What it is of.
    value
        Unbiased, of the first order in the noise.
    error
        Standard error, of sample and noise.
    lean, growth, spill
        How the squared error depends on the truth. If that is `value` + t, and the other numbers
        move with it as errors of them do, it is error^2 + 2 lean t + growth t^2. Others that move
        by themselves add spill (in units of error^2) for each unit of chi squared.
    skew, excess
        Of what the records add to it: their skewness over the root of their number, and their
        excess kurtosis over that number.
    freedom
        Degrees of freedom of the error: limits use Student's quantile.
    condition
        Condition number of the mapping that was inverted; 1 where none was.
    find
        Limits by level, where these are not by value and error.
    """

    name: str
    value: float
    error: float
    lean: float = 0.0
    growth: float = 0.0
    spill: float = 0.0
    skew: float = 0.0
    excess: float = 0.0
    freedom: float = math.inf
    condition: float = 1.0
    find: Callable[[float], tuple[float, float]] | None = None

    def find_limits(self, level: float) -> tuple[float, float]:
        """Interval that holds the number with this probability.

        It holds every truth at which the difference to `value` is within Student's quantile of the
        error that it would have (Fieller 1954, J. R. Stat. Soc. B 16; Anderson and Rubin 1949, Ann.
        Math. Stat. 20). Other coefficients are as they fit best: along a line, and to the second
        order beside it. That is a subset test (Guggenberger, Kleibergen, Mavroeidis and Chen 2012,
        Econometrica 80). So what is shown and wrong is at most 1 - level of all releases. Of those
        shown alone no limits can promise it (Gleser and Hwang 1987, Ann. Stat. 15).

        A mean of skewed numbers is further from the truth, in its own errors, than Student's
        quantile z says. Edgeworth's expansion gives by how much (Hall 1992, The Bootstrap and
        Edgeworth Expansion, section 2.6). Limits are longer by the share
        ``skew^2 {z^4 + 2 z^2 - 3} / 18 - excess {z^2 - 3} / 12``, if that is positive.

        Raises
        ------
        InputError
            If these truths have no end at this level.

        >>> low, high = Estimate("x", 1.0, 0.5).find_limits(0.95)
        >>> round(low, 2), round(high, 2)
        (0.02, 1.98)
        """
        if self.find is not None:
            return self.find(level)
        square = float(stdtrit(self.freedom, 0.5 + level / 2)) ** 2
        rest = 1 - square * self.growth
        check_determined(rest > 0, level)
        middle = square * self.lean
        half = math.sqrt(middle**2 + rest * square * (self.error**2 + square * self.spill))
        tails = self.skew**2 * (square**2 + 2 * square - 3) / 18 - self.excess * (square - 3) / 12
        longer = (1 + max(tails, 0.0)) / rest
        return self.value + longer * (middle - half), self.value + longer * (middle + half)

    def convert(self, unit: float, origin: float = 0.0) -> "Estimate":
        """The same in other units: `unit` times the number, plus `origin`."""
        value, spill = self.value * unit + origin, self.spill * unit**2
        error, lean = self.error * unit, self.lean * unit
        return replace(self, value=value, error=error, lean=lean, spill=spill)


def list_estimates(
    names: Sequence[str],
    values: FloatArray,
    variances: FloatArray,
    *shape: FloatArray,
    freedom: float | FloatArray = math.inf,
) -> list[Estimate]:
    """Estimates; of a regression with lean, growth and spill, refused without limits."""
    rows = [one.tolist() for one in (values, np.sqrt(np.maximum(variances, 0.0)), *shape)]
    free = np.broadcast_to(freedom, values.shape).tolist()
    pairs = zip(zip(names, *rows, strict=True), free, strict=True)
    made = [replace(Estimate(*row), freedom=one) for row, one in pairs]
    for one in made:
        one.find_limits(LEVEL)
    return made


def report_few(n: int) -> InputError:
    """Error that says how few records there are."""
    problem = f"{n} records are too few to estimate anything of."
    remedy = "Use a release of more records than columns."
    return InputError(problem, remedy=remedy, code="few-records")


def sum_up(blocks: Blocks) -> tuple[int, FloatArray, FloatArray]:
    """How many records, their mean, and their covariance; about a block's mean, for the digits."""
    n, anchor, total, products = 0, None, None, None
    for block in blocks():
        anchor = block.mean(axis=0) if anchor is None else anchor
        moved = block - anchor
        n += len(block)
        total = moved.sum(axis=0) + (0.0 if total is None else total)
        products = moved.T @ moved + (0.0 if products is None else products)
    if anchor is None or total is None or products is None or n <= len(anchor) + 1:
        raise report_few(n)
    shift = total / n
    return n, anchor + shift, products / n - np.outer(shift, shift)


def estimate_means(blocks: Blocks, names: Sequence[str]) -> list[Estimate]:
    """Means of columns whose noise has mean 0: its spread is in that of the records."""
    n, mean, covariance = sum_up(blocks)
    return list_estimates(names, mean, np.diag(covariance) / (n - 1), freedom=n - 1)


def estimate_covariances(blocks: Blocks, names: Sequence[str], noise: FloatArray) -> list[Estimate]:
    """Covariances of all pairs of columns.

    Parameters
    ----------
    blocks, names
    noise : (n_columns,)
        Variances of the noise of each, which is not correlated.
    """
    n, mean, covariance = sum_up(blocks)
    rows, columns = np.triu_indices(len(names))
    powers = np.zeros((3, *covariance.shape))
    for block in blocks():
        # The mean of products of deviations to a power, pair by pair, is one product of powers.
        powers += [((power := (block - mean) ** k).T @ power) / n for k in (2, 3, 4)]
    second, third, fourth = powers[:, rows, columns]
    centre = covariance[rows, columns]
    spread = second - centre**2
    variances = spread / (n - 1)
    # What does not vary has no tails, but for rounding.
    unit = np.sqrt(np.where(spread > _ROUNDING * second, spread, math.inf))
    skew = ((third - 3 * centre * second + 2 * centre**3) / unit**3) / math.sqrt(n)
    around = fourth - 4 * centre * third + 6 * centre**2 * second - 3 * centre**4
    tails = skew, (around / unit**4 - 3) / n
    # The noise is in the deviations: of few records their mean square is less by both.
    values = centre * n / (n - 1) - np.diag(noise)[rows, columns]
    pairs = [f"{names[i]}, {names[j]}" for i, j in np.transpose([rows, columns]).tolist()]
    # The error of a variance is a share of it, noise included: limits reach further above. Few
    # records say so little of that share that these had no end.
    total = np.where(rows == columns, centre, math.inf)
    most = 0.5 / stdtrit(n - 1, 0.5 + LEVEL / 2) ** 2
    growth = np.minimum(variances / np.maximum(total**2, np.finfo(np.float64).tiny), most)
    lean = np.where(rows == columns, growth * centre, 0.0)
    return list_estimates(pairs, values, variances, lean, growth, 0 * lean, *tails, freedom=n - 1)


def estimate_correlations(
    blocks: Blocks, names: Sequence[str], noise: FloatArray
) -> list[Estimate]:
    """Correlations of all pairs of different columns, of those that surely vary.

    Parameters
    ----------
    blocks, names
    noise : (n_columns,)
        Variances of the noise of each, which is not correlated.

    Raises
    ------
    InputError
        If fewer than two columns vary beyond the noise.

    Warns
    -----
    LeftOutWarning
        Of columns that may vary by noise alone; they are named.

    Notes
    -----
    Their error is of the first order. Let columns be in units of what they vary by. Limits then
    hold each correlation r at which the mean of ``x y - r (x^2 + y^2) / 2`` is not rejected. A
    correlation is a quotient, too.
    """
    n, mean, covariance = sum_up(blocks)
    spread = np.diag(covariance) * n / (n - 1) - noise
    unit = np.sqrt(np.where(spread > 0, spread, math.inf))
    fourth, third = np.zeros_like(covariance), np.zeros_like(covariance)
    for block in blocks():
        scaled = (block - mean) / unit
        fourth += np.square(scaled).T @ np.square(scaled) / n
        third += (scaled**3).T @ scaled / n
    second = covariance / np.outer(unit, unit)
    square = np.diag(second)
    # A spread that is not twice its error above zero is none to divide by.
    most = (n - 1) / stdtrit(n - 1, 0.5 + LEVEL / 2) ** 2
    sure = (spread > 0) & (np.diag(fourth) - square**2 < most)
    at = np.flatnonzero(sure)
    check_determined(len(at) > 1, LEVEL)
    say_left_out(np.array(names)[~sure].tolist())
    places = np.triu_indices(len(at), 1)
    rows, columns = at[places[0]], at[places[1]]
    ends, middle = np.diag(fourth), np.add.outer(square, square) / 2
    growth = ((np.add.outer(ends, ends) + 2 * fourth) / 4 - middle**2) / (n - 1)
    cross = ((third + third.T) / 2 - second * middle) / (n - 1)
    values = second * n / (n - 1)
    lean = values * growth - cross
    variances = (fourth - second**2) / (n - 1) - values * (cross - lean)
    tables = [one[rows, columns] for one in (values, variances, lean, growth, 0 * lean)]
    pairs = [f"{names[i]}, {names[j]}" for i, j in zip(rows, columns, strict=True)]
    return list_estimates(pairs, tables[0], tables[1], *tables[2:], freedom=n - 1)


def say_left_out(names: Sequence[str]) -> None:
    """Warn of what is not determined, by name."""
    if names:
        said = f"Not determined, and left out: {', '.join(names)}."
        warnings.warn(said, LeftOutWarning, stacklevel=2)


def estimate_regression(blocks: Blocks, names: Sequence[str], noise: FloatArray) -> list[Estimate]:
    """Coefficients of the last column on the others, last the intercept: corrected scores.

    Parameters
    ----------
    blocks, names
    noise : (n_columns,)
        Variances of the noise of each, which is not correlated.

    Raises
    ------
    InputError
        If the features hardly vary beside the noise.
    """
    n, mean, covariance = sum_up(blocks)
    d = len(names) - 1
    freedom = n - d - 1
    inner = covariance[:d, :d] - np.diag(noise[:d])
    check_spread(inner)
    slopes = np.linalg.solve(inner, covariance[:d, d])
    # The intercept is the mean of the response less that of the features times the slopes.
    spread = np.vstack([np.eye(d), -mean[:d]]) @ np.linalg.inv(inner)
    plain = np.append(np.zeros(d), 1.0)
    errors, leans, growth = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d)), np.zeros(d + 1)
    for block in blocks():
        moved = block[:, :d] - mean[:d]
        weights = moved @ spread.T + plain
        residual = block[:, d] - mean[d] - moved @ slopes
        # What the noise of the features adds to their product with the residual is taken back.
        each = weights * residual[:, None] + spread @ (noise[:d] * slopes)
        errors += each.T @ each / freedom
        leans -= (each * weights).T @ moved / freedom
    lines = find_lines(errors)[:, :d]
    middle = np.sum(spread * (lines @ covariance[:d, :d]), axis=1)
    for block in blocks():
        moved = block[:, :d] - mean[:d]
        along = (moved @ spread.T + plain) * (moved @ lines.T) - middle
        growth += np.sum(along**2, axis=0) / freedom
    found = np.append(slopes, mean[d] - mean[:d] @ slopes)
    lean, spill = _find_lean(errors / n, leans / n)
    shape = lean, growth / n, spill
    variances = np.diag(errors) / n
    return list_estimates([*names[:d], "intercept"], found, variances, *shape, freedom=freedom)


def find_lines(errors: FloatArray) -> FloatArray:
    """Row j: how all coefficients are off, on average, where coefficient j is off by 1."""
    return errors / np.maximum(np.diag(errors), np.finfo(np.float64).tiny)[:, None]


def _find_lean(errors: FloatArray, leans: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lean and spill of each coefficient, by its squared error along its line and beside it.

    Parameters
    ----------
    errors : (n, n)
        Covariance of all coefficients.
    leans : (n, k)
        Half the derivative of the squared error of each by the first coefficients.
    """
    k, variances = leans.shape[1], np.maximum(np.diag(errors), np.finfo(np.float64).tiny)
    lean = np.sum(leans * errors[:, :k], axis=1) / variances
    # Normal errors of all coefficients, less the one along the line, which `lean` has.
    total = np.sum(leans @ errors[:k, :k] * leans, axis=1) / variances
    return lean, np.maximum(total - lean**2, 0.0)


def check_spread(spread: FloatArray) -> None:
    """Raise InputError unless features vary in all directions, beyond the noise and rounding."""
    values = np.linalg.eigvalsh(spread)
    check_determined(bool(values[0] > len(values) * np.finfo(np.float64).eps * values[-1]), LEVEL)


def check_determined(determined: bool, level: float) -> None:
    if not determined:
        raise InputError(
            "The features hardly vary in some direction beside the noise, or records are few: at "
            f"level {level:g} nothing is determined.",
            remedy="Use fewer features, a release with a larger epsilon, or more records; "
            f"above level {LEVEL:g}, a lower one.",
            code="not-determined",
        )


def estimate_moment_means(
    moments: FloatArray, deviations: FloatArray, names: Sequence[str], one: int
) -> list[Estimate]:
    """Means, of noisy sums of products in which column `one` is 1 in every record."""
    count = moments[one, one]
    places = [j for j in range(len(moments)) if j != one]
    mean = moments[one, places] / count
    spread = np.diag(moments)[places] / count - mean**2
    # The count has noise as well, by which each mean is divided.
    noise = (deviations[one, places] ** 2 + (mean * deviations[one, one]) ** 2) / count**2
    return list_estimates(names, mean, np.maximum(spread, 0.0) / count + noise)


def estimate_moment_regression(
    moments: FloatArray, deviations: FloatArray, names: Sequence[str], one: int, response: int
) -> list[Estimate]:
    """Least squares of one response on the columns before `one` and on it, of noisy sums.

    Its sampling error is that of residuals of one variance, as fourth moments are not released.

    Raises
    ------
    InputError
        If the features hardly vary beside the noise.
    """
    count, q = moments[one, one], one
    inner = moments[: q + 1, : q + 1]
    mean = inner[one, :q] / count
    check_spread(inner[:q, :q] / count - np.outer(mean, mean))
    found = np.linalg.solve(inner, moments[: q + 1, response])
    contrast = np.zeros(len(moments))
    contrast[: q + 1], contrast[response] = found, -1.0
    residual = max(float(contrast @ moments @ contrast), 0.0) / count
    # Of noise N, symmetric, the covariance of N @ contrast in the rows of the features.
    squares: FloatArray = np.square(deviations)
    scores = squares * np.outer(contrast, contrast)
    np.fill_diagonal(scores, squares @ contrast**2)
    inverse = np.linalg.inv(inner)
    errors = inverse @ (scores[: q + 1, : q + 1] + residual * inner) @ inverse
    entries, lines = squares[: q + 1, : q + 1], find_lines(errors)

    def move(to: FloatArray) -> FloatArray:
        # Half the derivative of what N adds to the variance of each row of the inverse.
        apart = entries - np.diag(np.diag(entries))
        return inverse * ((inverse * to) @ entries) + to * (inverse**2 @ apart)

    # Residuals vary least at what was found: of the first order only the noise changes.
    sample = np.diag(inverse) * np.sum(lines @ inner * lines, axis=1) / count
    growth = np.sum(move(lines) * lines, axis=1) + sample
    lean, spill = _find_lean(errors, move(found))
    return list_estimates([*names[:q], "intercept"], found, np.diag(errors), lean, growth, spill)


def choose_response(response: str | None, names: Sequence[str], what: str = "response") -> int:
    """Place of a response, or of `what` it is, among names; of a single one it need not be named.

    Raises
    ------
    OptionError
        If the release has no such column.
    """
    if response is None and len(names) == 1:
        return 0
    if response not in names:
        problem = f"The {what} {response!r} is none of the release."
        remedy = f"Choose one of: {', '.join(names) or 'those of [release] include'}."
        raise OptionError(problem, remedy=remedy, code="estimate")
    return names.index(response)
