"""What is refused because a surrogate would reveal too much, each with its number and its reason.

How much of any direction one person holds is measured over all records of a subject, or equal ones.
Persons are too many to be counted one by one. The sum of all leverages is the number of
dimensions, so few hold much. A mergeable summary of the heaviest (Misra and Gries 1982; Agarwal et
al. 2012, Mergeable Summaries) finds them in one pass, with an error that it knows.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import BoolArray, FloatArray, Shard, ShardSchema, WordArray
from privpipe.sanitizers.arrays import check_unweighted

COUNTERS_PER_DIMENSION = 200
"""Persons remembered per dimension: what is forgotten is at most a two-hundredth in all."""


@dataclass(frozen=True, eq=False)
class PersonLeverage:
    """The persons that hold most of the features, and of each response.

    Parameters
    ----------
    words : (n,)
        Keyed names of persons and what is measured of them; no value of a record.
    shares : (n,)
        What each holds, too little by `lost` at most.
    lost
    single
        Largest share of a direction of the features that one record holds.
    capacity
        Counters that are held.
    """

    words: WordArray
    shares: FloatArray
    lost: float
    single: float
    capacity: int

    @property
    def largest(self) -> float:
        """Upper bound of what any one person holds of a direction, or of a response."""
        return float(self.shares.max(initial=0.0)) + self.lost

    def merge(self, other: "PersonLeverage") -> "PersonLeverage":
        """Of the records of both."""
        words = np.concatenate([self.words, other.words])
        shares = np.concatenate([self.shares, other.shares])
        lost, single = self.lost + other.lost, max(self.single, other.single)
        return _summarise(words, shares, lost, single, self.capacity)


def measure_person_leverage(
    shard: Shard, leverage: FloatArray, responses: FloatArray, key: int
) -> PersonLeverage:
    """What each person of a shard holds.

    Parameters
    ----------
    shard
        With groups, where persons are known by a variable; else equal features are one person.
    leverage : (n_records, rank)
        Coordinates of the features whose squares sum to the leverage.
    responses : (n_records, n_responses)
        Coordinates of each response, whose squares sum to one over all records.
    key
        Of this fit, by which persons are named.
    """
    # A missing response holds nothing of its variance.
    held = np.column_stack([np.sum(leverage**2, axis=1), np.nan_to_num(responses) ** 2])
    persons = shard.groups.astype(np.int64).view(np.uint64)
    if not len(persons):
        persons = identify_records(np.asarray(shard.features, np.float64))
    n_columns = np.uint64(held.shape[1])
    columns = np.arange(held.shape[1], dtype=np.uint64)
    # A name per person and measure, so that one summary finds the heaviest of every measure.
    words: WordArray = (persons ^ np.uint64(key))[:, None] * n_columns + columns
    capacity = COUNTERS_PER_DIMENSION * (leverage.shape[1] + responses.shape[1])
    single = float(held[:, 0].max(initial=0.0))
    return _summarise(words.ravel(), held.ravel(), 0.0, single, capacity)


def _summarise(
    words: WordArray, shares: FloatArray, lost: float, single: float, capacity: int
) -> PersonLeverage:
    """Sum the shares of equal words; of too many, take what the next one has from all."""
    names: WordArray
    names, owner = np.unique(words, return_inverse=True)
    sums: FloatArray = np.bincount(owner, weights=shares, minlength=len(names)).astype(float)
    if len(sums) > capacity:
        cut = float(np.partition(sums, len(sums) - capacity - 1)[len(sums) - capacity - 1])
        # As Misra and Gries do: all lose what the first one beyond the counters has, and an upper
        # bound of any person is what is left and all that was lost.
        sums, lost = sums - cut, lost + cut
    held = sums > 0
    return PersonLeverage(names[held], sums[held], lost, single, capacity)


RECORDS_PER_RANK = 2
"""Fewest records per dimension of the features: below, independent components are records."""

LARGEST_SHARE = 0.1
"""Of the variance of a response or a feature, or of a direction, that one person may hold.

