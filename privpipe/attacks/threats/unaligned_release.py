"""A release of others, whose rows are not aligned with people: does it know who was in it?

Every attack is made on members (raw records that the release was made from) and, unchanged, on
controls (records of the same population that it was not made from). What succeeds as often on
controls is knowledge of the population; the excess on members is what the release reveals of
single people (Giomi et al. 2023, Anonymeter). Where a release depends on the population alone,
both are exchangeable, so that exact limits of two proportions hold whatever the law is.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching

from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.errors import InputError
from privpipe.protocols import AnyArray, BoolArray, FloatArray, IntArray

MOST_LEVELS = 50
"""Categories of a column that is compared; a text column of more is an identifier."""

N_NEAREST = 5
"""Released rows that are remembered of each known record."""

LEAST_KNOWN = 100
"""Members, and controls; with fewer no limit means anything."""

FALSE_LINKS = 0.01
"""Share of controls that a claim may name wrongly."""

TIE = 1e-9
"""Distance, in deviations, below which two rows are the same to rounding."""

NEAR_VALUE = 0.1
"""Deviations within which a number counts as read off; different categories are 1 apart."""

LEAST_NUMBERS = 0.95
"""Share of a column's values that are numbers, or intervals of numbers, where it is of numbers."""

NARROW = 1e-3
"""Distance per half-width of an interval: of two that hold a record the narrower is nearer."""

BLOCK = 1_024, 512
"""Known records and released rows whose distances are in memory at once: 2 MB, in a cache."""

ROUNDED = 1e-5
"""What a squared distance in float32 may be wrong by, of itself and of a deviation."""

Batches = Callable[[], Iterable[pd.DataFrame]]
"""Makes the release's batches anew; they are read twice."""


@dataclass(frozen=True)
class Excess:
    """How much more often an attack succeeds on members than on controls.

    Parameters
    ----------
    attack, column
        Which, and of which confidential column, if of any.
    members, controls
        Share of each on which it succeeds.
    lower, upper
        Limits of the difference; those of all attacks hold jointly.
    allowed
        What the difference may be.
    """

    attack: str
    column: str
    members: float
    controls: float
    lower: float
    upper: float
    allowed: float

    @property
    def verdict(self) -> str:
        """By the limits alone."""
        if self.lower > self.allowed:
            return "leaks"
        return "safe" if self.upper <= self.allowed else "unproven"


