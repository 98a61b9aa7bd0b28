"""A published release, checked against its manifest and its receipts, and read as others read it.

An earlier release of the same records is joined with a later one row by row: whoever holds both
holds more than either. Surrogates belong to no record; but both releases carry exact coefficients,
whose difference is made by the records in which they differ. Nothing is compared with raw records.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import zarr

from privpipe.errors import IncompleteReleaseError, OptionError, StoreError
from privpipe.protocols import Column, FloatArray
from privpipe.records.schema import expand_indicators
from privpipe.store.access import objects
from privpipe.store.access.location import guard_read, shown
from privpipe.store.access.objects import Listener, list_keys, open_store, unheard
from privpipe.store.arrays import blocks, layout
from privpipe.store.arrays.blocks import Receipt, measure_object, read_block
from privpipe.store.keyring.registers import Shared


def check_release(url: str, *, verify: bool = False, listen: Listener = unheard) -> layout.Header:
    """Check a release against its manifest and return its header.

    The receipts must match the digest that the header seals, and every chunk must be there. With
    `verify` every stored object is read and its length and checksum compared. `listen` is then
    called with how many objects were just read, and how many there are.
    """
    header = layout.read_header(url, "release")
    with layout.using_header(url, "release"):
        if "guarantee" in header:  # one that promises nothing lies about nothing
            layout.read_promise(header)
        _check_whole(url, header, verify=verify, listen=listen)
    return header


def _check_whole(url: str, header: layout.Header, *, verify: bool, listen: Listener) -> None:
    receipts = read_receipts(url, header)
    # The header seals the digest, the digest the receipts, and each receipt a chunk.
    if blocks.digest_receipts(receipts) != header["receipts_sha256"]:
        problem = f"The receipts of {shown(url)} differ from its header's digest."
        raise layout.explain_tampering(problem)
    store = open_store(url, read_only=True)
    documents = [f"{name}/{layout.ROOT_DOCUMENT}" for name in header["arrays"]]
    documents += list_keys(store, f"{layout.RECEIPTS}/")
    documents += list_keys(store, f"{blocks.BASIS}/")
    if layout.NAMES not in header["arrays"]:
        documents += list_keys(store, f"{layout.NAMES}/")
    digest = str(header.get("documents_sha256"))
    layout.check_documents(url, tuple(documents), digest, released=True)
    damaged = 0
    for number, name in enumerate(header["arrays"]):
        array = zarr.open_array(store, path=name, mode="r")
        _check_counts(url, header, array.shape[0], len(receipts))
        plan = layout.ArrayPlan(name, array.shape, int(header["chunk_rows"]), str(array.dtype))
        present = set(list_keys(store, f"{name}/c/"))
        keys = [layout.chunk_key(plan, receipt.chunk) for receipt in receipts]
        # Zarr reads the fill value where a chunk is missing, without an error.
        damaged += sum(key not in present for key in keys)
        if verify and not damaged:
            for receipt in receipts:
                damaged += measure_object(store, plan, receipt.chunk) != receipt.objects[number]
                listen(1, len(receipts) * len(header["arrays"]))
    if damaged:
        raise IncompleteReleaseError(
            f"{damaged} stored chunks of {shown(url)} are missing or differ from their receipts.",
            remedy=layout.DAMAGED,
            code="damaged",
        )


def _check_counts(url: str, header: layout.Header, n_stored: int, n_receipts: int) -> None:
    """What a header says of its records is what is there: a reader makes room for it."""
    n_records = int(header["n_records"])
    parts = [int(n) for n in header.get("partitions") or (n_records,)]
    # A forged header of zero rows per chunk must not end in a division.
    n_chunks = -(-n_records // max(int(header["chunk_rows"]), 1))
    if (n_records, sum(parts), n_chunks) != (n_stored, n_records, n_receipts) or min(parts) < 0:
        raise layout.explain_tampering(
            f"The header of {shown(url)} speaks of {n_records:,} records in {len(parts):,} parts, "
            f"and {n_stored:,} are stored."
        )


def read_receipts(url: str, header: layout.Header) -> list[Receipt]:
    """The receipts that a release is published with; IncompleteReleaseError without them."""
    names, run = header["arrays"], str(header["run"])

    def read() -> list[Receipt]:
        store = open_store(url, read_only=True)
        # Against a header that claims more chunks than are there, for which we should make room.
        most = objects.MOST_TO_ONE * len(names) * (1 + len(list_keys(store, f"{names[0]}/c/")))
        tables = (
            objects.read_whole(store, f"{layout.RECEIPTS}/{name}", most=most).tolist()
            for name in ("rows", "length", "crc32c")
        )
        return [
            Receipt(run, chunk, rows[0], tuple(map(blocks.Stored, names, lengths, checksums)), 0.0)
            for chunk, (rows, lengths, checksums) in enumerate(zip(*tables, strict=True))
        ]

    problem = f"The receipts of {shown(url)} cannot be read"
    return guard_read(read, IncompleteReleaseError, problem, remedy=layout.DAMAGED, code="manifest")


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
    model
        Digest of the model that made it.
    """

    url: str
    run: str
    name: str
    n_records: int
    arrays: tuple[tuple[str, int], ...]
    coded: tuple[tuple[str, int], ...] = ()
    basis: blocks.Basis | None = None
    rows: tuple[Shared, ...] | None = None
    model: str = ""

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
            if name == layout.FEATURES and self.basis is not None:
                parts.append(np.asarray(self.basis.reconstruct(table), np.float64))
        for name, n_categories in self.coded:
            codes = np.asarray(read_block(self.url, name, start, stop, self.run), np.int64)
            parts.append(expand_indicators(codes[:, None], [Column(name, n_categories)]))
        return np.hstack(parts) if parts else np.empty((stop - start, 0))

    def read_surrogates(self, most: int) -> tuple[FloatArray, FloatArray]:
        """Of a release of surrogates the first ones: features with the bias, and responses."""
        table, n_features = self._read(0, min(most, self.n_records)), self.arrays[0][1]
        return table[:, :n_features], table[:, n_features:]