Released coefficients and second moments show who holds the share s of one at a cosine of about
``sqrt(s)``. That is .32, where a record counts as found from .97 and nine tenths of it are others'.
"""


def check_regression(schema: ShardSchema) -> None:
    """Raise for records that have no regression to keep, or are weighted."""
    check_unweighted(schema)
    if not schema.desired or not schema.n_features:
        raise InputError(
            f"There is no {'numeric feature' if schema.desired else 'desired variable'} to keep.",
            remedy="Name at least one variable in [collection] desired, and ingest features.",
        )


def check_counts(n_surrogates: int, n_features: int) -> None:
    """Raise OptionError where surrogates are too few for a regression.

    Parameters
    ----------
    n_surrogates
    n_features
        With the bias feature.
    """
    if n_surrogates < n_features:
        raise OptionError(
            f"n_surrogates is {n_surrogates}; {n_features} features, the bias one included, need "
            "at least as many for a regression.",
            remedy=f"Set n_surrogates to {n_features} or more.",
            code="surrogates-few",
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


def bound_share(n_surrogates: int) -> float:
    """Largest share of a response, a feature or a direction that one person may hold.

    `LARGEST_SHARE`, and of very many surrogates less. A share h gives those of its direction an
    excess kurtosis of ``-2 h^2``. It is shown by m of them with a standard error of ``sqrt(24 /
    m)``, of which two are allowed.

    >>> bound_share(2000), round(bound_share(1_000_000), 3)
    (0.1, 0.07)
    """
    # 2 h^2 <= 2 sqrt(24 / m), solved for h.
    return min(LARGEST_SHARE, math.sqrt(math.sqrt(24 / n_surrogates)))


def check_outliers(furthest: FloatArray, counts: FloatArray, names: Sequence[str], n: int) -> None:
    """Raise InputError where one record holds too much of the variance of a feature.

    Parameters
    ----------
    furthest, counts : (n_features,)
        Largest deviation in standard deviations, and known entries.
    names
        Of the features.
    n
    """
    allowed = bound_share(n)
    too_much = furthest**2 / np.maximum(counts, 1) > allowed
    if too_much.any():
        # The deviation whose square is just the allowed share of the variance, rounded down.
        clip = math.floor(10 * math.sqrt(allowed * float(counts.min()))) / 10
        raise InputError(
            f"In {name_few(names, too_much)} one record holds more than {allowed:.2g} of "
            "the variance: the release would show it.",
            remedy=f"Set [method] threshold (deviations; below {clip:g}), or leave these out.",
            code="outlier",
        )


def check_responses(furthest: FloatArray, counts: FloatArray, names: Sequence[str], n: int) -> None:
    """Raise InputError where one record holds too much of the variance of a response.

    The released coefficients are the second moments' inverse times ``sum y_i x_i``, and the second
    moments are released. Of a class of one record that sum is the record.

    Parameters
    ----------
    furthest, counts : (n_responses,)
        Largest deviation in standard deviations, and known entries.
    names
        Of the responses; a class is one of them.
    n
    """
    allowed = bound_share(n)
    too_much = furthest**2 / np.maximum(counts, 1) > allowed
    if too_much.any():
        raise InputError(
            f"In the response {name_few(names, too_much)} one record holds more than "
            f"{allowed:.2g} of the variance: the released coefficients would show the record.",
            remedy="Merge classes of fewer than about ten records (`privpipe ingest "
            "--min-category-count`), or leave out outlying records or the response.",
            code="outlying-response",
        )


def check_persons(
    found: PersonLeverage, n_surrogates: int, *, clip: float | None, is_named: bool
) -> None:
    """Raise InputError where a record or a person holds too much of a direction or a response.

    Parameters
    ----------
    found
    n_surrogates
    clip
        To which features were clipped; None where they were not.
    is_named
        Whether records of a person are known by a variable; else by being equal.
    """
    allowed = bound_share(n_surrogates)
    fewer = " or a smaller n_surrogates," if allowed < LARGEST_SHARE else ""
    if found.single > allowed:
        lower = "Set [method] threshold" + ("" if clip is None else f" below {clip:g}")
        raise InputError(
            f"One record holds {found.single:.3f} of a direction of the features; {allowed:.2g} "
            f"is allowed with {n_surrogates} surrogates: the release would show it.",
            remedy=f"{lower},{fewer} or leave features out, or mask more records.",
            code="outlier",
        )
    if found.largest > allowed:
        who = "The records of one person hold" if is_named else "Records that are equal hold"
        ways = (
            "Mask more people, or leave out records of the person who has most"
            if is_named
            else "Where equal records are of different people, name the variable that says whose "
            "each is as [collection] subject; else leave repetitions out"
        )
        raise InputError(
            f"{who} {found.largest:.3f} of all directions of the features, or of a response; "
            f"{allowed:.2g} is allowed: the release would show that person.",
            remedy=f"{ways}.",
            code="repeated-person",
        )


def check_whole(whole: BoolArray, names: Sequence[str]) -> None:
    """Raise InputError for features of integers, whose sums lie on a lattice."""
    if whole.any():
        raise InputError(
            f"All values of {name_few(names, whole)} are integers: signed sums of them "
            "are integers, whose parity and lattice reveal single records.",
            remedy='Set [method] integers = "blur", which hides the lattice at the cost of four of '
            "its steps in every surrogate; single records stay unprotected.",
            code="integers",
        )


def check_clip(share: float) -> None:
    """Raise InputError where clipping changes more than single records."""
    if share > 0.05:
        problem = f"clip changes {share:.1%} of all values: it would change the model."
        raise InputError(problem, remedy="Set a larger threshold.", code="clip")


def name_few(names: Sequence[str], chosen: BoolArray) -> str:
    """Names of the first few that are chosen, and how many more there are."""
    found = [name for name, one in zip(names, chosen, strict=True) if one]
    more = f" and {len(found) - 5} more" if len(found) > 5 else ""
    return ", ".join(map(repr, found[:5])) + more
