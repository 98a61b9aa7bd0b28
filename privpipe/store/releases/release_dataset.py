"""A release as a dataset: the parts of a generation joined lazily, and what it says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing
from zarr.abc.store import Store
from zarr.storage import WrapperStore

from privpipe.described import described
from privpipe.errors import IncompleteReleaseError, InputError, StoreError
from privpipe.extras import explain_missing, is_installed
from privpipe.protocols import AnyArray, Guarantee
from privpipe.report.audit_text import say_gate, say_verdict
from privpipe.store.access import generation_log, location
from privpipe.store.access.objects import Listener, open_store, unheard
from privpipe.store.arrays.blocks import read_basis
from privpipe.store.arrays.layout import FEATURES, Header, read_promise, using_header
from privpipe.store.releases import incremental_release as incremental
from privpipe.store.releases.published import check_release


def open_dataset(url: str, *, verify: bool = False) -> xr.Dataset:
    """See `open_release`."""
    if generation_log.is_generational(url):
        return _open_generation(url, verify=verify)
    header = check_release(url, verify=verify)
    # Without dask xarray reads lazily by itself; only joins and factored records need its chunks.
    chunks: dict[str, int] | None = {} if is_installed("dask") else None
    dataset = xr.open_zarr(WholeChunks(url), consolidated=False, chunks=chunks)
    # By allow-list: what else lies in the store was put there by another.
    allowed: xr.Dataset = dataset[list(header["arrays"])]
    if header.get("layout") == "factored":
        if not is_installed("dask"):  # records are made of coordinates chunk by chunk
            raise explain_missing(ModuleNotFoundError(name="dask"))
        records = read_basis(url).expand(dataset[FEATURES])
        allowed = allowed.drop_vars(FEATURES).assign({FEATURES: records})
    return _describe(allowed, header)


class WholeChunks(WrapperStore[Store]):
    """The store of a release that is opened to be read, where a chunk that is gone is an error.

    Zarr reads it as NaN, as withheld records are, and a release may be erased while it is open.
    """

    def __init__(self, url: str = "", store: Store | None = None) -> None:
        super().__init__(store or open_store(url, read_only=True))
        self.url = url

    def _with_store(self, store: Store) -> "WholeChunks":
        return WholeChunks(self.url, store)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Raise IncompleteReleaseError for a chunk that is not there."""
        found = await super().get(key, prototype, byte_range)
        if found is None and "/c/" in key:
            raise _explain_gone(self.url)
        return found


def _explain_gone(url: str) -> IncompleteReleaseError:
    return IncompleteReleaseError(
        f"A part of {location.shown(url)} is no longer what it was when the release was opened.",
        remedy="Open the release again: it, or a partition of it, may have been withdrawn or "
        "replaced since. If that fails too, `privpipe inspect --verify` says what is missing.",
        code="part-gone",
    )


def _open_generation(url: str, *, verify: bool) -> xr.Dataset:
    """The newest generation of an incremental release, as `open_release` gives it.

    Time does not grow with the parts but by their entries in one document. Each is checked against
    its digest there, and its receipts against its header, when one of its records is first read.
    """
    header, state, digest = check_generation(url, verify=verify)
    variables = {
        str(array["name"]): (
            ("record", "feature")[: 1 + bool(array["columns"])],
            indexing.LazilyIndexedArray(JoinedArray(url, state, array)),
            dict(array["attributes"]),
        )
        for array in state.arrays
    }
    dataset = xr.Dataset(variables)
    if is_installed("dask"):
        # By default Dask would hash what an array is: the entries of all parts.
        dataset = dataset.chunk({"record": _cut(state) or (0,)}, token=f"{url} {digest}")
    return _describe(dataset, header)


def _describe(dataset: xr.Dataset, header: Header) -> xr.Dataset:
    """The dataset with the names of its features and the header of its release."""
    names = list(header.get("feature_names") or ())
    if names and FEATURES in dataset:
        dataset = dataset.assign_coords(feature=names)
    dataset.attrs = {"privpipe": dict(header)}
    for variable in dataset.data_vars.values():
        variable.encoding["privpipe"] = True  # lost by whatever changes a value; attributes stay
    return dataset


def check_generation(
    url: str, *, verify: bool = False, listen: Listener = unheard
) -> tuple[dict[str, Any], incremental.IncrementalState, str]:
    """Header and state of the newest generation, and its digest.

    With `verify` every stored byte is read, and `listen` is called for each part that was, with how
    many there are.
    """
    if (found := incremental.read_incremental(url)) is None:
        problem = f"There is no generation of a release at {location.shown(url)}."
        remedy = "Check the path; the first run of the release makes one."
        raise StoreError(problem, remedy=remedy, code="not-found")
    newest, state = found
    with using_header(url, "release"):
        if "guarantee" in state.header:
            read_promise(state.header)
    for part in state.parts if verify else ():
        incremental.check_part(url, part)
        check_release(incremental.part_url(url, part.id), verify=True)
        listen(1, len(state.parts))
    withheld = [part.n_withheld for part in state.parts]
    header = {
        "format": "release",
        **state.header,
        "generation": newest.number,
        "line": state.line,
        "n_parts": len(state.parts),
        "n_records": sum(part.n_records for part in state.parts),
        # One small count that is not published would follow from the sum of all.
        "n_withheld": None if None in withheld else sum(n or 0 for n in withheld),
        "arrays": [array["name"] for array in state.arrays],
    }
    return header, state, newest.digest


