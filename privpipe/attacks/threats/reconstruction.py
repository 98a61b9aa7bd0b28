"""Reconstruction: how much of the raw records can be predicted from the released ones?"""

import json
from dataclasses import asdict, dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries import ridges
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.coordinates import measure_coordinates
from privpipe.attacks.statistics.intervals import Confidence, Interval, measure_bootstrap_interval
from privpipe.attacks.statistics.splits import RecordSplit, draw_split
from privpipe.attacks.threats.linkage import draw_pairs
from privpipe.errors import InputError
from privpipe.protocols import FloatArray, IntArray


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
    raw: npt.ArrayLike,
    released: npt.ArrayLike,
    groups: npt.ArrayLike | None = None,
    *,
    options: AttackOptions | None = None,
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
    options = options or AttackOptions()
    x, z, order = draw_pairs(raw, released, options)
    rows, seed = np.sort(order), options.seed
    subject = (
        None if groups is None else np.unique(np.asarray(groups)[rows], return_inverse=True)[1]
    )
    # All columns, and not their coordinates: a column that others determine is rebuilt, too.
    target = _standardise(x[rows])
    source = measure_coordinates(z[rows], name="released", seed=seed).values
    split = draw_split(np.arange(len(rows)), groups=subject, seed=seed)
    return ReconstructionReport(
        attacks=tuple(
            _judge(name, residual, target, split, subject, options.plan_level(2), seed)
            for name, residual in (
                ("least_squares", _rebuild([source], target, split)),
                ("rbf", _rebuild(_lift(source, split, seed), target, split)),
            )
        ),
        n_train=len(split.train),
        n_test=len(split.test),
    )


def _standardise(raw: FloatArray) -> FloatArray:
    """Columns that vary, of mean 0 and variance 1; all of them, whatever their rank."""
    varies = raw.min(axis=0) != raw.max(axis=0)
    table = raw[:, varies].astype(np.float64)
    if not np.isfinite(table).all() or table.shape[1] == 0:
        raise InputError(
            f"raw has {int(varies.sum())} columns that vary, or values that are not finite.",
            remedy="Give finite records with at least one column that varies.",
        )
    # Every raw column counts alike in the R squared, whatever its unit.
    table -= table.mean(axis=0)
    return np.asarray(table / table.std(axis=0))


def _lift(source: FloatArray, split: RecordSplit, seed: int) -> list[FloatArray]:
    """Kernel features of several widths, with the columns themselves."""
    width = ridges.measure_width(source[split.train], seed)
    n_landmarks = min(ridges.LANDMARKS, len(split.train))
    random = np.random.default_rng(seed)
    landmarks = source[random.choice(split.train, n_landmarks, replace=False)]
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
    seed: int,
) -> Reconstruction:
    spread = (target[split.test] - target[split.train].mean(axis=0)) ** 2
    lost, had = (residual**2).sum(axis=1), spread.sum(axis=1)
    # A ratio of sums over records: neither Wilson nor a t interval is of it.
    r2 = measure_bootstrap_interval(
        lambda weights: 1 - (weights @ lost) / (weights @ had),
        len(lost),
        Confidence(level, groups=None if subject is None else subject[split.test], seed=seed),
        link="log_complement",
    )
    total = np.maximum(spread.sum(axis=0), np.finfo(float).tiny)
    column_r2 = 1 - (residual**2).sum(axis=0) / total
    return Reconstruction(adversary, r2, tuple(column_r2.tolist()))
