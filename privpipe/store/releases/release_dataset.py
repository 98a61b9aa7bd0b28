"""A release as a dataset: the parts of a generation joined lazily, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr
from xarray.backends import BackendArray
from xarray.core import indexing

from privpipe.described import described
from privpipe.errors import InputError, StoreError
from privpipe.extras import is_installed
from privpipe.protocols import Guarantee
from privpipe.report.audit_text import say_gate, say_verdict
from privpipe.store.access.generation_log import Generation
from privpipe.store.access.location import shown
from privpipe.store.access.objects import open_store
from privpipe.store.arrays.headers import read_promise, using_header
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.incremental_release import (
    IncrementalState,
    Part,
    StoredParts,
    check_part,
    part_url,
    read_incremental,
)
from privpipe.store.releases.published import check_release

if TYPE_CHECKING:
    import xarray as xr


def open_generation(url: str, *, verify: bool = False) -> xr.Dataset:
    """The newest generation of an incremental release, as `open_release` gives it.

    Time does not grow with the parts but by their entries in one document: each is checked against
    its digest there, and its receipts against its header, when one of its records is first read.
    """
    import xarray as xr

    newest, state = _find(url)
    header = _describe(newest, state)
    if verify:
        _verify(url, state)
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
        token = f"{url} {newest.digest}"
        dataset = dataset.chunk({"record": _cut(state) or (0,)}, token=token)
    names = list(header.get("feature_names") or ())
    if names and FEATURES in dataset:
        dataset = dataset.assign_coords(feature=names)
    dataset.attrs = {"privpipe": header}
    return dataset


def check_generation(
    url: str, *, verify: bool = False, listen: Callable[[int, int], None] | None = None
) -> tuple[dict[str, Any], IncrementalState]:
    """Header and state of the newest generation.

    With `verify` every stored byte is read, and `listen` is told of each part that was, and how
    many there are.
    """
    newest, state = _find(url)
    if verify:
        _verify(url, state, listen)
    return _describe(newest, state), state


def _find(url: str) -> tuple[Generation, IncrementalState]:
    found = read_incremental(url)
    if found is None:
        raise StoreError(
            f"There is no generation of a release at {shown(url)}.",
            remedy="Check the path; the first run of the release makes one.",
            code="not-found",
        )
    with using_header(url, "release"):
        if "guarantee" in found[1].header:
            read_promise(found[1].header)
    return found


def _verify(
    url: str, state: IncrementalState, listen: Callable[[int, int], None] | None = None
) -> None:
    for part in state.parts:
        check_part(url, part)
        check_release(part_url(url, part.id), verify=True)
        if listen is not None:
            listen(1, len(state.parts))


def _describe(newest: Generation, state: IncrementalState) -> dict[str, Any]:
    withheld = _column(state, "n_withheld")
    return {
        "format": "release",
        **state.header,
        "generation": newest.number,
        "line": state.line,
        "n_parts": len(state.parts),
        "n_records": sum(_column(state, "n_records")),
        "n_withheld": None if None in withheld else sum(withheld),
        "arrays": [array["name"] for array in state.arrays],
    }


def _column(state: IncrementalState, name: str) -> list[int]:
    """A number of each part, without making the parts."""
    if isinstance(state.parts, StoredParts):
        return state.parts.column(name)
    return [getattr(part, name) for part in state.parts]


class JoinedArray(BackendArray):
    """One array over all parts; a part is opened when one of its records is read.

    Parameters
    ----------
    url, state
        The release and its generation.
    about
        The array, as the generation describes it.
    """

    def __init__(self, url: str, state: IncrementalState, about: Mapping[str, Any]) -> None:
        self.url, self.parts, self.name = url, state.parts, str(about["name"])
        self.ends = np.cumsum(_column(state, "n_records"), dtype=np.int64)
        self.dtype = np.dtype(about["dtype"])
        n = int(self.ends[-1]) if len(self.ends) else 0
        columns = int(about["columns"])
        self.shape = (n, columns) if columns else (n,)

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self._read
        )

    def _read(self, key: tuple[Any, ...]) -> npt.NDArray[Any]:
        """Rows of a slice or one number, from the parts that hold them."""
        rows, rest = key[0], key[1:]
        if not isinstance(rows, slice):
            one: npt.NDArray[Any] = self._read((slice(rows, rows + 1), *rest))[0]
            return one
        start, stop, step = rows.indices(self.shape[0])
        found = [np.empty((0, *self.shape[1:]), self.dtype)]
        first = int(np.searchsorted(self.ends, start, side="right"))
        at = start
        while at < stop:
            begin = int(self.ends[first - 1]) if first else 0
            end = min(stop, int(self.ends[first]))
            part = self.parts[first]
            arrays = _open_part(self.url, part.id, part.root_sha256)
            found.append(np.asarray(arrays[self.name][at - begin : end - begin]))
            at, first = end, first + 1
        joined: npt.NDArray[Any] = np.concatenate(found)[::step]
        cut: npt.NDArray[Any] = joined[(slice(None), *rest)]
        return cut


def _cut(state: IncrementalState) -> tuple[int, ...]:
    """Rows of the chunks of all parts, each cut for itself."""
    return tuple(
        min(state.chunk_rows, n_records - start)
        for n_records in _column(state, "n_records")
        for start in range(0, n_records, state.chunk_rows)
    )


@lru_cache(maxsize=64)
def _open_part(url: str, part: str, root_sha256: str) -> Any:
    check_part(url, Part(part, "", 0, 0, root_sha256))
    check_release(part_url(url, part))
    return zarr.open_group(open_store(part_url(url, part), read_only=True), mode="r")


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
        from privpipe.report.release_page import write_audit_markdown  # Matplotlib is slow to load

        return write_audit_markdown(self.findings)

    _repr_markdown_ = __repr__


def _facts(view: ReleaseView) -> dict[str, str]:
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
        if "privpipe" not in dataset.attrs:
            raise InputError(
                "This dataset is no release of privpipe.",
                remedy="Open one with privpipe.open_release; arithmetic drops attributes unless "
                "xarray is told to keep them.",
            )
        self.dataset = dataset

    @property
    def header(self) -> Mapping[str, Any]:
        """All that the release says of itself."""
        header: Mapping[str, Any] = self.dataset.attrs["privpipe"]
        return header

    @property
    def guarantee(self) -> Guarantee:
        """What every record is promised."""
        return read_promise(self.header)

    def report(self) -> ReleaseReport:
        """The audit that the release carries."""
        return ReleaseReport(self.header["audit"])
