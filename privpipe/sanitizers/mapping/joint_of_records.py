"""The joint distribution that a mapping is fitted on: frequent profiles, smoothed."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from privpipe.errors import InputError
from privpipe.numerics.mapping.problem.distortion import CodeDistance
from privpipe.protocols import FloatArray, IntArray
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.profiles import ProfileCounts, make_joint

SmoothingKind = Literal["none", "dirichlet", "hierarchical"]

PSEUDO_RECORDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0)
# Of the records, to judge by; the key is the same for all, since the split hides nothing.
_LEFT_ASIDE = 0.2
_KEY = 0x5A00


@dataclass(frozen=True)
class Smoothing:
    """A way to smooth.

    Parameters
    ----------
    kind
    pseudo_records
        Per profile; 0 for "none".
    likelihood
        Mean log-likelihood of private values left aside, nats per record; NaN where not measured.
    """

    kind: SmoothingKind
    pseudo_records: float
    likelihood: float = float("nan")


def smooth_table(table: FloatArray, codes: IntArray, smoothing: Smoothing) -> FloatArray:
    """Counts with the same number of records per profile and smoothed posteriors.

    Parameters
    ----------
    table : (n_private, n_symbols)
        Records of each private value and symbol.
    codes : (n_symbols, n_attributes)
    smoothing

    Returns
    -------
    table : (n_private, n_symbols)
    """
    if smoothing.kind == "none" or smoothing.pseudo_records == 0:
        return table
    size, records = smoothing.pseudo_records, table.sum(axis=0)
    expected = np.repeat(table.sum(axis=1, keepdims=True) / table.sum(), len(codes), axis=1)
    if smoothing.kind == "hierarchical":
        expected = _expect_from_neighbours(table, codes, expected, size)
    return np.asarray((table + size * expected) * (records / (records + size)))


def _expect_from_neighbours(
    table: FloatArray, codes: IntArray, prior: FloatArray, size: float
) -> FloatArray:
    """Posteriors of the profiles that agree in all attributes but one; (n_private, n_symbols)."""
    used = prior[:, 0] > 0
    total = np.zeros((int(used.sum()), len(codes)))
    for k in range(codes.shape[1]):
        _, group = np.unique(np.delete(codes, k, axis=1), axis=0, return_inverse=True)
        group = group.ravel()
        pooled = np.stack([np.bincount(group, row)[group] for row in table[used]])
        total += np.log((pooled + size * prior[used]) / (pooled.sum(axis=0) + size))
    found = np.zeros(table.shape)
    shares = np.exp(total / codes.shape[1])
    found[used] = shares / shares.sum(axis=0)
    return found


def choose_smoothing(
    table: FloatArray, codes: IntArray, kinds: tuple[SmoothingKind, ...], sizes: tuple[float, ...]
) -> Smoothing:
    """The smoothing under which counts left aside are the most likely; of equals the first.

    Parameters
    ----------
    table : (n_private, n_symbols)
        Whole numbers of records.
    codes : (n_symbols, n_attributes)
    kinds
        To choose among.
    sizes
        Pseudo-records to choose among.
    """
    rng = np.random.Generator(np.random.Philox(key=_KEY))
    aside = rng.binomial(np.rint(table).astype(np.int64), _LEFT_ASIDE)
    rest = table - aside
    known = rest.sum(axis=0) > 0
    ways = [
        Smoothing(kind, size) for kind in kinds for size in ((0.0,) if kind == "none" else sizes)
    ]
    # Nothing to choose by.
    if len(ways) == 1 or not known.any() or not aside[:, known].sum():
        return ways[-1] if ways[-1].kind != "none" else ways[0]
    found = [
        Smoothing(way.kind, way.pseudo_records, _score(rest, aside, codes, known, way))
        for way in ways
    ]
    return max(found, key=lambda one: one.likelihood)


def _score(
    rest: FloatArray, aside: IntArray, codes: IntArray, known: IntArray, way: Smoothing
) -> float:
    """Mean log-likelihood of the private values left aside, given profiles that were seen."""
    smooth = smooth_table(rest[:, known], codes[known], way)
    seen = aside[:, known]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(smooth / smooth.sum(axis=0))
        return float(np.where(seen > 0, seen * logs, 0.0).sum() / seen.sum())


_BLOCK_PAIRS = 2**22
# What "best" chooses among.
SMOOTHINGS: tuple[SmoothingKind, ...] = ("none", "dirichlet", "hierarchical")


def prepare_joint(
    counts: ProfileCounts, options: PrivacyMappingOptions, private: IntArray | None = None
) -> tuple[FloatArray, IntArray]:
    """Joint distribution and codes from counts: most frequent profiles, smoothing.

    Parameters
    ----------
    counts
    options
    private : (n_private, n_private_variables), optional
        The private values, in sorted order; those that occur when not given.

    Returns
    -------
    joint : (n_private, n_symbols)
        Sums to 1.
    codes : (n_symbols, n_attributes)

    Raises
    ------
    InputError
        If no record has a known private value.
    """
    if counts.n_records == 0:
        raise InputError(
            "no record has a known private value.",
            remedy="Name private variables that are known for some records.",
        )
    table, codes, _ = make_joint(counts, private)
    if options.most_frequent is not None and options.most_frequent < len(codes):
        table, codes = _keep_frequent(table, codes, options)
    kinds = SMOOTHINGS if options.smoothing == "best" else (options.smoothing,)
    table = smooth_table(table, codes, choose_smoothing(table, codes, kinds, PSEUDO_RECORDS))
    return table / table.sum(), codes


def _keep_frequent(
    table: FloatArray, codes: IntArray, options: PrivacyMappingOptions
) -> tuple[FloatArray, IntArray]:
    """The most frequent profiles, of equals the first; the rest joins the nearest, or goes."""
    ranked = np.argsort(-table.sum(axis=0), kind="stable")
    frequent, rest = np.sort(ranked[: options.most_frequent]), ranked[options.most_frequent :]
    few = table[:, frequent]
    if options.unseen == "nearest":
        distance = CodeDistance(
            options.distortion, codes[frequent].astype(np.float64), codes[rest].astype(np.float64)
        )
        step = max(1, _BLOCK_PAIRS // len(frequent))
        for a in range(0, len(rest), step):
            b = min(a + step, len(rest))
            nearest = distance.block(a, b).argmin(axis=1)
            for value, row in enumerate(table[:, rest[a:b]]):
                few[value] += np.bincount(nearest, row, len(frequent))
    return few, codes[frequent]
