"""Pairs of raw and released records: linkage and reconstruction.

Linkage: which released record belongs to a known raw one? Nearest neighbours decide.
Reconstruction: how much of the raw records can be predicted from the released ones?
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import TypeAlias

import numpy as np
from scipy import linalg, special

from privpipe.attacks.adversaries import auxiliary, coordinates, ridges
from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.attacks.statistics import intervals
from privpipe.attacks.statistics.intervals import Confidence, Interval
from privpipe.attacks.statistics.splits import RecordSplit, draw_split
from privpipe.errors import InputError
from privpipe.numerics.finite import as_reals, bring_near
from privpipe.numerics.random.record_hash import identify_records
from privpipe.protocols import ArrayLike, FloatArray, IntArray, WordArray

MOST_RECORDS = 20_000
"""Records compared at most: every one with many others."""

MOST_PROBES = 5_000
"""Records that are looked up."""

_PROBES_AT_ONCE = 1024
_GALLERY_AT_ONCE = 8192
_TIE = 1e-12
"""Squared distances closer than this share of the squared lengths are ties."""

_MOST_TRIED = 250
"""Training records on which ways to weigh columns are compared."""

_LEAST_LEFT = 1e-8
"""Share of a column's variance that is left by predicting it, below which it is a copy."""

_FEWEST = 3
"""Records for each column, with which directions are weighed."""

_MOST_LEFT = 0.99
"""The share above which a column says nothing of whose it is."""


Keys: TypeAlias = WordArray | None
"""What is known of each entry for certain."""

_Pair: TypeAlias = tuple[FloatArray, FloatArray]

_Way: TypeAlias = tuple[FloatArray | None, FloatArray] | None
"""Directions, None for the columns, and the share of each one's variance that is left; or all
columns alike."""


@dataclass(frozen=True)
class LinkageAttack:
    """How often one way of linking finds a record.

    Parameters
    ----------
    method
        "direct": nearest in the columns both have, standardised. "learned": the release is
        first predicted from the raw record by a ridge regression on other pairs. Columns are
        weighed by how well that does. "ranked": the same of ranks within columns, by which a column
        that was copied on a rising or falling curve is the column itself.
    top_1, top_10
        Share of probes whose release is the nearest, or among the ten nearest.
    median_rank
        Median number of releases nearer than the right one.
    """

    method: str
    top_1: Interval
    top_10: Interval
    median_rank: float


@dataclass(frozen=True)
class LinkageReport:
    """Linkage attacks on one release; the strongest decides.

    Parameters
    ----------
    attacks
        One per method.
    n_probes, n_gallery
        Raw records looked up, and released records they were looked up among.
    chance_1, chance_10
        Shares that guessing reaches.
    n_included
        Variables released as recorded, by whose values the attacks look first.
    """

    attacks: tuple[LinkageAttack, ...]
    n_probes: int
    n_gallery: int
    chance_1: float
    chance_10: float
    n_included: int = 0

    @property
    def strongest(self) -> LinkageAttack:
        """The attack with the largest upper limit of its top-10 share, then of its top-1."""
        return max(self.attacks, key=lambda a: (a.top_10.upper, a.top_1.upper))

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self) | {"strongest": self.strongest.method}, indent=1)


def measure_linkage(
    raw: ArrayLike,
    released: ArrayLike,
    groups: IntArray | None = None,
    *,
    included: ArrayLike = (),
    options: AttackOptions = USUAL,
) -> LinkageReport:
    """Try to find the release of each of some known raw records.

    The gallery is a sample of the release with the probes' entries in it; entries at
    equal distance are ordered by chance. Half of the sample serves the learned method as
    pairs to train on; probes are taken from the other half. Where variables are released as
    recorded, only entries with the values of the known record are candidates.

    Parameters
    ----------
    raw : (n_records, n_features)
        Records an outsider may know.
    released : (n_records, n_features_released)
        Their releases, row by row.
    groups : (n_records,), optional
        Subject of each record, for the intervals.
    included : (n_records, n_included), optional
        Variables released as recorded, as numbers or codes; a missing one is NaN.
    options
        Bounds of the sample, its seed, which orders ties as well, and the confidence of both
        intervals of all methods together (Bonferroni).

    Raises
    ------
    InputError
        If the numbers of records differ or are below 20, or values are not finite.

    Examples
    --------
    >>> raw = np.random.default_rng(0).normal(size=(200, 5))
    >>> measure_linkage(raw, raw).strongest.top_1.estimate
    1.0
    """
    x, z, rows = draw_pairs(raw, released, groups, options)
    half = len(rows) // 2
    probes = rows[half:][:MOST_PROBES]
    at = np.arange(half, half + len(probes))
    gallery = coordinates.measure_coordinates(z[rows], name="released").values
    known = coordinates.measure_coordinates(x[rows], name="raw").values
    table = as_reals(included, "included") if np.size(included) else np.zeros((len(x), 0))
    if table.ndim != 2 or len(table) != len(x):
        problem = f"included has shape {table.shape}, raw {x.shape}."
        raise InputError(problem, remedy="Give a row of included values for each record.")
    keys = identify_records(table[rows].astype(np.float64)) if table.size else None
    # One half trains the learned method and the other is looked up: whoever knows the pair that he
    # looks for need not link it.
    methods = {
        "learned": _learn(known, gallery, at, keys, options.seed),
        "ranked": _learn(_rank(known), _rank(gallery), at, keys, options.seed),
    }
    if x.shape[1] == z.shape[1]:
        methods["direct"] = _align(x[rows], z[rows], at)
    # Two intervals of each method hold jointly.
    share = options.plan_level(2 * len(methods))
    subject = None if groups is None else np.asarray(groups)[probes]
    attacks = tuple(
        _count_links(name, measure_ranks(p, g, at, options.seed, keys), subject, share)
        for name, (p, g) in methods.items()
    )
    chances = 1 / len(rows), min(1.0, 10 / len(rows))
    return LinkageReport(attacks, len(probes), len(rows), *chances, table.shape[1])