class JoinedArray(BackendArray):
    """One array over all parts; a part is opened when one of its records is read.

    Parameters
    ----------
    url, state
        The release and its generation.
    about
        The array, as the generation describes it.
    """

    def __init__(
        self, url: str, state: incremental.IncrementalState, about: Mapping[str, Any]
    ) -> None:
        self.url, self.parts, self.name = url, state.parts, str(about["name"])
        self.ends = np.cumsum([part.n_records for part in state.parts], dtype=np.int64)
        self.dtype = np.dtype(about["dtype"])
        n = int(self.ends[-1]) if len(self.ends) else 0
        columns = int(about["columns"])
        self.shape = (n, columns) if columns else (n,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> AnyArray:
        """Rows of a slice or one number, from the parts that hold them."""
        rows, rest = key[0], key[1:]
        if not isinstance(rows, slice):
            return np.asarray(self._read((slice(rows, rows + 1), *rest))[0])
        start, stop, step = rows.indices(self.shape[0])
        found = [np.empty((0, *self.shape[1:]), self.dtype)]
        # "right": a part that ends where the rows begin holds no such row.
        first = int(np.searchsorted(self.ends, start, side="right"))
        for part, end in zip(self.parts[first:], self.ends[first:].tolist(), strict=True):
            begin = end - part.n_records
            if begin >= stop:
                break
            some = slice(max(start, begin) - begin, min(stop, end) - begin)
            found.append(_read_part(self.url, part, self.name, some))
        return np.asarray(np.concatenate(found)[(slice(None, None, step), *rest)])


def _cut(state: incremental.IncrementalState) -> tuple[int, ...]:
    """Rows of the chunks of all parts, each cut for itself."""
    return tuple(
        min(state.chunk_rows, part.n_records - start)
        for part in state.parts
        for start in range(0, part.n_records, state.chunk_rows)
    )


def _read_part(url: str, part: incremental.Part, name: str, rows: slice) -> AnyArray:
    """Rows of an array of a part, which may be withdrawn while readers hold the dataset.

    Raises
    ------
    IncompleteReleaseError
        If the part is gone, or went while it was read.
    """
    try:
        found = np.asarray(_open_part(url, part.id, part.root_sha256)[name][rows])
        # Once more after the chunks: a part goes by its root first.
        incremental.check_part(url, part)
    except (KeyError, FileNotFoundError, IncompleteReleaseError):
        problem = _explain_gone(url)
    else:
        return found
    raise problem


# By the digest of its root: a part that was replaced under its name is opened anew, and refused.
@lru_cache(maxsize=64)
def _open_part(url: str, part: str, root_sha256: str) -> Any:
    # Checked when it is first read: opening thousands of parts must not take as long.
    incremental.check_part(url, incremental.Part(part, "", 0, 0, root_sha256))
    check_release(incremental.part_url(url, part))
    return zarr.open_group(WholeChunks(incremental.part_url(url, part)), mode="r")


@dataclass(frozen=True, repr=False)
class ReleaseReport:
    """The audit of a release, as its header holds it.

    Parameters
    ----------
    findings
        What ``audit.json`` holds, as far as it is published.
    """

    findings: Mapping[str, Any]

    @property
    def verdict(self) -> str:
        """ "safe", "not protected", "leaks", "unproven" or "unknown"."""
        return str(self.findings["adversaries"]["verdict"])

    def __repr__(self) -> str:
        from privpipe.report.release_page import write_audit_markdown  # templates are slow to load

        return write_audit_markdown(self.findings)

    _repr_markdown_ = __repr__


def _facts(view: "ReleaseView") -> dict[str, str]:
    header, promise = view.header, view.guarantee
    number = "" if promise.number is None else f" {promise.number:g} {promise.unit}"
    found = {
        "records": f"{next(iter(view.dataset.sizes.values())):,}",
        "arrays": ", ".join(map(str, view.dataset.data_vars)),
        "method": str(header["method"]),
        "promise": f"{promise.kind}{number}, {promise.scope}",
    }
    if audit := header.get("audit"):
        found |= {"verdict": say_verdict(audit)}
        found |= {"gate": say_gate(audit)} if audit.get("gate") else {}  # not in older ones
    return found


@described(_facts)
@xr.register_dataset_accessor("privpipe")  # type: ignore[no-untyped-call]  # xarray's own
class ReleaseView:
    """Header, guarantee and report of an opened release.

    Raises
    ------
    InputError
        If the dataset is no release.
    """

    def __init__(self, dataset: xr.Dataset) -> None:
        marked = all("privpipe" in one.encoding for one in dataset.data_vars.values())
        if "privpipe" not in dataset.attrs or not marked:
            problem = "This dataset is no release of privpipe, or was computed from one."
            remedy = "Open one with privpipe.open_release: it says nothing of what is computed."
            raise InputError(problem, remedy=remedy)
        self.dataset = dataset

    @property
    def header(self) -> Header:
        """All that the release says of itself."""
        return cast(Header, self.dataset.attrs["privpipe"])

    @property
    def guarantee(self) -> Guarantee:
        """What every record is promised."""
        return read_promise(self.header)

    def report(self) -> ReleaseReport:
        """The audit that the release carries."""
        return ReleaseReport(self.header["audit"])
