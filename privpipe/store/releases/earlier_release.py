"""An earlier release, opened to be joined with a later one, as its readers see it.

Of the same records it is joined row by row: whoever holds both holds more than either. Surrogates
belong to no record; but both releases carry exact coefficients, whose difference is made by the
records in which they differ. Nothing is compared with raw records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import zarr

from privpipe.errors import OptionError, StoreError
from privpipe.protocols import Column, FloatArray
from privpipe.records.schema import expand_indicators
from privpipe.store.access.location import shown
from privpipe.store.access.objects import open_store
from privpipe.store.arrays.blocks import Receipt, read_block
from privpipe.store.arrays.factored_basis import Basis, read_basis
from privpipe.store.arrays.headers import exists, read_header
from privpipe.store.arrays.layout import FEATURES
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
    arrays
        Its arrays of numbers, with their columns: None for what is coded.
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
        found = np.full((stop - start, self.n_columns), np.nan)
        for one in self.rows:
            first, last = max(start, one.first), min(stop, one.last)
            if first < last:
                moved = one.other - one.first
                found[first - start : last - start] = self._read(first + moved, last + moved)
        return found

    def _read(self, start: int, stop: int) -> FloatArray:
        """Rows of the release itself."""
        parts: list[FloatArray] = []
        for name, n_columns in self.arrays:
            table = np.asarray(read_block(self.url, name, start, stop, self.run), np.float64)
            table = table.reshape(stop - start, n_columns)
            parts.append(table)
            if name == FEATURES and self.basis is not None:
                parts.append(np.asarray(self.basis.reconstruct(table), np.float64))
        for name, n_categories in self.coded:
            codes = np.asarray(read_block(self.url, name, start, stop, self.run), np.int64)
            parts.append(expand_indicators(codes[:, None], [Column(name, n_categories)]))
        return np.hstack(parts) if parts else np.empty((stop - start, 0))


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
    if not exists(url):
        raise StoreError(
            f"[audit] earlier names {shown(url)}, where there is no release.",
            remedy="Name a published release, or leave it out.",
            code="missing",
        )
    header = check_release(url)
    if header.get("source_digest", "") != source_digest:
        raise OptionError(
            f"[audit] earlier names {shown(url)}, which is a release of other records.",
            remedy="Name releases of this very collection; of others no row belongs to one of its.",
            code="other-records",
        )
    arrays, coded = _list_arrays(url, header)
    if any(n != n_records for _, n, _ in arrays):
        raise OptionError(
            f"[audit] earlier names {shown(url)}, whose records are surrogates of nobody.",
            remedy="Leave it out: no row of it belongs to a record.",
            code="other-records",
        )
    name = f"{header['method']} {header['run']}"
    return EarlierRelease(
        url,
        str(header["run"]),
        name if name not in names else f"{name} {len(names)}",
        tuple((name, width) for name, _, width in arrays if name not in coded),
        tuple(coded.items()),
        read_basis(url) if header.get("layout") == "factored" else None,
        rows,
    )


def holds_the_same(url: str, receipts: Sequence[Receipt]) -> bool:
    """Whether all that a release stores is stored by another run as well, byte for byte.

    Parameters
    ----------
    url
        The release.
    receipts
        Of the other run.
    """
    mine = {(one.chunk, stored) for one in receipts for stored in one.objects}
    theirs = read_receipts(url, read_header(url, "release"))
    return all((one.chunk, stored) in mine for one in theirs for stored in one.objects)


def _list_arrays(
    url: str, header: Mapping[str, object]
) -> tuple[list[tuple[str, int, int]], dict[str, int]]:
    """Name, length and width of every array, and categories of those that have some."""
    store, found, coded = open_store(url, read_only=True), [], {}
    names = header["arrays"]
    assert isinstance(names, list), "checked with the manifest"
    for name in names:
        array = zarr.open_array(store, path=name, mode="r")
        found.append((name, array.shape[0], 1 if array.ndim == 1 else array.shape[1]))
        categories = array.attrs.get("categories")
        if isinstance(categories, list) and categories:
            coded[name] = len(categories)
    return found, coded


@dataclass(frozen=True)
class EarlierSurrogates:
    """What readers see of an earlier release of surrogates; small and picklable.

    Parameters
    ----------
    url, run
        Where it is, and the run that made it.
    name
        What reports call it: its method and run, no path.
    response_names
        Its arrays beside the features.
    n_records
    """

    url: str
    run: str
    name: str
    response_names: tuple[str, ...]
    n_records: int

    def read(self, most: int) -> tuple[FloatArray, FloatArray]:
        """The first surrogates: features with the bias, and responses."""
        n = min(most, self.n_records)
        features, *responses = (
            np.asarray(read_block(self.url, name, 0, n, self.run), np.float64)
            for name in (FEATURES, *self.response_names)
        )
        return features, np.column_stack(responses)


def open_earlier_surrogates(
    url: str, *, feature_names: Sequence[str], response_names: Sequence[str]
) -> EarlierSurrogates:
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
    if not exists(url):
        raise StoreError(
            f"[audit] earlier names {shown(url)}, where there is no release.",
            remedy="Name a published release, or leave it out.",
            code="missing",
        )
    header = check_release(url)
    same = (
        list(header.get("feature_names") or ()) == list(feature_names)
        and list(header["arrays"]) == [FEATURES, *response_names]
        and not header.get("partitions")
    )
    if not same:
        raise OptionError(
            f"[audit] earlier names {shown(url)}, which is no release of surrogates with the same "
            "features and responses.",
            remedy="Name earlier releases of surrogates of these variables: only those are held "
            "against this one.",
            code="other-records",
        )
    name = f"{header['method']} {header['run']}"
    n = int(header["n_records"])
    return EarlierSurrogates(url, str(header["run"]), name, tuple(response_names), n)