def draw_pairs(
    raw: ArrayLike, released: ArrayLike, groups: ArrayLike | None, options: AttackOptions
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Raw and released records as arrays, and a bounded sample of their rows in random order.

    Raises
    ------
    InputError
        If there are fewer than 20 pairs, or not as many of both.
    """
    AttackOptions.check(options)
    x, z = (bring_near(as_reals(*one)) for one in ((raw, "raw"), (released, "released")))
    of_groups = x.shape[:1] if groups is None else np.shape(groups)
    if (x.ndim, z.ndim) != (2, 2) or not len(x) == len(z) >= 20 or of_groups != x.shape[:1]:
        problem = f"raw has shape {x.shape}, released {z.shape}, groups {of_groups}."
        raise InputError(problem, remedy="Give at least 20 pairs, row by row, and a group of each.")
    # Both matrices of the sample fit their bound in double precision.
    fits = max(options.max_bytes // (8 * max(int(x.shape[-1]), int(z.shape[-1]), 1)), 20)
    order = np.random.default_rng(options.seed).permutation(len(x))
    return x, z, order[: min(options.max_records, MOST_RECORDS, fits)]


def measure_ranks(
    probes: FloatArray, gallery: FloatArray, match: IntArray, seed: int = 0, keys: Keys = None
) -> IntArray:
    """Rank of each probe's own entry among all of the gallery by distance; 0 is nearest.

    Parameters
    ----------
    probes : (n_probes, n_features)
        Records to look up.
    gallery : (n_gallery, n_features)
        Records to look among.
    match : (n_probes,)
        Row of the gallery that belongs to each probe.
    seed
        Seed of the order among ties, so that identical entries are found by chance only.
    keys : (n_gallery,), optional
        What is known of each entry for certain: entries of another key are out.

    Returns
    -------
    ranks : (n_probes,)
        Number of entries nearer than the probe's own.

    Notes
    -----
    Holds one block of 1,024 by 8,192 squared distances (64 MiB) at a time.
    """
    nearer, tied = np.zeros(len(probes), np.int64), np.zeros(len(probes), np.int64)
    length = np.einsum("ij,ij->i", gallery, gallery, dtype=np.float64)
    for rows in _blocks(len(probes), _PROBES_AT_ONCE):
        p, mine = probes[rows].astype(np.float64), match[rows]
        base = length[mine] - 2 * np.einsum("ij,ij->i", p, gallery[mine].astype(np.float64))
        # Expanded squares lose digits: equal entries differ by rounding, and would be ranked by it.
        margin = _TIE * (np.einsum("ij,ij->i", p, p) + length[mine])
        low, high = (base - margin)[:, None], (base + margin)[:, None]
        # Without the probes' own lengths, and in one product: a pass over all pairs costs as much.
        p = np.column_stack([-2 * p, np.ones(len(p))])
        for cols in _blocks(len(gallery), _GALLERY_AT_ONCE):
            d = p @ np.column_stack([gallery[cols].astype(np.float64), length[cols]]).T
            if keys is not None:
                d[keys[mine][:, None] != keys[cols]] = np.inf
            nearer[rows] += np.count_nonzero(d < low, axis=1)
            tied[rows] += np.count_nonzero(d <= high, axis=1)
    # The probe's own entry is among the ties.
    tied -= nearer
    return nearer + np.random.default_rng(seed).integers(0, np.maximum(tied, 1))


def _blocks(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))


def _count_links(method: str, ranks: IntArray, who: IntArray | None, level: float) -> LinkageAttack:
    def share(k: int) -> Interval:
        hits = ranks < k
        if who is None:
            return intervals.measure_exact_interval(int(hits.sum()), len(hits), level=level)
        return intervals.measure_hits_interval(hits, Confidence(level, groups=who))

    return LinkageAttack(method, share(1), share(10), float(np.median(ranks)))


def _align(raw: FloatArray, released: FloatArray, at: IntArray) -> tuple[FloatArray, FloatArray]:
    """Both in units of the release, column by column; columns it holds constant are left out."""
    mean, scale = released.mean(axis=0, dtype=np.float64), released.std(axis=0, dtype=np.float64)
    varies = scale > 0
    mine, theirs = ((x[:, varies] - mean[varies]) / scale[varies] for x in (raw[at], released))
    return mine, theirs


def _rank(x: FloatArray) -> FloatArray:
    """Normal scores of each column's ranks; equal values have the same."""
    from scipy import stats  # slow to load

    return np.asarray(special.ndtri((stats.rankdata(x, axis=0) - 0.5) / len(x)))


def _learn(known: FloatArray, gallery: FloatArray, at: IntArray, keys: Keys, seed: int) -> _Pair:
    """Predict the release from the raw record, and weigh both as finds most of the training half.

    In one distance over all columns a copied one drowns among noise.
    """
    half = at[0]
    n_fit = max(2, half - half // 5)
    # The ridge is chosen on a fifth of the training half, never on what is looked up.
    tuning = known[n_fit:half], gallery[n_fit:half]
    _, slope, offset = ridges.choose_ridge(known[:n_fit], gallery[:n_fit], *tuning)
    guess = np.asarray(known @ slope + offset)
    # Every other record of it weighs columns; the ways to do so are compared on the rest.
    some, tried = np.arange(n_fit, half)[::2], np.arange(n_fit, half)[1::2][:_MOST_TRIED]

    def find(way: _Way) -> float:
        mine, theirs = _weigh(guess[tried], gallery, way)
        return float(np.mean(1 / (1 + measure_ranks(mine, theirs, tried, seed, keys))))

    ways = [None, *_list_ways(guess[some], gallery, some)]
    return _weigh(guess[at], gallery, max(ways, key=find))


def _list_ways(guess: FloatArray, gallery: FloatArray, some: IntArray) -> Iterator[_Way]:
    apart, wrong = guess - gallery[some], np.roll(guess, 1, axis=0) - gallery[some]
    yield None, (apart**2).mean(axis=0)
    # Of residuals with long tails the median says more.
    same, other = (np.median(one**2, axis=0) + _LEAST_LEFT for one in (apart, wrong))
    yield None, (left := 2 * same / (same + other))
    # Or the best column alone.
    yield None, np.where(np.arange(len(left)) == left.argmin(), left, 1.0)
    if len(some) > _FEWEST * len(left):
        near = 1e-9 * np.eye(len(left))
        yield linalg.eigh(*(a.T.astype(float) @ a / len(a) + near for a in (apart, gallery)))[::-1]


def _weigh(guess: FloatArray, gallery: FloatArray, way: _Way) -> _Pair:
    """Both so that of nearer entries it is likelier that they are of this record.

    Let a standardised column be guessed as p, with a variance of v left. The logarithm of the
    likelihood ratio is then `-(1/v - 1) (g - p / (1 - v))**2 / 2` and what does not depend on g.
    """
    if way is None:
        return guess, gallery
    turn, left = way
    used = left < _MOST_LEFT
    v = np.maximum(left[used], _LEAST_LEFT)
    p, g = (a[:, used] if turn is None else a @ turn[:, used] for a in (guess, gallery))
    size = np.sqrt(1 / v - 1)
    return p * (size / (1 - v)), g * size


@dataclass(frozen=True)
class Reconstruction:
    """How well one adversary rebuilds raw records it has not seen.

    Parameters
    ----------
    adversary
        "least_squares" or "rbf".
    r2
        Share of the raw records' variance rebuilt, every raw column counting alike.
    column_r2
        Share of each raw column's variance, in the order of the columns that vary.
    """

    adversary: str
    r2: Interval
    column_r2: tuple[float, ...]


@dataclass(frozen=True)
class ReconstructionReport:
    """Reconstructions of one release; the strongest decides.

    Parameters
    ----------
    attacks
        One per adversary.
    n_train, n_test
        Records trained on and judged by.
    """

    attacks: tuple[Reconstruction, ...]
    n_train: int
    n_test: int

    @property
    def strongest(self) -> Reconstruction:
        """The adversary with the largest upper limit of R squared."""
        return max(self.attacks, key=lambda attack: attack.r2.upper)

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self) | {"strongest": self.strongest.adversary}, indent=1)


