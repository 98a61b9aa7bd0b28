"""A release of others, whose rows are not aligned with people: does it know who was in it?

Every attack is made on members and, unchanged, on controls. Members are raw records that the
release was made from. Controls are records of the same population that it was not made from. What
succeeds as often on controls is knowledge of the population. The excess on members is what the
release reveals of single people (Giomi et al. 2023, Anonymeter). Where a release depends on the
population alone, both are exchangeable, so that exact limits of two proportions hold whatever the
law is. Where several rows are of one person, people are counted: each by the row that is nearest to
the release.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import itemgetter

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from threadpoolctl import threadpool_limits

from privpipe.attacks.statistics.compared_columns import (
    MOST_LEVELS,
    Column,
    ComparedColumn,
    choose_column,
    holds_values,
    read_law,
    read_text,
)
from privpipe.attacks.statistics.copied_columns import find_copied, find_images, find_renamed
from privpipe.attacks.statistics.intervals import measure_exact_interval
from privpipe.attacks.threats.membership import find_threshold
from privpipe.errors import InputError
from privpipe.protocols import AnyArray, BoolArray, FloatArray, IntArray

N_NEAREST = 5
"""Released rows that are remembered of each known record."""

MOST_SAMPLED = 30_000
"""Released rows by which it is chosen how columns are compared."""

LEAST_KNOWN = 100
"""Members, and controls; with fewer no limit means anything."""

FALSE_LINKS = 0.01
"""Share of controls that a claim may name wrongly."""

TIE = 1e-9
"""Distance, in deviations, below which two rows are the same to rounding."""

NEAR_VALUE = 0.1
"""Deviations within which a number counts as read off; different categories are 1 apart."""

NARROW = 1e-3
"""Distance per half-width of an interval: of two that hold a record the narrower is nearer."""

BLOCK = 1_024, 512
"""Known records and released rows whose distances are in memory at once: 2 MB, in a cache."""

GATHERED = 2**20
"""Coordinates of released rows, 16 MB with widths, that are searched at once: many are faster."""

ROUNDED = 1e-5
"""What a squared distance in float32 may be wrong by, of itself and of a deviation."""

OVERLAP = 0.05
"""Share of controls that may be members, beyond what is equal by chance: they hide a leak."""

DENSE = 0.5
"""Share of a range that keys fill, or of controls' keys that members have, in mere numberings."""

