"""What is refused because a surrogate would tell too much, each with its number and its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.protocols import BoolArray, FloatArray

__all__ = [
    "bound_leverage",
    "check_clip",
    "check_counts",
    "check_leverage",
    "check_outliers",
    "check_rank",
    "check_responses",
    "check_whole",
    "name_few",
]

RECORDS_PER_RANK = 2
"""Fewest records per dimension of the features: below, independent components are records."""

SURROGATES_PER_SQUARE = 10
"""Records squared per surrogate: with more, all records but one tell that one to 12 per cent."""


RESPONSE_SHARE = 0.1
"""Of the variance of a response that one record may hold; a class of ten records is at it."""


def check_counts(n_surrogates: int, n_records: int, n_features: int) -> None:
    """Raise OptionError where the number of surrogates is too small or unsafe.

    Parameters
    ----------
    n_surrogates, n_records
    n_features
        With the bias feature.
    """
    most = n_records**2 // SURROGATES_PER_SQUARE
    if n_surrogates < n_features:
        raise OptionError(
            f"n_surrogates is {n_surrogates}; {n_features} features, the bias one included, need "
            "at least as many for a regression.",
            remedy=f"Set n_surrogates to {n_features} or more.",
            code="surrogates-few",
        )
    if n_surrogates > most:
        raise OptionError(
            f"n_surrogates is {n_surrogates}; of {n_records} records at most {most} (a tenth of "
            "their square) are made: with more, whoever knows all records but one recovers it "
            "from the second moments.",
            remedy=f"Set n_surrogates to at most {most}, or mask more records.",
            code="surrogates-many",
        )


def check_rank(n_records: int, rank: int) -> None:
    """Raise InputError where independent component analysis would find the records."""
    least = RECORDS_PER_RANK * rank
    if n_records <= least:
        raise InputError(
            f"{n_records} records span {rank} dimensions; more than {least} are needed: the "
            "independent components of sums of few records are the records themselves.",
            remedy="Mask more records, or fewer features.",
            code="records-few",
        )


def bound_leverage(n_surrogates: int) -> float:
    """Largest share of a direction that one record may hold.

    A record of leverage h gives the surrogates of its direction an excess kurtosis of ``-2 h^2``,
    which m surrogates show with a standard error of ``sqrt(24 / m)``: up to two of these are
    allowed, and never more than half.

    >>> round(bound_leverage(2000), 3)
    0.331
    """
    return min(0.5, math.sqrt(math.sqrt(24 / n_surrogates)))


def check_outliers(
    furthest: FloatArray, counts: FloatArray, names: Sequence[str], n_surrogates: int
) -> None:
    """Raise InputError where one record holds too much of the variance of a feature.

    Parameters
    ----------
    furthest, counts : (n_features,)
        Largest deviation in standard deviations, and known entries.
    names
        Of the features.
    n_surrogates
    """
    share = furthest**2 / np.maximum(counts, 1)
    allowed = bound_leverage(n_surrogates)
    if (share > allowed).any():
        clip = math.floor(10 * math.sqrt(allowed * float(counts.min()))) / 10
        raise InputError(
            f"In {name_few(names, share > allowed)} one record holds more than {allowed:.2f} of "
            "the variance: the surrogates would show it.",
            remedy=f"Set [method] clip (standard deviations; below {clip:g}), or leave such "
            "features out.",
            code="outlier",
        )


def check_responses(furthest: FloatArray, counts: FloatArray, names: Sequence[str]) -> None:
    """Raise InputError where one record holds too much of the variance of a response.

    The released coefficients are the second moments' inverse times ``sum y_i x_i``, and the second
    moments are released: of a class of one record that sum is the record. One that holds the share
    s of the variance is met by it at a cosine of about ``sqrt(s)``.

    Parameters
    ----------
    furthest, counts : (n_responses,)
        Largest deviation in standard deviations, and known entries.
    names
        Of the responses; a class is one of them.
    """
    share = furthest**2 / np.maximum(counts, 1)
    if (share > RESPONSE_SHARE).any():
        raise InputError(
            f"In the response {name_few(names, share > RESPONSE_SHARE)} one record holds more than "
            f"{RESPONSE_SHARE:g} of the variance: the released coefficients would show the record.",
            remedy="Merge classes of fewer than about ten records (`privpipe ingest "
            "--min-category-count`), leave records of outlying responses out, or leave the "
            "response out of [collection] desired.",
            code="outlying-response",
        )


def check_leverage(largest: float, n_surrogates: int) -> None:
    """Raise InputError where one record holds too much of any direction of the features."""
    allowed = bound_leverage(n_surrogates)
    if largest > allowed:
        raise InputError(
            f"One record holds {largest:.2f} of a direction of the features; {allowed:.2f} is "
            f"allowed with {n_surrogates} surrogates: they would show it.",
            remedy="Set [method] clip, or a smaller n_surrogates, or leave features out. Nothing "
            "was published.",
            code="outlier",
        )


def check_whole(whole: Sequence[bool], names: Sequence[str]) -> None:
    """Raise InputError for features of integers, whose sums lie on a lattice."""
    if any(whole):
        raise InputError(
            f"All values of {name_few(names, np.asarray(whole))} are integers: signed sums of them "
            "are integers, whose parity and lattice tell of single records.",
            remedy='Set [method] integers = "blur", which hides the lattice at the cost of four of '
            "its steps in every surrogate.",
            code="integers",
        )


def check_clip(share: float) -> None:
    """Raise InputError where clipping changes more than single records."""
    if share > 0.05:
        raise InputError(
            f"clip changes {share:.1%} of all values: it would change the model.",
            remedy="Set a larger clip.",
            code="clip",
        )


def name_few(names: Sequence[str], wanted: BoolArray) -> str:
    """Names of the first few that are wanted, and how many more there are."""
    found = [name for name, one in zip(names, wanted, strict=True) if one]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(map(repr, found[:5])) + more