@dataclass(frozen=True)
class UnalignedReport:
    """What attacks find of single people in a release of others.

    Parameters
    ----------
    attacks
        All of them.
    n_members, n_controls, n_released
        Known records of each kind, and rows of the release.
    compared, identifiers
        Columns that both tables have; texts with too many values to be compared.
    unread
        Confidential columns that the release does not have: nothing was read off it.
    """

    attacks: tuple[Excess, ...]
    n_members: int
    n_controls: int
    n_released: int
    compared: tuple[str, ...]
    identifiers: tuple[str, ...]
    unread: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The worst of all attacks."""
        found = {one.verdict for one in self.attacks}
        return next(word for word in ("leaks", "unproven", "safe") if word in found)

    def to_json(self) -> str:
        """The report as JSON."""
        attacks = [asdict(one) | {"verdict": one.verdict} for one in self.attacks]
        return json.dumps(asdict(self) | {"verdict": self.verdict, "attacks": attacks}, indent=1)


def attack_unaligned(
    members: pd.DataFrame,
    controls: pd.DataFrame,
    released: Batches,
    *,
    confidential: Iterable[str],
    limits: tuple[float, float] = (0.01, 0.1),
    level: float = 0.95,
) -> UnalignedReport:
    """Attack a release without knowing which of its rows belongs to whom.

    Parameters
    ----------
    members, controls
        Known records, a row each; columns by name.
    released
        The release, in batches of rows; one batch is in memory at a time.
    confidential
        Columns whose value of a person must not be read off the release.
    limits
        Allowed excess of records claimed at 1 % false claims, and of any other success.
    level
        Confidence of all limits together.

    Raises
    ------
    InputError
        If there are fewer than 100 members or controls, or no common column.

    References
    ----------
    Giomi et al. 2023, Anonymeter (attacks on members less attacks on controls).
    """
    if min(len(members), len(controls)) < LEAST_KNOWN:
        raise InputError(
            f"{len(members)} members and {len(controls)} controls are known.",
            remedy=f"Give at least {LEAST_KNOWN} records of each.",
            code="known-too-few",
        )
    sample = next(iter(released()), None)
    if sample is None or not len(sample):
        raise InputError("The release has no row.", remedy="Give one with rows.", code="no-rows")
    shared = [str(name) for name in members if name in sample and name in controls]
    known = pd.concat([members[shared], controls[shared]], ignore_index=True)
    columns = {name: choose_column(known[name], sample[name]) for name in shared}
    compared = [name for name in shared if columns[name] is not None]
    if not compared:
        raise InputError(
            "The raw records and the release have no common column that can be compared.",
            remedy="Give both the same column names.",
            code="no-common-column",
        )
    read_off = [name for name in confidential if name in compared]
    # Whoever is looked up to read a confidential value off is found by the other columns.
    views = {"": compared} | {
        name: rest for name in read_off if (rest := [c for c in compared if c != name])
    }
    is_member = np.arange(len(known)) < len(members)
    identifiers = tuple(name for name in shared if columns[name] is None)
    found = _look_up(known, released, {n: c for n, c in columns.items() if c}, views, identifiers)
    events = [*_link(found.nearest[""], is_member), *_read(found, known, columns, read_off)]
    # Two exact intervals of each event; all of them hold jointly (Bonferroni).
    share = 1 - (1 - level) / (2 * len(events))
    attacks = tuple(_compare(*event, is_member, limits, share) for event in events)
    counts = int(is_member.sum()), int((~is_member).sum()), found.n_released
    unread = tuple(name for name in confidential if name not in read_off)
    return UnalignedReport(attacks, *counts, tuple(compared), identifiers, unread)


@dataclass(frozen=True)
class ComparedColumn:
    """How values of one column become coordinates, in both tables.

    Parameters
    ----------
    mean, scale
        Of the known records, where it is of numbers.
    stretch, offset
        Bring the release's numbers to the units of the known ones.
    levels
        Categories, where it is not.
    """

    mean: float = 0.0
    scale: float = 1.0
    stretch: float = 1.0
    offset: float = 0.0
    levels: tuple[str, ...] = ()

    def place(self, values: "pd.Series[Any]", *, released: bool = False) -> FloatArray:
        """Coordinates (n_rows, 1), or (n_rows, n_levels) of categories; what is missing is 0."""
        if self.levels:
            text = values.astype(str).to_numpy()
            # Two different categories are at distance 1.
            one_hot = np.stack([text == level for level in self.levels], axis=1)
            return np.asarray(one_hot / np.sqrt(2))
        x, _ = read_intervals(values)
        x = x * self.stretch + self.offset if released else x
        return np.asarray(np.nan_to_num((x - self.mean) / self.scale)[:, None])

    def place_width(self, values: "pd.Series[Any]") -> FloatArray:
        """Half-width of each coordinate of released values, which may be intervals."""
        if self.levels:
            return np.zeros((len(values), len(self.levels)))
        return np.asarray(read_intervals(values)[1] * self.stretch / self.scale)[:, None]


def choose_column(known: "pd.Series[Any]", released: "pd.Series[Any]") -> ComparedColumn | None:
    """How a column is compared; None where it is an identifier."""
    (x, _), (z, _) = read_intervals(known), read_intervals(released)
    if min(np.isfinite(x).mean(), np.isfinite(z).mean()) < LEAST_NUMBERS:
        levels = known.astype(str).value_counts().index
        return ComparedColumn(levels=tuple(levels)) if len(levels) <= MOST_LEVELS else None
    is_whole = pd.api.types.is_integer_dtype(known.dtype)
    if is_whole and known.nunique() == len(known):
        return None
    mean, scale = float(np.nanmean(x)), float(np.nanstd(x)) or 1.0
    center, width = float(np.nanmean(z)), float(np.nanstd(z)) or 1.0
    if abs(center - mean) < scale and 0.5 < width / scale < 2:
        return ComparedColumn(mean, scale)
    # Other units: the release is brought to the mean and deviation of the known.
    stretch = scale / width
    return ComparedColumn(mean, scale, stretch, mean - stretch * center)


_NUMBER = r"\d+(?:\.\d+)?"


def read_intervals(values: "pd.Series[Any]") -> tuple[FloatArray, FloatArray]:
    """Middle and half-width of each value; of a text such as "[30, 40)" or "30-39" its interval.

    >>> [end.tolist() for end in read_intervals(pd.Series(["[30, 40)", "25", "x"]))]
    [[35.0, 25.0, nan], [5.0, 0.0, 0.0]]
    """
    x = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if np.isfinite(x).all() or pd.api.types.is_numeric_dtype(values.dtype):
        return x, np.zeros(len(x))
    pairs = [list(map(float, two)) for two in values.astype(str).str.findall(_NUMBER)]
    ends = np.array([(min(p), max(p)) if 0 < len(p) < 3 else (np.nan, np.nan) for p in pairs])
    middle, half = ends.mean(axis=1), np.nan_to_num((ends[:, 1] - ends[:, 0]) / 2)
    is_plain = np.isfinite(x)
    return np.where(is_plain, x, middle), np.where(is_plain, 0.0, half)


Columns = Mapping[str, ComparedColumn]


@dataclass
class _Nearest:
    """The nearest released rows of every known record, in one view."""

    distance: FloatArray
    row: IntArray
    value: AnyArray | None = None


@dataclass
class _Found:
    nearest: dict[str, _Nearest]
    same: dict[str, BoolArray]
    n_released: int = 0


def _look_up(
    known: pd.DataFrame,
    released: Batches,
    columns: Columns,
    views: Mapping[str, Sequence[str]],
    identifiers: Sequence[str],
) -> _Found:
    """One pass over the release: what is nearest in each view, and which identifiers recur."""
    n = len(known)
    start = np.full((n, N_NEAREST), np.inf), np.full((n, N_NEAREST), -1)
    probes = {view: _place(known, columns, names) for view, names in views.items()}
    found = _Found(
        {view: _Nearest(*(a.copy() for a in start)) for view in views},
        {name: np.zeros(n, bool) for name in identifiers},
    )
    for batch in released():
        for name in identifiers:
            found.same[name] |= known[name].isin(batch[name]).to_numpy()
        for view, names in views.items():
            gallery = _place_released(batch, columns, names)
            values = batch[view].to_numpy() if view else None
            best, order = found.nearest[view], _sort_alike(gallery[0])
            for first in range(0, len(batch), BLOCK[1]):
                rows = order[first : first + BLOCK[1]]
                mine = None if values is None else values[rows]
                near = _find_near(best, probes[view], gallery[:, rows])
                for low in range(0, len(near), BLOCK[0]):
                    these = near[low : low + BLOCK[0]]
                    at = found.n_released + rows
                    _merge(best, these, probes[view], gallery[:, rows], at, mine)
        found.n_released += len(batch)
    return found


def _place(table: pd.DataFrame, columns: Columns, names: Sequence[str]) -> FloatArray:
    return np.concatenate([columns[name].place(table[name]) for name in names], axis=1)


def _place_released(table: pd.DataFrame, columns: Columns, names: Sequence[str]) -> FloatArray:
    """Middles and half-widths of all coordinates, (2, n_rows, n_coordinates)."""
    middles = [columns[name].place(table[name], released=True) for name in names]
    widths = [columns[name].place_width(table[name]) for name in names]
    return np.stack([np.concatenate(middles, axis=1), np.concatenate(widths, axis=1)])


def _sort_alike(x: FloatArray) -> IntArray:
    """An order in which rows that are alike are neighbours: first by what has few values."""
    few = np.argsort([len(np.unique(column)) for column in x.T], kind="stable")
    return np.lexsort(x.T[few[::-1]])


def _find_near(best: _Nearest, probes: FloatArray, gallery: FloatArray) -> IntArray:
    """Known records to which a row of this block may be nearer than those that are remembered.

    Of the others the box that holds all the rows is farther away: where columns are of categories
    that is most of them.
    """
    middle, half = gallery
    low, high = (middle - half).min(axis=0), (middle + half).max(axis=0)
    apart = np.linalg.norm(np.maximum(np.maximum(probes - high, low - probes), 0), axis=1)
    return np.flatnonzero(apart <= best.distance[:, -1])


def _merge(
    best: _Nearest,
    these: IntArray,
    probes: FloatArray,
    gallery: FloatArray,
    places: IntArray,
    values: AnyArray | None,
) -> None:
    """Take the rows of a block that are nearer than what is known; distances in float64."""
    # After some blocks hardly any record has a nearer row: the others are left as they are.
    farthest, norms = best.distance[these, -1], np.einsum("ij,ij->i", probes[these], probes[these])
    limit = farthest**2 * (1 + ROUNDED) + ROUNDED * (1 + norms)
    is_known = np.isfinite(farthest)
    squares = _square(probes[these], norms - np.where(is_known, limit, 0), gallery)
    mine = np.flatnonzero(~is_known | (squares.min(axis=1) <= 0))
    if not len(mine):
        return
    hot, k = these[mine], min(N_NEAREST, gallery.shape[1])
    near = np.argpartition(squares[mine], k - 1, axis=1)[:, :k]
    # Expanded squares lose the digits in which a copy differs from a neighbour.
    apart = np.abs(probes[hot][:, None, :] - gallery[0][near]) - gallery[1][near]
    exact = np.linalg.norm(np.maximum(apart, 0), axis=2)
    exact += NARROW * gallery[1][near].sum(axis=2)
    distance = np.concatenate([best.distance[hot], exact], axis=1)
    order = np.argsort(distance, axis=1, kind="stable")[:, :N_NEAREST]
    best.distance[hot] = np.take_along_axis(distance, order, axis=1)
    rows = np.concatenate([best.row[hot], places[near]], axis=1)
    best.row[hot] = np.take_along_axis(rows, order, axis=1)
    if values is not None:
        if best.value is None:
            best.value = np.full((len(probes), N_NEAREST), None, object)
        both = np.concatenate([best.value[hot], values[near].astype(object)], axis=1)
        best.value[hot] = np.take_along_axis(both, order, axis=1)


def _square(probes: FloatArray, norms: FloatArray, gallery: FloatArray) -> AnyArray:
    """Squared distances of all pairs in float32, on what is said of the probes' squared norms."""
    p, n, g, w = (a.astype(np.float32) for a in (probes, norms, *gallery))
    wide = w.any(axis=0)
    # In one product: a pass over all pairs costs as much. Of intervals the narrowest is nearest.
    exact, n = p[:, ~wide], n - np.einsum("ij,ij->i", p[:, wide], p[:, wide])
    sizes = np.einsum("ij,ij->i", g[:, ~wide], g[:, ~wide]) + (NARROW * w.sum(axis=1)) ** 2
    left = np.column_stack([exact, n, np.ones_like(n)])
    squares = left @ np.column_stack([-2 * g[:, ~wide], np.ones_like(sizes), sizes]).T
    # An interval is at no distance from what lies in it.
    for mine, their, width in zip(p.T[wide], g.T[wide], w.T[wide], strict=True):
        squares += np.maximum(np.abs(mine[:, None] - their) - width, 0) ** 2
    return np.asarray(squares)