Rows = pd.DataFrame

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
    noticed
        What it may be shown to be: of few released rows only few members can be found.
    """

    attack: str
    column: str
    members: float
    controls: float
    lower: float
    upper: float
    allowed: float
    noticed: float

    @property
    def verdict(self) -> str:
        """By the limits alone."""
        if self.lower > self.noticed:
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
        Known records of each kind, or people where a subject is given, and rows of the release.
    compared, identifiers
        Columns that both tables have; texts with too many values to be compared.
    unread
        Confidential columns that the release does not have: nothing was read off it.
    undecided
        Keys that recur and may be row numbers: by themselves they do not show which.
    uncompared
        Columns of the release that no raw one corresponds to, or whose texts hold values of other
        columns: what they hold was not looked at.
    recurring
        Columns that recur as identifiers of people do, where rows are taken as independent.
    subject
        Column of whose rows are; empty where they are taken as independent.
    """

    attacks: tuple[Excess, ...]
    n_members: int
    n_controls: int
    n_released: int
    compared: tuple[str, ...]
    identifiers: tuple[str, ...]
    unread: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()
    recurring: tuple[str, ...] = ()
    subject: str = field(default="", kw_only=True)

    @property
    def verdict(self) -> str:
        """The worst of all attacks; not safe where columns were not judged, or of a few rows."""
        found = {one.verdict for one in self.attacks}
        if self.undecided or self.uncompared or self.n_released < LEAST_KNOWN:
            found.add("unproven")
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
    subject: str = "",
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
    subject
        Column of members and controls that says whose each row is; without one each is another's.
    limits
        Allowed excess of records claimed at 1 % false claims, and of any other success.
    level
        Confidence of all limits together.

    Raises
    ------
    InputError
        If there are fewer than 100 members or controls (people, where there is a subject), or no
        common column; if controls are members.

    References
    ----------
    Giomi et al. 2023, Anonymeter (attacks on members less attacks on controls).
    """
    n_known = [t[subject].nunique() if subject else len(t) for t in (members, controls)]
    if min(n_known) < LEAST_KNOWN:
        problem = f"{n_known[0]} members and {n_known[1]} controls are known."
        raise InputError(problem, remedy=f"Give {LEAST_KNOWN} of each.", code="known-too-few")
    # Of all rows: the first ones of a sorted release look like other units.
    sample = draw_rows(released(), MOST_SAMPLED)
    if not len(sample):
        raise InputError("The release has no row.", remedy="Give one with rows.", code="no-rows")
    confidential, common = tuple(confidential), [str(n) for n in members if n in controls]
    _check_apart(members[common].astype(str), controls[common].astype(str), subject)
    known, is_member, who = _join(members[common], controls[common], subject)
    half = who % 2 == 0  # all rows of a person are in one
    renamed = find_renamed(*({str(n): read_law(t[n]) for n in t} for t in (known, sample)))
    images = find_images(known, sample)
    images |= {name: (old, itemgetter(new)) for name, (old, new) in renamed.items()}
    known = known.assign(**{name: known[old] for name, (old, _) in images.items()})

    def rename(batch: pd.DataFrame) -> pd.DataFrame:
        return batch.assign(**{name: read(batch) for name, (_, read) in images.items()})

    n_released, sample = sample.attrs["n_rows"], rename(sample)
    shared = [str(name) for name in known if name in sample]
    keys = [name for name in shared if name not in confidential]
    numberings = [n for n in keys if _is_numbering(n, known, sample, is_member, n == subject)]
    undecided = [n for n in numberings if read_text(sample[n]).isin(read_text(known[n])).any()]
    for name in numberings:
        known[name] = _renumber(known[name], is_member)
    columns = {n: choose_column(known[n], sample[n], n in confidential) for n in shared}
    identifiers = [n for n in shared if columns[n].is_text or n in numberings]
    compared = [name for name in shared if name not in (*identifiers, *images)]
    if not compared:
        problem = "The raw records and the release have no common column that can be compared."
        raise InputError(problem, remedy="Give both the same names.", code="no-common-column")
    read_off = [name for name in confidential if name in compared and len(compared) > 1]
    # Whoever is looked up to read a confidential value off is found by the other columns.
    views = {"": compared} | {n: [c for c in compared if c != n] for n in read_off}
    axes = [
        {name: one.place(table[name], released=table is sample)[0] for name, one in columns.items()}
        for table in (known[half], sample)
    ]
    few = [[n] for n in shared if columns[n].is_text]
    few += [find_copied(axes[0], axes[1], is_member[half])]
    views |= {f"by {', '.join(names)}": names for names in few}
    columns = {n: one for n, one in columns.items() if any(n in names for names in views.values())}
    # Of products this small the threads wait for each other longer than they compute.
    with threadpool_limits(1, user_api="blas"):
        found = _look_up(known, lambda: map(rename, released()), columns, views)
    is_in = pd.Series(is_member).groupby(who).first().to_numpy()
    by_distance = (_link(found[view], is_in, view, who) for view in found if view not in columns)
    events = [*_read(found, known, columns, who), *chain.from_iterable(by_distance)]
    # Two exact intervals of each event; all of them hold jointly (Bonferroni).
    share, part = 1 - (1 - level) / (2 * len(events)), min(1.0, n_released / n_known[0])
    attacks = tuple(_compare(event, is_in, limits, share, part) for event in events)
    unread = [name for name in confidential if name not in compared]
    matched = {*shared, *(new for _, new in renamed.values())}
    uncompared = [str(name) for name in sample if name not in matched]
    pairs = [*renamed.values(), *((n, n) for n in common if n in sample)]
    said = known[common].apply(read_text).fillna("")
    uncompared += [b for a, b in pairs if holds_values(sample[b], said, a)]
    recurring = [n for n in common if not subject and _recurs(members[n], controls[n])]
    names = map(tuple, (compared, identifiers, unread, undecided, uncompared, recurring))
    return UnalignedReport(attacks, n_known[0], n_known[1], n_released, *names, subject=subject)


def _join(mine: Rows, theirs: Rows, subject: str) -> tuple[Rows, BoolArray, IntArray]:
    """Known records of both kinds, which of them are members, and whose each is."""
    # In random order: of rows that tie the first record in line is given the scarce ones.
    order = np.random.default_rng(0).permutation(len(mine) + len(theirs))
    known, is_member = pd.concat([mine, theirs]).iloc[order], order < len(mine)
    known = known.reset_index(drop=True)
    people = known[subject].astype(str) + np.where(is_member, "", "~") if subject else known.index
    return known, is_member, pd.factorize(people)[0]


def _recurs(mine: Column, theirs: Column) -> bool:
    """Whether values are of several rows each, and of one table alone, as identifiers are."""
    return bool(mine.duplicated(keep=False).mean() > DENSE and theirs.isin(mine).mean() < OVERLAP)


def _check_apart(members: pd.DataFrame, controls: pd.DataFrame, subject: str) -> None:
    """Refuse controls of which more are members than members are equal."""
    mine, theirs = (pd.util.hash_pandas_object(table, index=False) for table in (members, controls))
    share = theirs.isin(mine).mean()
    # Of a table of few values many rows are equal by chance, within members as well.
    chance = mine.duplicated(keep=False).mean() + max(OVERLAP, 3 / math.sqrt(len(mine)))
    if subject:  # of people none are the same by chance
        share, chance = controls[subject].isin(members[subject]).mean(), OVERLAP
    if share > chance:
        problem = f"Of the holdout {share:.0%} are raw records, so that a leak would not show."
        remedy = "Give records that the release was not made from."
        raise InputError(problem, remedy=remedy, code="holdout-overlaps")


def _is_numbering(name: str, known: Rows, sample: Rows, is_member: BoolArray, each: bool) -> bool:
    """Whether keys are of members and controls alike, or fill a range; of one row, or `each` of
    one person."""
    sides = known[name][is_member], known[name][~is_member], sample[name]
    mine, theirs, released = (one.drop_duplicates() if each else one for one in sides)
    n_released = sample.attrs["n_rows"] * len(released) / len(sample)
    x, z = (pd.to_numeric(one, errors="coerce") for one in (known[name], released))
    if (x % 1 > 0).any() or any(one.nunique() < len(one) for one in (mine, theirs, released)):
        return False
    is_dense = (z % 1 == 0).all() and n_released > DENSE * (z.max() - z.min() + 1)
    return bool(is_dense or read_text(theirs).isin(read_text(mine)).mean() > DENSE)


def _renumber(values: Column, is_member: BoolArray) -> Column:
    """Controls have the number of a member of their rank: a number alone is to show nothing."""
    mine, theirs = np.unique(values[is_member]), values[~is_member]
    rank, kinds = pd.factorize(theirs, sort=True)
    return values.where(is_member, pd.Series(mine[rank * len(mine) // len(kinds)], theirs.index))


def draw_rows(batches: Iterable[pd.DataFrame], most: int) -> pd.DataFrame:
    """A simple random sample of rows in one pass, or all if fewer; of ``attrs["n_rows"]``."""
    random, best, keys, n_rows = np.random.default_rng(0), pd.DataFrame(), np.empty(0), 0
    for batch in batches:
        n_rows += len(batch)
        both = np.concatenate([keys, random.random(len(batch))])
        chosen = np.argsort(both, kind="stable")[:most]
        best = pd.concat([best, batch], ignore_index=True).iloc[chosen]
        keys = both[chosen]
    best.attrs["n_rows"] = n_rows
    return best.reset_index(drop=True)


Columns = Mapping[str, ComparedColumn]


@dataclass
class _Nearest:
    """The nearest released rows of every known record, in one view.

    Parameters
    ----------
    probes
        The known records, (n_known, n_coordinates).
    axes, said
        Which of all coordinates are these, and which are of the column that is read off.
    distance, row, value
        Of each the nearest rows, (n_known, N_NEAREST); and what they say, in coordinates.
    """

    probes: FloatArray
    axes: IntArray
    said: IntArray
    distance: FloatArray
    row: IntArray
    value: FloatArray


def _look_up(
    known: pd.DataFrame, released: Batches, columns: Columns, views: Mapping[str, Sequence[str]]
) -> dict[str, _Nearest]:
    """One pass over the release: what is nearest in each view."""
    everyone, probes = np.arange(len(known)), _place(known, columns)[0]
    owner = np.repeat(list(columns), [len(one.levels) or 1 for one in columns.values()])
    found, first = dict[str, _Nearest](), 0
    for view, names in views.items():
        axes, said = np.flatnonzero(np.isin(owner, names)), np.flatnonzero(owner == view)
        size = len(known), N_NEAREST
        start = np.full(size, np.inf), np.full(size, -1), np.zeros((*size, len(said)))
        found[view] = _Nearest(probes[:, axes], axes, said, *start)

    for gallery in _gather(_place(batch, columns, released=True) for batch in released()):
        # Some rows at random come first: what is farther than the nearest of these is left out.
        rows = np.random.default_rng(0).permutation(gallery.shape[1])
        for part in filter(len, np.split(rows, [BLOCK[1] // 2, 8 * BLOCK[1]])):
            block = gallery[:, part].transpose(0, 2, 1).copy()
            for best in found.values():
                _search(best, everyone, block[:, best.axes], block[0, best.said], first + part)
        first += len(rows)
    return found


def _place(table: pd.DataFrame, columns: Columns, *, released: bool = False) -> FloatArray:
    """Middles and half-widths of all coordinates, (2, n_rows, n_coordinates)."""
    parts = [one.place(table[name], released=released) for name, one in columns.items()]
    return np.concatenate(parts, axis=2)


def _gather(blocks: Iterable[FloatArray]) -> Iterator[FloatArray]:
    """Blocks of rows, so many in one that they are worth a search."""
    waiting: list[FloatArray] = []
    for block in blocks:
        waiting.append(block)
        if sum(one[0].size for one in waiting) >= GATHERED:
            yield np.concatenate(waiting, axis=1)
            waiting = []
    if waiting:
        yield np.concatenate(waiting, axis=1)


def _search(best: _Nearest, these: IntArray, *block: AnyArray) -> None:
    """Halve the rows until few of these known records can be nearer to them than to others.

    The block has of these rows the middles and half-widths, (2, n_coordinates, n_rows), what they
    say, (n_said, n_rows), and their numbers. A record is left out where the box that holds all the
    rows is farther than its nearest. A row as far as them changes nothing, so that copies without
    end of one row are left out, too.
    """
    (middle, half), _, rows = block
    low, high = (middle - half).min(axis=1), (middle + half).max(axis=1)
    x = best.probes[these]
    gap = np.maximum(np.maximum(x - high, low - x), 0)
    these = these[np.einsum("ij,ij->i", gap, gap) < best.distance[these, -1] ** 2]
    if len(rows) <= BLOCK[1] // 2 or len(rows) * len(these) <= BLOCK[0] * BLOCK[1]:
        for start in range(0, len(these), BLOCK[0]):
            _merge(best, these[start : start + BLOCK[0]], *block)
        return
    order = np.argpartition(middle[np.argmax(high - low)], len(rows) // 2)
    for part in np.array_split(order, 2):
        _search(best, these, *(one.take(part, axis=-1) for one in block))


def _merge(best: _Nearest, these: IntArray, *parts: AnyArray) -> None:
    """Take the rows of a block that are nearer than what is known; distances in float64."""
    block, values, rows = (np.moveaxis(one, -1, -2) if one.ndim > 1 else one for one in parts)
    # After some blocks hardly any record has a nearer row: the others are left as they are.
    probes, farthest = best.probes[these], best.distance[these, -1]
    norms = np.einsum("ij,ij->i", probes, probes)
    limit = farthest**2 * (1 + ROUNDED) + ROUNDED * (1 + norms)
    is_known = np.isfinite(farthest)
    squares = _square(probes, norms - np.where(is_known, limit, 0), block)
    mine = np.flatnonzero(~is_known | (squares.min(axis=1) <= 0))
    hot, k = these[mine], min(N_NEAREST, len(rows))
    near = np.argpartition(squares[mine], k - 1, axis=1)[:, :k]
    # Expanded squares lose the digits in which a copy differs from a neighbour.
    apart = np.abs(probes[mine][:, None, :] - block[0][near]) - block[1][near]
    exact = np.linalg.norm(np.maximum(apart, 0), axis=2)
    exact += NARROW * block[1][near].sum(axis=2)
    distance = np.concatenate([best.distance[hot], exact], axis=1)
    at = np.arange(len(hot))[:, None], np.argsort(distance, axis=1, kind="stable")[:, :N_NEAREST]
    best.distance[hot] = distance[at]
    best.row[hot] = np.concatenate([best.row[hot], rows[near]], axis=1)[at]
    best.value[hot] = np.concatenate([best.value[hot], values[near]], axis=1)[at]


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


def _link(nearest: _Nearest, is_member: BoolArray, view: str, who: IntArray) -> Iterator[Event]:
    """Claims that a person is in it: by distance; in all columns also set apart, and assigned."""
    distance = nearest.distance
    outstanding = (distance[:, 0] + TIE) / (distance[:, 1] + TIE)
    found = {"nearest": distance[:, 0]}
    if not view:
        found |= {"standing out": outstanding, "assignment": _assign(nearest)}
    # Thresholds are chosen on every other record and judged by the rest.
    judges = np.arange(len(is_member)) % 2 == 1
    for name, of_rows in found.items():
        score = pd.Series(of_rows).groupby(who).min().to_numpy()
        theirs = np.sort(score[~is_member & ~judges])
        few = theirs[max(int(FALSE_LINKS * len(theirs)) - 1, 0)]
        yield f"linkage: {name}", view, score < few, judges, 0
        best = find_threshold(score[is_member & ~judges], theirs)
        yield f"membership: {name}", view, score <= best, judges, 1


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
    return np.asarray(table[min_weight_full_bipartite_matching(table)])  # rows in their order


def _read(
    found: Mapping[str, _Nearest], known: pd.DataFrame, columns: Columns, who: IntArray
) -> Iterator[Event]:
    """Confidential values read off the nearest row, of each person's rows the one nearest to it."""
    for name in filter(columns.__contains__, found):  # the other views read nothing off
        rows = pd.Series(found[name].distance[:, 0]).groupby(who).idxmin().to_numpy()
        both = found[name].value[rows, 0], columns[name].place(known[name])[0][rows]
        hits = np.linalg.norm(both[0] - both[1], axis=1) < NEAR_VALUE
        yield "inference", name, hits, np.ones_like(hits), 1
        said, true = (np.unique(one, axis=0, return_inverse=True)[1] for one in both)
        if max(said.max(), true.max()) > MOST_LEVELS:
            continue
        # Other codes hide nothing: what each means is learned from the other half.
        decoded, even = np.zeros_like(true), np.arange(len(true)) % 2 == 0
        for half in (even, ~even):
            table = np.zeros((said.max() + 1, true.max() + 1))
            np.add.at(table, (said[half], true[half]), 1)
            table -= np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
            decoded[~half] = table.argmax(axis=1)[said[~half]]
        yield "inference: recoded", name, decoded == true, np.ones_like(hits), 1


