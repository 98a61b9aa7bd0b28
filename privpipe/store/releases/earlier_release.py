"""An earlier release, opened to be joined with a later one, as its readers see it.

Of the same records it is joined row by row: whoever holds both holds more than either. Surrogates
belong to no record; but both releases carry exact coefficients, whose difference is made by the
records in which they differ. Nothing is compared with raw records.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zarr

from privpipe.errors import OptionError, StoreError
from privpipe.protocols import Column, FloatArray
from privpipe.records.schema import expand_indicators
from privpipe.store.access.location import shown
from privpipe.store.access.objects import open_store
from privpipe.store.arrays.blocks import Receipt, read_block
from privpipe.store.arrays.factored_basis import Basis, read_basis
from privpipe.store.arrays.layout import FEATURES, exists, read_header
from privpipe.store.keyring.registers import Shared
from privpipe.store.releases.published import check_release, read_receipts


@dataclass(frozen=True)
class EarlierRelease:
    """What readers see of an earlier release; small and picklable.

    Parameters
    ----------
    url, run
        Where it is, and the run that made it.
    name
        What reports call it: its method and run, no path.
    n_records
        Of the release.
    arrays
        Its arrays of numbers, with how many columns they have.
    coded
        Its variables of codes, with their numbers of categories.
    basis
        Of a factored release.
    rows
        Which rows of the collection it holds, and where; None: every row, at its own place.
    """

    url: str
    run: str
    name: str
    n_records: int
    arrays: tuple[tuple[str, int], ...]
    coded: tuple[tuple[str, int], ...] = ()
    basis: Basis | None = None
    rows: tuple[Shared, ...] | None = None

    @property
    def n_columns(self) -> int:
        """Columns of `read`."""
        stored = sum(n for _, n in (*self.arrays, *self.coded))
        return stored + (0 if self.basis is None else self.basis.n_features)

    def read(self, start: int, stop: int) -> FloatArray:
        """Rows of the collection as numbers, (n_records, n_columns); NaN those it does not hold.

        Codes are indicators, coordinates are expanded.
        """
        if self.rows is None:
            return self._read(start, stop)
        # NaN, not zero: a record that the earlier release does not hold is no record of zeros.
        found = np.full((stop - start, self.n_columns), np.nan)
        for one in self.rows:
            first, last = max(start, one.first), min(stop, one.last)
            if first < last:
                # A run of rows that both hold in one order, at other places.
                moved = one.other - one.first
                found[first - start : last - start] = self._read(first + moved, last + moved)
        return found

    def _read(self, start: int, stop: int) -> FloatArray:
        """Rows of the release itself."""
        parts: list[FloatArray] = []
        for name, n_columns in self.arrays:
            table = np.asarray(read_block(self.url, name, start, stop, self.run), np.float64)
            table = table.reshape(stop - start, n_columns)
            # Coordinates and records, both: whoever reads a factored release sees both.
            parts.append(table)
            if name == FEATURES and self.basis is not None:
                parts.append(np.asarray(self.basis.reconstruct(table), np.float64))
        for name, n_categories in self.coded:
            codes = np.asarray(read_block(self.url, name, start, stop, self.run), np.int64)
            parts.append(expand_indicators(codes[:, None], [Column(name, n_categories)]))
        return np.hstack(parts) if parts else np.empty((stop - start, 0))

    def read_surrogates(self, most: int) -> tuple[FloatArray, FloatArray]:
        """Of a release of surrogates the first ones: features with the bias, and responses."""
        table, n_features = self._read(0, min(most, self.n_records)), self.arrays[0][1]
        return table[:, :n_features], table[:, n_features:]


def open_earlier_release(
    url: str,
    *,
    source_digest: str,
    n_records: int,
    names: Sequence[str] = (),
    rows: tuple[Shared, ...] | None = None,
) -> EarlierRelease:
    """Open an earlier release of a collection.

    Parameters
    ----------
    url
        The release.
    source_digest, n_records
        Of the collection that it was made of; no digest of a part of an incremental release.
    names
        Names that are taken by other earlier releases.
    rows
        Which rows of the collection that is judged it holds, where that is another collection.

    Raises
    ------
    StoreError
        If it is not there.
    FormatError, IncompleteReleaseError
        If it is no whole release.
    OptionError
        If it is of other records.
    """
    header = _check(url)
    if header.get("source_digest", "") != source_digest:
        raise _other_records(
            f"{shown(url)}, which is a release of other records.",
            "Name releases of this very collection; of others no row belongs to one of its.",
        )
    if int(header["n_records"]) != n_records:
        raise _other_records(
            f"{shown(url)}, whose records are surrogates, of no one.",
            "Leave it out: no row of it belongs to a record.",
        )
    store, arrays, coded = open_store(url, read_only=True), dict[str, int](), dict[str, int]()
    for name in header["arrays"]:
        array = zarr.open_array(store, path=name, mode="r")
        categories = array.attrs.get("categories")
        if isinstance(categories, list) and categories:
            coded[name] = len(categories)
        else:
            arrays[name] = math.prod(array.shape[1:])
    found = _describe(url, header, arrays)
    return replace(
        found,
        name=found.name if found.name not in names else f"{found.name} {len(names)}",
        coded=tuple(coded.items()),
        basis=read_basis(url) if header.get("layout") == "factored" else None,
        rows=rows,
    )


def _describe(url: str, header: Mapping[str, Any], arrays: Mapping[str, int]) -> EarlierRelease:
    run = str(header["run"])
    name, n_records = f"{header['method']} {run}", int(header["n_records"])
    return EarlierRelease(url, run, name, n_records, tuple(arrays.items()))


def _check(url: str) -> Mapping[str, Any]:
    if exists(url):
        return check_release(url)
    raise StoreError(
        f"[audit] earlier names {shown(url)}, where there is no release.",
        remedy="Name a published release, or leave it out.",
        code="missing",
    )


def _other_records(what: str, remedy: str) -> OptionError:
    return OptionError(f"[audit] earlier names {what}", remedy=remedy, code="other-records")


def holds_the_same(url: str, receipts: Sequence[Receipt]) -> bool:
    """Whether all that a release stores is stored by another run as well, byte for byte.

    Parameters
    ----------
    url
        The release.
    receipts
        Of the other run.
    """
    # A release that a run makes once more reveals nothing beside itself.
    mine = {(one.chunk, stored) for one in receipts for stored in one.objects}
    theirs = read_receipts(url, read_header(url, "release"))
    return all((one.chunk, stored) in mine for one in theirs for stored in one.objects)


def open_earlier_surrogates(
    url: str, *, feature_names: Sequence[str], response_names: Sequence[str]
) -> EarlierRelease:
    """Open an earlier release of surrogates; of which records it was made does not matter.

    Parameters
    ----------
    url
        The release.
    feature_names, response_names
        Of the release that is to be judged, with the bias.

    Raises
    ------
    StoreError
        If it is not there.
    FormatError, IncompleteReleaseError
        If it is no whole release.
    OptionError
        If it is none of surrogates with these columns.
    """
    header = _check(url)
    # Two releases of surrogates are compared column by column.
    same = (
        list(header.get("feature_names") or ()) == list(feature_names)
        and list(header["arrays"]) == [FEATURES, *response_names]
        and not header.get("partitions")
    )
    if not same:
        raise _other_records(
            f"{shown(url)}, which is no release of surrogates with the same features and "
            "responses.",
            "Name earlier releases of surrogates of these variables: only those are held against "
            "this one.",
        )
    widths = {FEATURES: len(feature_names), **dict.fromkeys(response_names, 1)}
    return _describe(url, header, widths)
