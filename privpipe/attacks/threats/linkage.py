"""Linkage: which released record belongs to a known raw one? Nearest neighbours decide."""

import json
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.coordinates import bound_rows, measure_coordinates
from privpipe.attacks.adversaries.ridges import solve_ridges
from privpipe.attacks.statistics import intervals
from privpipe.attacks.statistics.distances import measure_ranks
from privpipe.errors import InputError
from privpipe.protocols import FloatArray, IntArray

MOST_RECORDS = 20_000
"""Records compared at most: every one with many others."""


@dataclass(frozen=True)
class LinkageAttack:
    """How often one way of linking finds a record.

    Parameters
    ----------
    method
        "direct": nearest in the columns both have, standardised. "learned": the release is
        first predicted from the raw record by a ridge regression on other pairs.
    top_1, top_10
        Share of probes whose release is the nearest, or among the ten nearest.
    median_rank
        Median number of releases nearer than the right one.
    """

    method: str
    top_1: intervals.Interval
    top_10: intervals.Interval
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
    """

    attacks: tuple[LinkageAttack, ...]
    n_probes: int
    n_gallery: int
    chance_1: float
    chance_10: float

    @property
    def strongest(self) -> LinkageAttack:
        """The attack with the largest upper limit of its top-10 share, then of its top-1."""
        return max(self.attacks, key=lambda a: (a.top_10.upper, a.top_1.upper))

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self) | {"strongest": self.strongest.method}, indent=1)


def attack(
    raw: FloatArray, released: FloatArray, groups: IntArray | None = None, *, options: AttackOptions
) -> LinkageReport:
    """`measure_linkage` with the options of an audit; arrays as of a `Sample`."""
    return measure_linkage(
        raw,
        released,
        groups=groups,
        max_records=min(options.max_records, MOST_RECORDS),
        max_bytes=options.max_bytes,
        level=options.level,
        seed=options.seed,
    )


def measure_linkage(
    raw: npt.ArrayLike,
    released: npt.ArrayLike,
    *,
    groups: IntArray | None = None,
    max_records: int = MOST_RECORDS,
    max_bytes: int = 1 << 28,
    max_probes: int = 5_000,
    level: float = 0.95,
    seed: int = 0,
) -> LinkageReport:
    """Try to find the release of each of some known raw records.

    The gallery is a sample of the release with the probes' entries in it; entries at
    equal distance are ordered by chance. Half of the sample serves the learned method as
    pairs to train on; probes are taken from the other half.

    Parameters
    ----------
    raw : (n_records, n_features)
        Records an outsider may know.
    released : (n_records, n_features_released)
        Their releases, row by row.
    groups : (n_records,), optional
        Subject of each record, for the intervals.
    max_records, max_probes
        Size of the gallery and number of probes at most.
    max_bytes
        Bytes of one matrix of the sample, which shrinks until it fits.
    level
        Confidence of both intervals of all methods together (Bonferroni).
    seed
        Seed of sample and ties.

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
    x, z = np.asarray(raw), np.asarray(released)
    if len(x) != len(z) or len(x) < 20:
        raise InputError(
            f"raw has {len(x)} records, released {len(z)}.",
            remedy="Give at least 20 pairs, row by row.",
        )
    random = np.random.default_rng(seed)
    rows = random.permutation(len(x))[: bound_rows(x, z, max_records, max_bytes)]
    half = len(rows) // 2
    probes = rows[half:][:max_probes]
    at = np.arange(half, half + len(probes))
    gallery = measure_coordinates(z[rows], name="released").values
    known = measure_coordinates(x[rows], name="raw").values
    # One half trains the learned method and the other is looked up: whoever knows the pair that he
    # looks for need not link it.
    methods = {"learned": (_learn(known, gallery, half)[at], gallery)}
    if x.shape[1] == z.shape[1]:
        methods["direct"] = _align(x[rows], z[rows], at)
    # Two intervals of each method hold jointly.
    share = 1 - (1 - level) / (2 * len(methods))
    subject = None if groups is None else np.asarray(groups)[probes]
    return LinkageReport(
        attacks=tuple(
            _count_links(name, measure_ranks(p, g, at, seed), subject, share)
            for name, (p, g) in methods.items()
        ),
        n_probes=len(probes),
        n_gallery=len(rows),
        chance_1=1 / len(rows),
        chance_10=min(1.0, 10 / len(rows)),
    )


def _count_links(
    method: str, ranks: IntArray, subject: IntArray | None, level: float
) -> LinkageAttack:
    def share(k: int) -> intervals.Interval:
        hits = ranks < k
        if subject is None:
            return intervals.measure_exact_interval(int(hits.sum()), len(hits), level=level)
        return intervals.measure_grouped_wilson_interval(hits, subject, level=level)

    return LinkageAttack(method, share(1), share(10), float(np.median(ranks)))


def _align(raw: FloatArray, released: FloatArray, at: IntArray) -> tuple[FloatArray, FloatArray]:
    """Both in units of the release, column by column; columns it holds constant are left out."""
    mean, scale = released.mean(axis=0, dtype=np.float64), released.std(axis=0, dtype=np.float64)
    varies = scale > 0
    if not varies.any():
        return np.zeros((len(at), 1)), np.zeros((len(released), 1))
    mine, theirs = ((x[:, varies] - mean[varies]) / scale[varies] for x in (raw[at], released))
    return mine, theirs


def _learn(known: FloatArray, gallery: FloatArray, half: int) -> FloatArray:
    """Predict the release from the raw record; the ridge that predicts a tenth best."""
    n_fit = max(2, half - half // 5)
    best, least = gallery, np.inf
    # The ridge is chosen on a fifth of the training half, never on what is looked up.
    for _, slope, offset in solve_ridges(known[:n_fit], gallery[:n_fit]):
        rest = gallery[n_fit:half] - (known[n_fit:half] @ slope + offset)
        error = float(np.mean(rest**2))
        if error < least:
            best, least = known @ slope + offset, error
    return best