Event = tuple[str, str, BoolArray, BoolArray, int]
"""Attack, column, successes, records that count, and which of the two limits holds."""


def _link(nearest: _Nearest, is_member: BoolArray) -> Iterator[Event]:
    """Claims that a record is in it: by distance, by how it is set apart, by assignment."""
    distance = nearest.distance
    outstanding = (distance[:, 0] + TIE) / (distance[:, 1] + TIE)
    found = {"nearest": distance[:, 0], "standing out": outstanding, "assignment": _assign(nearest)}
    # Thresholds are chosen on every other record and judged by the rest.
    judges = np.arange(len(is_member)) % 2 == 1
    for name, score in found.items():
        theirs = np.sort(score[~is_member & ~judges])
        few = theirs[max(int(FALSE_LINKS * len(theirs)) - 1, 0)]
        yield f"linkage: {name}", "", score < few, judges, 0
        best = find_threshold(score[is_member & ~judges], theirs)
        yield f"membership: {name}", "", score <= best, judges, 1


def _assign(nearest: _Nearest) -> FloatArray:
    """Distance to the released row that a record is given when each row is given to one alone."""
    n, k = nearest.distance.shape
    names, row = np.unique(nearest.row, return_inverse=True)
    # No row is better than one that is farther than all that are known.
    none = nearest.distance[np.isfinite(nearest.distance)].max() + 1.0
    cost = np.where(np.isfinite(nearest.distance), nearest.distance, none) + TIE
    at = np.repeat(np.arange(n), k), row.reshape(-1)
    single = np.arange(n), len(names) + np.arange(n)
    values = np.concatenate([cost.ravel(), np.full(n, 2 * none)])
    places = tuple(np.concatenate(pair) for pair in zip(at, single, strict=True))
    table = csr_array((values, places), shape=(n, len(names) + n))
    table.sum_duplicates()
    mine, given = min_weight_full_bipartite_matching(table)
    found = np.empty(n)
    found[mine] = table[mine, given]
    return found


