"""Writing and reading blocks of records, whole chunks at a time, with receipts.

A receipt says what was sent: length and checksum of the bytes of each object. What is stored is
compared with these before anybody sees it. One task owns whole chunks; alignment is asserted,
because unaligned parallel writes lose data without an error.

A factored release stores the few coordinates of each record under `features` and, once, the basis
that turns what is read into records. Whoever opens it sees records. Both layouts say exactly the
same.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.core.buffer import Buffer
from zarr.storage import MemoryStore, WrapperStore

from privpipe.capabilities import BoundCounts, UtilitySummary
from privpipe.errors import FormatError, IncompleteReleaseError, StoreError
from privpipe.numerics.null_space.cleaning import reconstruct_records
from privpipe.protocols import AnyArray, FloatArray
from privpipe.store.access import objects
from privpipe.store.access.location import FULL, explain_refusal, guard_read, join, shown
from privpipe.store.access.objects import measure_bytes, measure_content, open_store
from privpipe.store.arrays.layout import DAMAGED, ArrayPlan, chunk_key

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Stored:
    """One object as it was sent, or is stored.

    Parameters
    ----------
    array
        Name of the array it belongs to.
    length
        Bytes.
    crc32c
        CRC-32C (Castagnoli) of the bytes, the last four first; see `measure_bytes`.
    """

    array: str
    length: int
    crc32c: int


@dataclass(frozen=True)
class Receipt:
    """What a worker reports of one chunk; no values of records.

    Parameters
    ----------
    run
        Identifier of the run.
    chunk
        Number of the chunk.
    rows
        Records in it.
    objects
        What was stored, one per array.
    seconds
        Reading, mapping and writing.
    withheld
        Records whose row stays but holds nothing.
    utility
        What cleaning cost these records, where the map measures it.
    unseen
        Records released as their nearest known profile; None where a map knows no profiles.
    bounded
        What bounding did to these records, where the map bounds them.
    """

    run: str
    chunk: int
    rows: int
    objects: tuple[Stored, ...]
    seconds: float
    withheld: int = 0
    utility: UtilitySummary | None = None
    unseen: int | None = None
    bounded: BoundCounts | None = None


class _Sending(WrapperStore[Store]):
    """A store that knows length and checksum of what it was sent, by key, until they are taken."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.sent: dict[str, tuple[int, int]] = {}

    async def set(self, key: str, value: Buffer) -> None:
        """As the store sets it."""
        self.sent[key] = measure_content(value.to_bytes())
        await super().set(key, value)


@lru_cache(maxsize=64)
def open_array(url: str, name: str, version: str) -> zarr.Array[Any]:
    """Open an array once per process and version; raises StoreError where there is none.

    `version` is the digest of the collection or the identifier of the run. A worker that lives long
    must not take a new array at an old place for the old one.
    """
    return guard_read(
        lambda: zarr.open_array(store=_Sending(open_store(url)), path=name, mode="r+"),
        StoreError,
        f"The array {name!r} of {shown(url)} cannot be opened",
        remedy="Check the path and your rights to it.",
        code="open",
    )


# Of a context, not of a thread: tasks of one worker must not share what they read.
_read: ContextVar[dict[tuple[Any, ...], AnyArray] | None] = ContextVar("read", default=None)


@contextmanager
def reading_once() -> Iterator[None]:
    """Within, what was read or written is given again, to be left as it is; then it forgets."""
    outer = _read.get()
    token = _read.set({} if outer is None else outer)
    try:
        yield
    finally:
        _read.reset(token)


def read_block(url: str, name: str, start: int, stop: int, version: str) -> AnyArray:
    """Read rows of an array; a damaged chunk raises StoreError without its bytes."""

    def read() -> AnyArray:
        return np.asarray(open_array(url, name, version)[start:stop])

    problem = f"Records {start} to {stop} of {name!r} in {shown(url)} cannot be read"
    remedy = "A chunk is damaged or unreachable: restore it, or ingest the collection again."
    guarded = partial(guard_read, read, StoreError, problem, remedy=remedy, code="read")
    return read_where_new((url, name, start, stop, version), guarded)


def read_where_new(place: tuple[Any, ...], read: Callable[[], AnyArray]) -> AnyArray:
    """What `read` gives; within `reading_once` what it gave for this place before."""
    known = _read.get()
    if known is None:
        return read()
    if place not in known:
        known[place] = read()
        # The next reader gets the same array.
        known[place].flags.writeable = False
    return known[place]


def write_block(
    url: str, arrays: Sequence[ArrayPlan], chunk: int, block: Mapping[str, AnyArray], run: str
) -> Receipt:
    """Write one chunk of every array.

    What was sent is not read back: what is stored is measured by `measure_object`.

    Parameters
    ----------
    url
        The store.
    arrays
        All arrays of the store.
    chunk
        Number of the chunk.
    block
        Rows of the chunk for each array, in its dtype.
    run
        Identifier of the run, for the receipt.

    Returns
    -------
    Receipt

    Raises
    ------
    StoreError
        If the store does not take the chunk.
    """
    begun = time.perf_counter()
    stored: list[Stored] = []
    rows = 0
    for plan in arrays:
        start = chunk * plan.chunk_rows
        rows = min(plan.chunk_rows, plan.shape[0] - start)
        values = block[plan.name]
        # Unaligned parallel writes lose data without an error.
        assert values.shape == (rows, *plan.shape[1:]), "a block must be one whole chunk"
        assert values.dtype == np.dtype(plan.dtype), "a block must have the dtype of its array"
        array = _write_rows(url, plan.name, start, values, run)
        assert isinstance(array.store, _Sending)
        stored.append(Stored(plan.name, *array.store.sent.pop(chunk_key(plan, chunk))))
    return Receipt(run, chunk, rows, tuple(stored), time.perf_counter() - begun)