def open_earlier_release(url: str, *, source_digest: str, n_records: int) -> EarlierRelease:
    """Open an earlier release of a collection.

    Parameters
    ----------
    url
        The release.
    source_digest, n_records
        Of the collection that it was made of; no digest of a part of an incremental release.

    Raises
    ------
    StoreError
        If it is not there.
    FormatError, IncompleteReleaseError
        If it is no whole release.
    OptionError
        If it is of other records.
    """
    header = _check_named(url)
    if header.get("source_digest", "") != source_digest:
        problem = f"{shown(url)}, which is a release of other records."
        remedy = "Name releases of this very collection; of others no row belongs to one of its."
        raise _other_records(problem, remedy)
    if int(header["n_records"]) != n_records:
        problem = f"{shown(url)}, whose records are surrogates, of no one."
        raise _other_records(problem, "Leave it out: no row of it belongs to a record.")
    store, arrays, coded = open_store(url, read_only=True), dict[str, int](), dict[str, int]()
    for name in header["arrays"]:
        array = zarr.open_array(store, path=name, mode="r")
        categories = array.attrs.get("categories")
        if isinstance(categories, list) and categories:
            coded[name] = len(categories)
        else:
            arrays[name] = math.prod(array.shape[1:])
    found = _describe(url, header, arrays)
    basis = blocks.read_basis(url) if header.get("layout") == "factored" else None
    model = str(header.get("model_digest", ""))
    return replace(found, coded=tuple(coded.items()), basis=basis, model=model)


def _describe(url: str, header: layout.Header, arrays: Mapping[str, int]) -> EarlierRelease:
    run = str(header["run"])
    name, n_records = f"{header['method']} {run}", int(header["n_records"])
    return EarlierRelease(url, run, name, n_records, tuple(arrays.items()))


def _check_named(url: str) -> layout.Header:
    if layout.exists(url):
        return check_release(url)
    problem = f"[audit] earlier names {shown(url)}, where there is no release."
    raise StoreError(problem, remedy="Name a published release, or leave it out.", code="missing")


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
    theirs = read_receipts(url, layout.read_header(url, "release"))
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
    header = _check_named(url)
    # Two releases of surrogates are compared column by column.
    names, arrays = list(header.get("feature_names") or ()), list(header["arrays"])
    same = names == list(feature_names) and arrays == [layout.FEATURES, *response_names]
    if not same or header.get("partitions"):
        problem = f"{shown(url)}, which is no release of surrogates of the same variables."
        remedy = "Name earlier releases of surrogates of these variables: only those are compared."
        raise _other_records(problem, remedy)
    widths = {layout.FEATURES: len(feature_names), **dict.fromkeys(response_names, 1)}
    return _describe(url, header, widths)
