"""Columns of numbers as categories: bins of about as many records each, and what binning loses.

Edges are quantiles of a part of the records, chosen by their number alone, and are rounded: they
become names of categories, which a release publishes, and no record's value need stand there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from privpipe.errors import InputError, OptionError
from privpipe.protocols import FloatArray, IntArray
from privpipe.store.sources.reading.source import Block, Coded, RecordSource, SourceVariable

MOST_CHOSEN = 2**18
"""Records that edges are chosen by, at most; every 2nd, 4th, ... where there are more."""

MOST_BINS = 1000
MOST_VALUES = 64
"""A variable of more values is not looked at for what binning hides."""

_FINE = 256
_DIGITS = 3
"""Of an edge, counted from the first of the range of the values."""
_MOST_DIGITS = 12


@dataclass(frozen=True)
class BinningLoss:
    """What is lost of a variable when only its bin is known.

    Parameters
    ----------
    n_bins
    n_chosen
        Records that chose the edges and that these numbers are means over.
    distance
        Mean distance of a value from the median of its bin, in the variable's unit.
    share
        Mean squared distance from the mean of its bin, over the variance; 0 to 1.
    hidden
        By other variable of few values: information about it, in nats, that the value has and its
        bin has not. Value means up to 256 finer bins; less the bias of counts, not below 0.
    """

    n_bins: int
    n_chosen: int
    distance: float
    share: float
    hidden: Mapping[str, float] = field(default_factory=dict)


def parse_bins(given: Sequence[str]) -> dict[str, int | tuple[float, ...]]:
    """Numbers of bins, or edges, by column.

    Examples
    --------
    >>> parse_bins(("age=8", "hours=20:40"))
    {'age': 8, 'hours': (20.0, 40.0)}
    """
    found: dict[str, int | tuple[float, ...]] = {}
    for one in given:
        name, mark, what = one.rpartition("=")
        try:
            wanted = tuple(map(float, what.split(":"))) if ":" in what else int(what)
        except ValueError:
            mark = ""
        if not mark or not name or name in found:
            raise OptionError(
                f"The bins {one!r} are not understood.",
                remedy="Name each column once: age=8 for 8 bins, or age=25:40:60 for edges.",
                code="bins",
            )
        _check_wanted(name, wanted)
        found[name] = wanted
    return found


def _check_wanted(name: str, wanted: int | tuple[float, ...]) -> None:
    if isinstance(wanted, int):
        right = 2 <= wanted <= MOST_BINS
    else:
        edges = np.array(wanted)
        right = bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all())
        right = right and len(edges) < MOST_BINS
    if not right:
        raise OptionError(
            f"The bins of {name!r} are {wanted}.",
            remedy=f"Use 2 to {MOST_BINS:,} bins, or finite ascending edges.",
            code="bins",
        )


def choose_edges(values: FloatArray, n_bins: int) -> FloatArray:
    """Rounded quantiles that cut values into at most `n_bins` bins, ascending, each once.

    Parameters
    ----------
    values : (n_records,)
        Finite.
    n_bins

    Returns
    -------
    edges : (n_edges,)
        A value on an edge belongs to the bin above. Fewer than ``n_bins - 1`` where values repeat;
        every bin has a record.

    Examples
    --------
    >>> choose_edges(np.arange(100.0), 4)
    array([25., 50., 75.])
    """
    if not len(values):
        return np.empty(0)
    found = np.quantile(values, np.arange(1, n_bins) / n_bins, method="higher")
    spread = float(values.max() - values.min())
    digits = _DIGITS - 1 - int(np.floor(np.log10(spread))) if spread > 0 else _MOST_DIGITS
    if abs(digits) < _MOST_DIGITS:
        found = np.array([round(float(edge), digits) for edge in found]) + 0.0
    edges = np.unique(found)
    place = np.searchsorted(edges, values, side="right")
    filled = np.bincount(place, minlength=len(edges) + 1) > 0
    return np.asarray(edges[filled[:-1] & (np.cumsum(filled[::-1])[::-1][1:] > 0)])


def measure_loss(
    values: FloatArray, edges: FloatArray, others: Mapping[str, IntArray]
) -> BinningLoss:
    """What only knowing bins loses.

    Parameters
    ----------
    values : (n_records,)
        NaN where missing; those are left out.
    edges : (n_edges,)
    others
        Codes of other variables, each (n_records,), -1 where missing.
    """
    known = np.isfinite(values)
    x, place = values[known], np.searchsorted(edges, values[known], side="right")
    if not len(x):
        return BinningLoss(len(edges) + 1, 0, 0.0, 0.0)
    order = np.argsort(place, kind="stable")
    groups = np.split(x[order], np.cumsum(np.bincount(place, minlength=len(edges) + 1))[:-1])
    away = sum(float(np.abs(group - np.median(group)).sum()) for group in groups if len(group))
    squares = sum(float(((group - group.mean()) ** 2).sum()) for group in groups if len(group))
    total = float(((x - x.mean()) ** 2).sum())
    fine = np.unique(np.concatenate([edges, choose_edges(x, _FINE)]))
    finer = np.searchsorted(fine, x, side="right")
    hidden = {
        name: max(0.0, _inform(finer, codes[known]) - _inform(place, codes[known]))
        for name, codes in others.items()
    }
    return BinningLoss(
        len(edges) + 1, len(x), away / len(x), squares / total if total > 0 else 0.0, hidden
    )


def _inform(symbols: IntArray, codes: IntArray) -> float:
    """Mutual information of two codes, nats, less the first term of its bias (Miller 1955)."""
    known = codes >= 0
    if not known.any():
        return 0.0
    _, a = np.unique(symbols[known], return_inverse=True)
    _, b = np.unique(codes[known], return_inverse=True)
    table = np.zeros((a.max() + 1, b.max() + 1))
    np.add.at(table, (a, b), 1.0)
    n = table.sum()
    product = table.sum(axis=1, keepdims=True) * table.sum(axis=0)
    used = table > 0
    told = float((table[used] * np.log(table[used] * n / product[used])).sum() / n)
    return float(told - (table.shape[0] - 1) * (table.shape[1] - 1) / (2 * n))


class BinnedSource:
    """A source in which some variables of numbers are categories: their bins.

    Parameters
    ----------
    source
        The source; it is read once where bins must be chosen or losses measured.
    bins
        By variable: how many bins, or their edges.

    Attributes
    ----------
    losses
        By variable.

    Raises
    ------
    OptionError
        If a column is no variable of numbers of the source.
    InputError
        If a variable has a single value, or none.
    """

    def __init__(self, source: RecordSource, bins: Mapping[str, int | tuple[float, ...]]) -> None:
        self._source = source
        kinds = {variable.name: variable.kind for variable in source.variables}
        for name in bins:
            if kinds.get(name) not in ("number", "integer"):
                raise OptionError(
                    f"--bins names {name!r}, which is no column of numbers.",
                    remedy="Name columns of numbers of a table; texts are categories as they are.",
                    code="bins",
                )
        chosen = _choose_records(source, list(bins))
        self._edges = {name: _find_edges(name, chosen, wanted) for name, wanted in bins.items()}
        others = _code_others(chosen, set(bins))
        self.losses = {
            name: measure_loss(np.asarray(chosen[name], dtype=np.float64), edges, others)
            for name, edges in self._edges.items()
        }

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self._source.feature_names

    @property
    def n_features(self) -> int:
        return self._source.n_features

    @property
    def features_dtype(self) -> np.dtype[np.floating]:
        return self._source.features_dtype

    @property
    def variables(self) -> tuple[SourceVariable, ...]:
        return tuple(
            SourceVariable(v.name, "text") if v.name in self._edges else v
            for v in self._source.variables
        )

    @property
    def partitions(self) -> tuple[str, ...]:
        return self._source.partitions

    def blocks(self, rows: int, *, with_features: bool = True) -> Iterator[Block]:
        """Read consecutive blocks; see `RecordSource`."""
        for block in self._source.blocks(rows, with_features=with_features):
            made = {
                name: Coded(_place(block.variables[name], edges), name_bins(edges))
                for name, edges in self._edges.items()
            }
            yield replace(block, variables={**block.variables, **made})


def name_bins(edges: FloatArray) -> tuple[str, ...]:
    """Names of bins, whose order is that of the numbers.

    >>> name_bins(np.array([25.0, 40.5]))
    ('0: below 25', '1: 25 to below 40.5', '2: from 40.5')
    """
    texts = [f"{edge:.15g}" for edge in edges]
    if not texts:
        return ("0: any",)
    inner = [f"{low} to below {high}" for low, high in pairwise(texts)]
    names = [f"below {texts[0]}", *inner, f"from {texts[-1]}"]
    width = len(str(len(names) - 1))
    return tuple(f"{k:0{width}d}: {name}" for k, name in enumerate(names))


def _place(values: npt.NDArray[np.generic] | Coded, edges: FloatArray) -> IntArray:
    assert not isinstance(values, Coded)  # the columns are asked for as numbers
    numbers = values.astype(np.float64)
    return np.where(np.isnan(numbers), -1, np.searchsorted(edges, numbers, side="right"))


def _find_edges(
    name: str, chosen: Mapping[str, npt.NDArray[np.generic]], wanted: int | tuple[float, ...]
) -> FloatArray:
    if not isinstance(wanted, int):
        return np.array(wanted)
    values = chosen[name].astype(np.float64)
    edges = choose_edges(values[np.isfinite(values)], wanted)
    if not len(edges):
        raise InputError(
            f"{name!r} has a single value, or none: there is nothing to cut.",
            remedy="Leave it out of --bins.",
            code="bins",
        )
    return edges


def _choose_records(
    source: RecordSource, columns: Sequence[str]
) -> dict[str, npt.NDArray[np.generic]]:
    """Variables of every 2**k-th record, by its number; k as small as `MOST_CHOSEN` allows."""
    parts: list[dict[str, npt.NDArray[np.generic]]] = []
    every, at, kept = 1, 0, 0
    for block in source.blocks(2**16, with_features=False):
        first = -at % every
        parts.append({k: _flat(v)[first::every] for k, v in block.variables.items()})
        at += block.n_records
        kept += len(next(iter(parts[-1].values())))
        while kept > MOST_CHOSEN:
            joined = _join(parts)
            parts, every = [{k: v[::2] for k, v in joined.items()}], 2 * every
            kept = len(next(iter(parts[0].values())))
    return _join(parts) if parts else {name: np.empty(0) for name in columns}


def _flat(values: npt.NDArray[np.generic] | Coded) -> npt.NDArray[np.generic]:
    if not isinstance(values, Coded):
        return values
    return np.array([*values.names, ""], dtype=object)[values.codes]  # -1 is the last: missing


def _join(
    parts: Sequence[Mapping[str, npt.NDArray[np.generic]]],
) -> dict[str, npt.NDArray[np.generic]]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _code_others(
    chosen: Mapping[str, npt.NDArray[np.generic]], binned: set[str]
) -> dict[str, IntArray]:
    """Codes of the variables of few values; -1 where missing."""
    found = {}
    for name, values in chosen.items():
        if name in binned or not len(values):
            continue
        texts = values.astype(str)
        names, codes = np.unique(texts, return_inverse=True)
        if len(names) <= MOST_VALUES:
            missing = np.isin(names, ("", "nan"))
            found[name] = np.where(missing[codes], -1, codes)
    return found
