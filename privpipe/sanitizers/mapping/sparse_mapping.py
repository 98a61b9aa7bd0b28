"""SparseMapping: a privacy mapping with its certificate, released by keyed draws.

Salamatian et al., SPPM: Sparse Privacy Preserving Mappings.

StratifiedMapping: one for each value of a public variable, which is released as it is. Given the
value, a record is one of its stratum's law and released by its stratum's mapping. So what each of
the mappings promises holds given the value, and what the release reveals beyond the value is the
mean over the values.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import scipy.sparse as sp

from privpipe import protocols
from privpipe.described import record_map
from privpipe.errors import InputError, OptionError
from privpipe.fitted_names import giving_back, name_codes, read_codes, schema_of
from privpipe.fitted_schema import UNKNOWN, NamedCodes
from privpipe.numerics.kinds import find_distinct_rows
from privpipe.numerics.mapping.problem.programme import CodeDistance, DistanceKind
from privpipe.numerics.mapping.worst_case import measure_epsilon
from privpipe.numerics.noise.estimates import choose_response
from privpipe.numerics.noise.group_estimates import estimate_raw_shares
from privpipe.numerics.random.categorical import CategoryTable, draw_categories, tabulate_categories
from privpipe.promises import check_promise
from privpipe.protocols import BoolArray, FloatArray, Guarantee, IntArray, WordArray

_NAMED: dict[str, DistanceKind] = {kind: kind for kind in get_args(DistanceKind)}
UnseenPolicy = Literal["refuse", "nearest"]
_BLOCK_PAIRS = 2**22
MOST_INVERTED, BLOCK_RECORDS = 2_000, 2**16
"""Symbols of a mapping that a reader inverts, in a minute; records that are read at once."""


class DrawnCategories:
    """Reads attributes, draws what it releases with one word a record, keeps their meaning."""

    reads: ClassVar[protocols.Role] = "attributes"
    draws: ClassVar[bool] = True
    keeps_features: ClassVar[bool] = True

    n_features_in: Any

    def read_records(self, x: Any) -> IntArray:
        """Codes of records, as many as the map reads; see `read_codes`."""
        codes = read_codes(self, x)
        if codes.ndim != 2 or codes.shape[1] != self.n_features_in:
            raise InputError(
                f"attributes has shape {codes.shape}, but the mapping knows {self.n_features_in}.",
                remedy="Give the attributes the mapping was fitted on, in the same order.",
            )
        return codes

    def release_codes(self, codes: IntArray, words: protocols.WordArray) -> tuple[IntArray, int]:
        """Codes drawn for those of records, and how many of these the fit had not seen.

        Parameters
        ----------
        codes : (n_records, n_attributes)
        words : (n_records, 1)

        Raises
        ------
        InputError
            If a record has what the map does not release.
        """
        raise NotImplementedError

    @property
    def law(self) -> tuple[IntArray, sp.csc_array]:
        """Codes of all symbols, and the probability of each (row) given the raw one (column)."""
        raise NotImplementedError

    def estimate(self, of: Any, column: str | None, open_release: Callable[[], Any]) -> list[Any]:
        """Shares of raw values of each attribute, or of one, by the inverse of the mapping.

        Raises
        ------
        OptionError
            Of anything else, of another column, or of too many symbols.
        """
        codes, mapping = self.law
        columns = getattr(schema_of(self), "attributes", ())
        if of != "shares" or not columns or len(codes) > MOST_INVERTED:
            raise OptionError(
                f"Of a mapping with {len(codes):,} symbols there are no {of}: it releases names, "
                "and is inverted as a whole.",
                remedy=f"Estimate shares, of a mapping with at most {MOST_INVERTED:,} symbols.",
                code="estimate",
            )
        names, size = [one.name for one in columns], len(codes)
        chosen = [choose_response(column, names, "attribute")] if column else [*range(len(names))]
        # A record that is no symbol was withheld: it is counted at the end.
        opened, counts = open_release(), np.zeros(size + 1)
        places = {tuple(row): place for place, row in enumerate(codes.tolist())}
        tables = [opened[name].attrs.get("categories") for name in names]
        given = tuple(
            replace(one, categories=tuple(table), n_categories=len(table)) if table else one
            for one, table in zip(columns, tables, strict=True)
        )
        for start in range(0, opened.sizes["record"], BLOCK_RECORDS):
            part = slice(start, start + BLOCK_RECORDS)
            rows = np.column_stack([opened[name][part].values for name in names])
            found, which = find_distinct_rows(self.read_records(NamedCodes(rows, given)))
            at = [places.get(tuple(row), size) for row in found.tolist()]
            counts += np.bincount(np.array(at)[which], minlength=size + 1)
        pairs = [(j, code) for j in chosen for code in np.unique(codes[:, j]).tolist()]
        labels = [(*(one.categories or range(one.n_categories or 0)), "missing") for one in columns]
        values = np.array([codes[:, j] == code for j, code in pairs], np.float64)
        said = [f"{names[j]} = {labels[j][code]}" for j, code in pairs]
        return estimate_raw_shares(counts[:size], mapping.toarray(), values, said)

    @giving_back
    def apply(self, x: Any, stream: protocols.RecordStream | None = None) -> protocols.AnyArray:
        """Release one symbol per record, drawn by the stream's words for that record.

        Parameters
        ----------
        x : (n_records, n_attributes)
            `NamedCodes`, or a data frame of categories, matched by name; plain codes only where
            the map was fitted to codes without names.
        stream
            Random words, one per record.

        Returns
        -------
        released : (n_records, n_attributes)
            The drawn symbols in the map's order: codes as the map numbers them for codes, else
            categories. What the map does not name is no symbol of it: see `unseen`.

        Raises
        ------
        OptionError
            Without a stream.
        InputError
            If a record has what the map does not release.

        Notes
        -----
        Guarantee: a symbol of probability 0 is never drawn; any other has its probability to
        2**-64, see `tabulate_categories`.
        """
        return self.apply_measured(x, stream)[0]

    def apply_measured(
        self, x: Any, stream: protocols.RecordStream | None = None, *, overwrite_x: bool = False
    ) -> tuple[protocols.AnyArray, int]:
        """As `apply`, and how many records were released as their nearest known symbol.

        Returns
        -------
        released : (n_records, n_attributes)
        n_unseen
            Records whose own symbol is not in the alphabet.
        """
        if stream is None:
            problem = "a privacy mapping draws what it releases, and no stream was given."
            raise OptionError(problem, remedy="Release through a release key, or pass a stream.")
        codes = self.read_records(x)
        drawn, n_unseen = self.release_codes(codes, stream.words("privacy_mapping", 1))
        if schema_of(self) is not None and not isinstance(x, NamedCodes):
            return name_codes(self, drawn), n_unseen
        return np.asarray(drawn.astype(codes.dtype)), n_unseen


@record_map
class SparseMapping(DrawnCategories):
    """A sparse mapping from symbols to distributions over symbols.

    A record's attributes are a symbol; what is released is a symbol drawn from its column.

    Parameters
    ----------
    codes : (n_symbols, n_attributes)
        Attribute codes of each symbol, each row once.
    pointers : (n_symbols + 1,)
        Where each column's released symbols begin (compressed sparse columns).
    released : (n_pairs,)
        Released symbols, ascending within a column.
    probabilities : (n_pairs,)
        Their probabilities; those of a column sum to 1.
    potentials : (n_symbols, n_private)
        Certificate: potentials in nats, ``sum_a p_a exp(g_ia) <= 1``.
    multiplier
        Certificate: nats per unit of distortion, not negative.
    information
        Mutual information of private value and released symbol, nats.
    lower_bound
        No mapping within the budget has less information, nats.
    distortion, distortion_budget
        Mean distortion, and the largest allowed.
    distortion_kind
        "hamming", "squared", "absolute" or "matrix"; of older models also "function".
    stopped
        Why the solver stopped.
    history : (n_rounds, 4)
        Number of the round (older models: seconds), information, lower bound and number of pairs.
    unseen
        What happens to records whose symbol is not in the alphabet: "refuse" or "nearest",
        the known symbol at the least distortion, of equals the first.
    guarantee
        What the mapping promises.
    """

    kind: ClassVar[str] = "sparse_mapping"

    codes: IntArray
    pointers: IntArray
    released: IntArray
    probabilities: FloatArray
    potentials: FloatArray
    multiplier: float
    information: float
    lower_bound: float
    distortion: float
    distortion_budget: float
    distortion_kind: str
    stopped: str
    history: FloatArray
    unseen: UnseenPolicy
    guarantee: Guarantee

    def __post_init__(self) -> None:
        least = {"information_bound": 0.0}
        if self.guarantee.kind == "local_dp":
            # Of exponential mechanisms: a probability of zero is at most the least that is stored.
            least = {"local_dp": measure_epsilon(self.mapping, np.finfo(np.float64).tiny)}
        check_promise(self.guarantee, least)

    @property
    def n_symbols(self) -> int:
        return len(self.codes)

    @property
    def n_features_in(self) -> int:
        return int(self.codes.shape[1])

    n_features_out = n_features_in

    @property
    def gap(self) -> float:
        """Certified distance from the optimum, nats."""
        return self.information - self.lower_bound

    @property
    def mapping(self) -> sp.csc_array:
        """Probability of each released symbol (row) given the original one (column)."""
        shape = (self.n_symbols, self.n_symbols)
        return sp.csc_array((self.probabilities, self.released, self.pointers), shape=shape)

    def find_symbols(self, x: Any) -> IntArray:
        """Number of each record's symbol within the alphabet.

        Parameters
        ----------
        x : (n_records, n_attributes)
            Categories by name, or codes; see `apply`.

        Returns
        -------
        symbols : (n_records,)

        Raises
        ------
        InputError
            If the attributes are not as many as the mapping's, or a record's symbol is unknown
            and `unseen` is "refuse".
        """
        return self._find(self.read_records(x))[0]

    def find_known(self, x: Any) -> BoolArray:
        """Which records' own symbol is in the alphabet, (n_records,); see `find_symbols`."""
        x = self.read_records(x)
        return np.asarray((self.codes[self._look_up(x)] == x).all(axis=1))

    def _find(self, x: IntArray) -> tuple[IntArray, int]:
        """Symbols, and how many records' own symbol is not in the alphabet."""
        distinct, places = find_distinct_rows(x)
        symbols = self._look_up(distinct)
        unknown = np.flatnonzero((self.codes[symbols] != distinct).any(axis=1))
        if len(unknown):
            symbols[unknown] = self._replace(distinct[unknown])
        return np.asarray(symbols[places]), int(np.isin(places, unknown).sum())

    def release_codes(self, codes: IntArray, words: protocols.WordArray) -> tuple[IntArray, int]:
        """See `DrawnCategories.release_codes`."""
        symbols, n_unseen = self._find(codes)
        return self.codes[draw_categories(words, self._laws, symbols)], n_unseen

    def _look_up(self, x: IntArray) -> IntArray:
        """The symbols of records whose own are in the alphabet; of others any."""
        order, rows = self._sorted
        return order[np.minimum(np.searchsorted(rows, _as_rows(x)), len(rows) - 1)]

    @property
    def law(self) -> tuple[IntArray, sp.csc_array]:
        return self.codes, self.mapping

    @cached_property
    def _sorted(self) -> tuple[IntArray, FloatArray]:
        rows = _as_rows(self.codes)
        order = np.argsort(rows)
        return order, rows[order]

    @cached_property
    def _laws(self) -> CategoryTable:
        # Columns sum to 1 but for rounding, which a table of laws would take for an error in
        # models stored with less care.
        sums = np.add.reduceat(self.probabilities, self.pointers[:-1])
        shares = self.probabilities / np.repeat(sums, np.diff(self.pointers))
        return tabulate_categories(self.pointers, self.released, shares)

    def _replace(self, unknown: IntArray) -> IntArray:
        if self.unseen == "refuse" or self.distortion_kind not in _NAMED:
            problem = f"{len(unknown)} different symbols are not in the mapping's alphabet."
            remedy = "Fit on records that hold them, or set unseen = 'nearest' and a distortion."
            raise InputError(problem, remedy=remedy)
        nearest = np.empty(len(unknown), np.int64)
        # A category without a name has no place among the others: all are equally far from it.
        masks, which = np.unique(unknown != UNKNOWN, axis=0, return_inverse=True)
        for number, known in enumerate(masks):
            rows = np.flatnonzero(which.ravel() == number)
            known_codes = unknown[rows][:, known], self.codes[:, known]
            nearest[rows] = find_nearest(self.distortion_kind, *known_codes)
        return nearest