def _compare(
    event: Event, is_member: BoolArray, limits: tuple[float, float], level: float, part: float
) -> Excess:
    attack, column, hits, counts, limit = event
    sides = [hits[counts & side] for side in (is_member, ~is_member)]
    mine, theirs = (measure_exact_interval(int(s.sum()), len(s), level=level) for s in sides)
    shares = mine.estimate, theirs.estimate
    apart = mine.lower - theirs.upper, mine.upper - theirs.lower
    return Excess(attack, column, *shares, *apart, limits[limit], part * limits[limit])


def measure_retained_target(
    members: pd.DataFrame, released: pd.DataFrame, controls: pd.DataFrame, target: str
) -> dict[str, float | str]:
    """How well a target is predicted for controls, by boosting trained on raw or released rows.

    Returns
    -------
    scores
        ``target``, and its score from ``raw`` and ``released``: accuracy of classes, R squared of
        numbers. NaN where the release lacks the target or has no other common column.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    shared = [name for name in members if name in released and name in controls]
    columns = {str(name): choose_column(members[name], released[name]) for name in shared}
    known = {name: one for name, one in columns.items() if not one.is_text}
    others = {name: one for name, one in known.items() if name != target}
    scores: dict[str, float | str] = {"target": target, "raw": np.nan, "released": np.nan}
    if target not in known or not others:
        return scores
    is_number = not known[target].levels and members[target].nunique() > MOST_LEVELS
    model = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
    read, judged = read_law if is_number else read_text, _place(controls, others)[0]
    for view, table in (("raw", members), ("released", released)):
        labelled = table[table[target].notna()]
        if not len(labelled):
            continue
        x = _place(labelled, others, released=table is released)[0]
        with threadpool_limits(1, user_api="openmp"):
            fitted = model(random_state=0).fit(x, read(labelled[target]))
        scores[view] = round(float(fitted.score(judged, read(controls[target]))), 4)
    return scores