def measure_reconstruction(
    raw: ArrayLike,
    released: ArrayLike,
    groups: ArrayLike | None = None,
    *,
    options: AttackOptions = USUAL,
) -> ReconstructionReport:
    """Rebuild raw records from released ones by adversaries that know other pairs.

    Parameters
    ----------
    raw : (n_records, n_features)
        Records before the release.
    released : (n_records, n_features_released)
        Their releases, row by row.
    groups : (n_records,), optional
        Subject of each record, for split and intervals.
    options
        Bounds of the sample, seed, and the confidence of the intervals of both adversaries
        together (Bonferroni).

    Raises
    ------
    InputError
        If the numbers of records differ or are below 20, or values are not finite.

    Examples
    --------
    >>> raw = np.random.default_rng(0).normal(size=(300, 4))
    >>> report = measure_reconstruction(raw, raw[:, :2])
    >>> round(report.strongest.column_r2[0], 2), report.strongest.column_r2[3] < 0.1
    (1.0, True)
    """
    x, z, order = draw_pairs(raw, released, groups, options)
    rows, seed = np.sort(order), options.seed
    who = None if groups is None else np.unique(np.asarray(groups)[rows], return_inverse=True)[1]
    # All columns, and not their coordinates: a column that others determine is rebuilt, too.
    target = _standardise(x[rows])
    source = coordinates.measure_coordinates(z[rows], name="released", seed=seed).values
    split = draw_split(np.arange(len(rows)), groups=who, seed=seed)
    residuals = {
        "least_squares": _rebuild([source], target, split),
        "rbf": _rebuild(_lift(source, split, seed), target, split),
    }
    level = options.plan_level(len(residuals))
    found = tuple(_judge(name, rest, target, split, who, level) for name, rest in residuals.items())
    return ReconstructionReport(found, len(split.train), len(split.test))