def find_nearest(kind: str, columns: IntArray, symbols: IntArray) -> IntArray:
    """The nearest symbol of each column, of equals the first."""
    distance = CodeDistance(_NAMED[kind], symbols.astype(float), columns.astype(float))
    step = max(1, _BLOCK_PAIRS // len(symbols))
    nearest = [
        distance.block(a, min(a + step, len(columns))).argmin(axis=1)
        for a in range(0, len(columns), step)
    ]
    return np.concatenate(nearest)


def _as_rows(codes: IntArray) -> FloatArray:
    """Rows as single comparable values: the bytes of their codes, as float64 and +0."""
    plain = np.ascontiguousarray(codes.astype(np.float64) + 0.0)
    return plain.view(f"V{8 * codes.shape[1]}").ravel().view(f"S{8 * codes.shape[1]}")


@record_map
class StratifiedMapping(DrawnCategories):
    """One mapping per value of the last attribute.

    Parameters
    ----------
    strata : (n_strata,)
        Codes of the values, ascending; -1 where the value is missing.
    maps
        The mapping of each, of all attributes but the last.
    guarantee
        About the worst of the strata, and about the mean over them; see `assurance.promise_strata`.

    Raises
    ------
    OptionError
        If mappings and values do not fit.
    GuaranteeError
        If less is promised than by the worst of the mappings.
    """

    kind: ClassVar[str] = "stratified_mapping"

    strata: IntArray
    maps: tuple[SparseMapping, ...]
    guarantee: Guarantee

    def __post_init__(self) -> None:
        fits = len({each.n_features_in for each in self.maps}) == 1
        if not fits or self.strata.shape != (len(self.maps),) or (np.diff(self.strata) <= 0).any():
            raise OptionError(
                f"{len(self.maps)} mappings and values of shape {self.strata.shape} do not fit.",
                remedy="Give a mapping of the same attributes for each value, in ascending order.",
            )
        worst = max(float(each.guarantee.number or 0.0) for each in self.maps)
        check_promise(self.guarantee, {"information_bound": worst})

    @property
    def n_features_in(self) -> int:
        return self.maps[0].n_features_in + 1

    n_features_out = n_features_in

    @property
    def law(self) -> tuple[IntArray, sp.csc_array]:
        pairs = zip(self.maps, self.strata.tolist(), strict=True)
        codes = [np.insert(one.codes, one.n_features_in, code, axis=1) for one, code in pairs]
        return np.vstack(codes), sp.block_diag([one.mapping for one in self.maps], "csc")

    def release_codes(self, codes: IntArray, words: WordArray) -> tuple[IntArray, int]:
        """See `DrawnCategories.release_codes`; the last attribute stays what it is."""
        place = np.minimum(np.searchsorted(self.strata, codes[:, -1]), len(self.maps) - 1)
        if n_strange := int((self.strata[place] != codes[:, -1]).sum()):
            raise InputError(
                f"{n_strange} of {len(codes)} records have a value of the public variable ([method]"
                " by) for which there is no mapping: no training record has it.",
                remedy="Train on records that have it, or leave these records out.",
                code="stratum-unknown",
            )
        released, n_unseen = codes.astype(np.int64), 0
        for k in np.unique(place):
            rows = np.flatnonzero(place == k)
            drawn, unseen = self.maps[k].release_codes(codes[rows, :-1], words[rows])
            released[rows, :-1], n_unseen = drawn, n_unseen + unseen
        return released, n_unseen