def _read(
    found: _Found,
    known: pd.DataFrame,
    columns: Mapping[str, ComparedColumn | None],
    read_off: Sequence[str],
) -> Iterator[Event]:
    """Confidential values read off the nearest row, and identifiers that recur."""
    everyone = np.ones(len(known), bool)
    for name in read_off:
        column, nearest = columns[name], found.nearest.get(name)
        if column is None or nearest is None or nearest.value is None:
            continue
        said = pd.Series(nearest.value[:, 0])
        apart = column.place(said, released=True) - column.place(known[name])
        yield "inference", name, np.linalg.norm(apart, axis=1) < NEAR_VALUE, everyone, 1
    for name, same in found.same.items():
        yield "identifier", name, same, everyone, 0


def find_threshold(members: FloatArray, controls: FloatArray) -> float:
    """Where the shares at or below differ most."""
    at = np.unique(np.concatenate([members, controls]))
    shares = [np.searchsorted(np.sort(v), at, side="right") / len(v) for v in (members, controls)]
    return float(at[np.argmax(shares[0] - shares[1])])


def _compare(
    attack: str,
    column: str,
    hits: BoolArray,
    counts: BoolArray,
    limit: int,
    is_member: BoolArray,
    limits: tuple[float, float],
    level: float,
) -> Excess:
    sides = [hits[counts & side] for side in (is_member, ~is_member)]
    mine, theirs = (measure_exact_interval(int(s.sum()), len(s), level=level) for s in sides)
    shares = mine.estimate, theirs.estimate
    apart = mine.lower - theirs.upper, mine.upper - theirs.lower
    return Excess(attack, column, *shares, *apart, limits[limit])