def measure_object(store: Store, plan: ArrayPlan, chunk: int) -> Stored | None:
    """Length and checksum of the stored bytes of a chunk; None where there are none."""
    found = measure_bytes(store, chunk_key(plan, chunk))
    return None if found is None else Stored(plan.name, *found)


def check_receipts(
    receipts: Iterable[Receipt], arrays: Sequence[ArrayPlan], run: str
) -> dict[int, Receipt]:
    """Prove completeness: every chunk of every array has a receipt of this run, and only one.

    Returns
    -------
    by_chunk
        The receipts by chunk number, in order.

    Raises
    ------
    IncompleteReleaseError
        With how many chunks are missing, doubled with other bytes, foreign or incomplete.
    """
    n_chunks = arrays[0].n_chunks
    names = tuple(plan.name for plan in arrays)
    by_chunk: dict[int, Receipt] = {}
    doubled = foreign = 0
    for receipt in receipts:
        # The same bytes twice are no fault: a chunk may be written again after a kill.
        doubled += by_chunk.setdefault(receipt.chunk, receipt).objects != receipt.objects
        plan = arrays[0]
        rows = min(plan.chunk_rows, plan.shape[0] - receipt.chunk * plan.chunk_rows)
        mine = receipt.run == run and 0 <= receipt.chunk < n_chunks and receipt.rows == rows
        foreign += not mine or tuple(stored.array for stored in receipt.objects) != names
    missing = n_chunks - len(by_chunk)
    if missing or doubled or foreign:
        raise IncompleteReleaseError(
            f"Of {n_chunks} chunks {missing} are missing, {doubled} have two different receipts, "
            f"{foreign} receipts do not belong to this run.",
            remedy="Run the job again; it writes what is missing.",
        )
    return dict(sorted(by_chunk.items()))


def _write_rows(url: str, name: str, start: int, values: AnyArray, version: str) -> zarr.Array[Any]:
    # A chunk that holds nothing but fill values is written, too: its receipt needs an object.
    array = open_array(url, name, version).with_config({"write_empty_chunks": True})
    try:
        array[start : start + len(values)] = values
        read_where_new((url, name, start, start + len(values), version), lambda: values)
        return array
    except Exception as error:  # many kinds, depending on the store
        refused = explain_refusal(error)
        problem = getattr(error, "strerror", None) or type(error).__name__
        # Zarr lets them through as they are; a quota and a largest file are full disks to a user.
        is_full = getattr(error, "errno", None) in FULL
    if refused is not None:
        raise refused
    problem = f"{join(shown(url), name)} could not be written ({problem})."
    remedy = "Check free space and your rights, then run again; the work so far is stored."
    raise StoreError(problem, remedy=remedy, code="disk-full" if is_full else "write")


def digest_receipts(receipts: Iterable[Receipt]) -> str:
    """SHA-256 over chunk, rows, array, length and checksum of every stored object."""
    sha = hashlib.sha256()
    # Workers end in any order; the digest must not depend on it.
    for receipt in sorted(receipts, key=lambda r: r.chunk):
        for stored in receipt.objects:
            line = f"{receipt.chunk} {receipt.rows} {stored.array} {stored.length} {stored.crc32c}"
            sha.update(f"{line}\n".encode())
    return sha.hexdigest()


BASIS = "basis"


@dataclass(frozen=True, eq=False)
class Basis:
    """``record = centre + lift @ coordinates``.

    Parameters
    ----------
    lift : (n_features, rank)
    centre : (n_features,)
    dtype
        Name of the records' dtype.
    """

    lift: FloatArray
    centre: FloatArray
    dtype: str

    @property
    def n_features(self) -> int:
        """Features of a record."""
        return len(self.centre)

    def reconstruct(self, coordinates: FloatArray) -> FloatArray:
        """Records (n_records, n_features) of coordinates (n_records, rank); NaN rows stay NaN."""
        return reconstruct_records(coordinates, self.lift, self.centre, self.dtype)

    def documents(self) -> dict[str, bytes]:
        """The objects of the basis within the store of a release."""
        memory = MemoryStore()
        group = zarr.create_group(memory, path=BASIS, attributes={"dtype": self.dtype})
        # One chunk each: a basis is read whole.
        group.create_array("lift", data=self.lift, chunks=self.lift.shape)
        group.create_array("centre", data=self.centre, chunks=self.centre.shape)
        return objects.read_all(memory, f"{BASIS}/")

    def expand(self, coordinates: "xr.DataArray") -> "xr.DataArray":
        """Records of stored coordinates as a lazy array of the same chunks along `record`."""
        import xarray as xr

        # Block by block: a release of any size opens at once.
        stored, dtype = coordinates.data, np.dtype(self.dtype)
        chunks = (stored.chunks[0], (self.n_features,))
        lazy = stored.map_blocks(self.reconstruct, dtype=dtype, chunks=chunks, name=False)
        return xr.DataArray(lazy, dims=coordinates.dims)


def read_basis(url: str) -> Basis:
    """Read the basis of a factored release.

    Raises
    ------
    FormatError
        If there is none, or it cannot be read.
    """

    def read() -> Basis:
        group = zarr.open_group(open_store(url, read_only=True), path=BASIS, mode="r")
        names = f"{BASIS}/lift", f"{BASIS}/centre"
        lift, centre = (objects.read_whole(group.store, name) for name in names)
        return Basis(lift, centre, str(group.attrs["dtype"]))

    problem = f"The basis of the factored release {shown(url)} cannot be read"
    return guard_read(read, FormatError, problem, remedy=DAMAGED)
