"""Information that discrete releases give about discrete confidential variables, in nats.

The plug-in estimate is biased upward by about (|A|-1)(|B|-1)/(2N). With it come the estimate with
that bias taken off, what shuffled labels reach, and a held-out value.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import special

from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.errors import InputError
from privpipe.numerics.finite import fill_codes
from privpipe.protocols import ArrayLike, Column, FloatArray, IntArray

if TYPE_CHECKING:
    import pandas as pd

_SMOOTHING = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_SHUFFLES = 5


@dataclass(frozen=True)
class Information:
    """Estimates for one pair of variables.

    Parameters
    ----------
    confidential, released
        What should stay unknown; the released attribute, or "joint" for all of them jointly.
    plug_in
        Information of the empirical table, nats; biased upward.
    corrected
        The plug-in less the Miller-Madow bias, nats.
    shuffled
        Mean plug-in with shuffled labels: what no information comes to.
    held_out, lower, upper, level
        Gain in log-likelihood on held-out records, nats, biased downward; its confidence limits.
    entropy
        Plug-in entropy of the confidential variable, nats: the most.
    n_symbols, n_classes
        Distinct released and confidential values.
    n_records
        Records counted.
    """

    confidential: str
    released: str
    plug_in: float
    corrected: float
    shuffled: float
    held_out: float
    lower: float
    upper: float
    level: float
    entropy: float
    n_symbols: int
    n_classes: int
    n_records: int


@dataclass(frozen=True)
class InformationReport:
    """Information per released attribute and jointly, for each confidential variable."""

    rows: tuple[Information, ...]

    @property
    def table(self) -> "pd.DataFrame":
        """One row per pair, columns as the fields of `Information`."""
        import pandas as pd  # slow to load

        return pd.DataFrame([asdict(row) for row in self.rows])

    def to_json(self) -> str:
        """The table as JSON rows, with the unit."""
        return json.dumps({"unit": "nats", "table": [asdict(row) for row in self.rows]}, indent=1)


def measure_information(
    codes: ArrayLike,
    classes: ArrayLike,
    *,
    attributes: Sequence[str] = (),
    columns: Sequence[Column] = (),
    options: AttackOptions = USUAL,
) -> InformationReport:
    """Measure what codes released give away, attribute by attribute and jointly.

    Parameters
    ----------
    codes : (n_records, n_attributes)
        Integer codes of the released attributes; -1, missing, counts as a value of its own,
        since an outsider sees it.
    classes : (n_records,) or (n_records, n_columns)
        Integer codes of confidential variables; records with -1 are left out for that variable.
    attributes, columns
        Names of the attributes, and of the variables, for the table.
    options
        Confidence of the held-out limits, and seed of shuffles and halves.

    Raises
    ------
    InputError
        If shapes differ, codes are not integers, or a variable has a single class.

    References
    ----------
    Miller 1955; Paninski 2003, Estimation of Entropy and Mutual Information.

    Examples
    --------
    >>> b = np.arange(1000) % 4
    >>> report = measure_information(b, b // 2)
    >>> round(report.rows[0].plug_in, 4), round(report.rows[0].held_out, 1)
    (0.6931, 0.7)
    """
    AttackOptions.check(options)
    released, confidential = _as_codes(codes, "codes"), _as_codes(classes, "classes")
    if len(released) != len(confidential) or len(released) < 4:
        problem = f"codes has {len(released)} records, classes {len(confidential)}."
        raise InputError(problem, remedy="Give at least 4 records, row by row.")
    b_names = _name(attributes, "attribute", released.shape[1])
    a_names = _name([one.name for one in columns], "confidential", confidential.shape[1])
    joint = np.unique(released, axis=0, return_inverse=True)[1].ravel()
    read = list(zip(b_names, released.T, strict=True))
    if len(read) > 1:
        read.append(("joint", joint))
    secret = zip(a_names, confidential.T, strict=True)
    return InformationReport(tuple(_measure_pair(*a, *b, options) for a in secret for b in read))


def measure_plug_in(a: IntArray, b: IntArray) -> float:
    """Mutual information of two columns of codes 0, 1, ..., in nats, as counted.

    >>> round(measure_plug_in(np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])), 12)
    0.0
    """
    pair, n = a * (int(b.max()) + 1) + b, len(a)
    return _entropy(a, n) + _entropy(b, n) - _entropy(np.unique(pair, return_inverse=True)[1], n)


def _entropy(codes: IntArray, n: int) -> float:
    counts = np.bincount(codes)
    p = counts[counts > 0] / n
    return float(-(p * np.log(p)).sum())


def _measure_pair(
    a_name: str, a_codes: IntArray, b_name: str, b_codes: IntArray, options: AttackOptions
) -> Information:
    known = a_codes >= 0
    a = np.unique(a_codes[known], return_inverse=True)[1]
    b = np.unique(b_codes[known], return_inverse=True)[1]
    n_classes = int(a.max(initial=-1)) + 1
    if n_classes < 2:
        raise InputError(
            f"The confidential variable {a_name!r} has {n_classes} classes in {len(a)} records.",
            remedy="Leave it out, or measure more records.",
            code="single_class",
        )
    n, n_symbols = len(a), int(b.max()) + 1
    # Miller and Madow count the cells that occur: empty ones of a sparse table add no bias.
    n_cells = len(np.unique(a * n_symbols + b))
    plug_in = measure_plug_in(a, b)
    random = np.random.default_rng(options.seed)
    gain = _gain_held_out(a, b, random)
    shuffled = [measure_plug_in(random.permutation(a), b) for _ in range(_SHUFFLES)]
    half = float(special.ndtri(0.5 + options.level / 2) * gain.std(ddof=1) / np.sqrt(n))
    return Information(
        confidential=a_name,
        released=b_name,
        plug_in=plug_in,
        corrected=plug_in - (n_cells - n_classes - n_symbols + 1) / (2 * n),
        shuffled=float(np.mean(shuffled)),
        held_out=float(gain.mean()),
        lower=float(gain.mean()) - half,
        upper=float(gain.mean()) + half,
        level=options.level,
        entropy=_entropy(a, n),
        n_symbols=n_symbols,
        n_classes=n_classes,
        n_records=n,
    )


def _gain_held_out(a: IntArray, b: IntArray, random: np.random.Generator) -> FloatArray:
    """log p(a|b) - log p(a) of each record, learned on the half it is not in."""
    # Each half judges what the other learned, so that the gain is biased downward and not up.
    half = random.permutation(len(a)) % 2 == 0
    gain = np.empty(len(a))
    for train in (half, ~half):
        gain[~train] = _gain(a[train], b[train], a[~train], b[~train])
    return gain


def _gain(a: IntArray, b: IntArray, a_new: IntArray, b_new: IntArray) -> FloatArray:
    n_classes, n_symbols = int(max(a.max(), a_new.max())) + 1, int(max(b.max(), b_new.max())) + 1
    # A class that training lacks would cost infinitely much.
    prior = (np.bincount(a, minlength=n_classes) + 0.5) / (len(a) + 0.5 * n_classes)
    sizes = np.bincount(b, minlength=n_symbols)
    cells, counts = np.unique(b * n_classes + a, return_counts=True)

    def count(a_of: IntArray, b_of: IntArray) -> IntArray:
        cell = b_of * n_classes + a_of
        at = np.minimum(np.searchsorted(cells, cell), len(cells) - 1)
        return np.where(cells[at] == cell, counts[at], 0)

    def log_ratio(a_of: IntArray, b_of: IntArray, less: int, strength: float) -> FloatArray:
        p = (count(a_of, b_of) - less + strength * prior[a_of]) / (sizes[b_of] - less + strength)
        return np.asarray(np.log(p) - np.log(prior[a_of]))

    # Each training record left out of its own counts: the smoothing that predicts it best.
    best = max(_SMOOTHING, key=lambda strength: float(log_ratio(a, b, 1, strength).mean()))
    return np.asarray(log_ratio(a_new, b_new, 0, best))


def _as_codes(values: ArrayLike, name: str) -> IntArray:
    table = np.asarray(fill_codes(values))
    table = table[:, None] if table.ndim == 1 else table
    if table.ndim != 2 or not (np.issubdtype(table.dtype, np.integer) or table.dtype == np.bool_):
        problem = f"{name} has shape {table.shape} and dtype {table.dtype}."
        raise InputError(problem, remedy="Give integer codes, one row per record.")
    return table.astype(np.int64)


def _name(names: Sequence[str], kind: str, width: int) -> list[str]:
    if len(names) not in (0, width):
        problem = f"{len(names)} names for {width} {kind} columns."
        raise InputError(problem, remedy="Name each column once.")
    return list(names) or [f"{kind}_{j}" for j in range(width)]