def measure_retained_target(
    members: pd.DataFrame, released: pd.DataFrame, controls: pd.DataFrame, target: str
) -> dict[str, float | str]:
    """How well a target is predicted for controls, by boosting trained on raw or released rows.

    Returns
    -------
    scores
        ``target``; ``raw`` and ``released``: accuracy of classes, R squared of numbers; NaN where
        the release lacks the target or has no other common column.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    shared = [name for name in members if name in released and name in controls]
    columns = {name: choose_column(members[name], released[name]) for name in shared}
    known: Columns = {str(name): one for name, one in columns.items() if one is not None}
    names = [name for name in known if name != target]
    scores: dict[str, float | str] = {"target": target, "raw": np.nan, "released": np.nan}
    if target not in known or not names:
        return scores
    is_number = not known[target].levels and members[target].nunique() > MOST_LEVELS
    model = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    tables = (
        ("raw", members, _place(members, known, names)),
        ("released", released, _place_released(released, known, names)[0]),
    )
    for view, table, x in tables:
        truth = table[target] if is_number else table[target].astype(str)
        fitted = model(random_state=0).fit(x, truth)
        judged = controls[target] if is_number else controls[target].astype(str)
        scores[view] = round(float(fitted.score(_place(controls, known, names), judged)), 4)
    return scores