def _standardise(raw: FloatArray) -> FloatArray:
    """Columns that vary, of mean 0 and variance 1; all of them, whatever their rank."""
    # Every raw column counts alike in the R squared, whatever its unit.
    table = auxiliary.standardise(raw.astype(np.float64)) if np.isfinite(raw).all() else raw[:, :0]
    if not table.shape[1]:
        problem = "raw has no column that varies, or values that are not finite."
        remedy = "Give finite records with at least one column that varies."
        raise InputError(problem, remedy=remedy)
    return table


def _lift(source: FloatArray, split: RecordSplit, seed: int) -> list[FloatArray]:
    """Kernel features of several widths, with the columns themselves."""
    width = ridges.measure_width(source[split.train], seed)
    n_landmarks = min(ridges.LANDMARKS, len(split.train))
    landmarks = source[np.random.default_rng(seed).choice(split.train, n_landmarks, replace=False)]
    return [
        np.hstack([source, ridges.find_features(landmarks, share * width)(source)])
        for share in ridges.WIDTHS[1:3]
    ]


def _rebuild(sources: list[FloatArray], target: FloatArray, split: RecordSplit) -> FloatArray:
    """Test residuals (n_test, n_columns) of the source and ridge that do best in tuning."""
    train, tune, test = (target[rows] for rows in (split.train, split.tune, split.test))
    found = (
        (*ridges.choose_ridge(source[split.train], train, source[split.tune], tune), source)
        for source in sources
    )
    _, slope, offset, best = min(found, key=itemgetter(0))
    return np.asarray(test - best[split.test] @ slope - offset)


def _judge(
    adversary: str,
    residual: FloatArray,
    target: FloatArray,
    split: RecordSplit,
    subject: IntArray | None,
    level: float,
) -> Reconstruction:
    spread = (target[split.test] - target[split.train].mean(axis=0)) ** 2
    lost, had = (residual**2).sum(axis=1), spread.sum(axis=1)
    # A ratio of sums over records: neither Wilson nor a t interval is of it.
    rest, whole = float(lost.sum()) / float(had.sum()), float(had.sum())
    confidence = Confidence(level, groups=None if subject is None else subject[split.test])
    by = (rest * had - lost) / whole
    r2 = intervals.measure_influence_interval(1 - rest, by, confidence, link="log_complement")
    column_r2 = 1 - (residual**2).sum(axis=0) / np.maximum(spread.sum(axis=0), np.finfo(float).tiny)
    return Reconstruction(adversary, r2, tuple(column_r2.tolist()))
