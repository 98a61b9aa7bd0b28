"""Export into an Icechunk repository: each generation of a release is one snapshot of it."""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

import zarr

from privpipe.errors import OptionError, StoreError
from privpipe.extras import explain_missing
from privpipe.store.access.generation_log import is_generational
from privpipe.store.access.location import Place, as_url, local_path, shown
from privpipe.store.access.objects import Listener, unheard
from privpipe.store.access.workspace import hold_workspace, remove_workspace
from privpipe.store.arrays.layout import read_header
from privpipe.store.releases import incremental_release as incremental
from privpipe.store.releases.release_dataset import open_dataset

SUFFIX = ".icechunk"
PARTS = "privpipe_parts"
"""Attribute of a snapshot: identifier and records of each part that it holds."""
ANEW = "privpipe_anew"
"""In the metadata of a snapshot: whether earlier ones may hold what the release holds no more."""


def export_snapshot(
    url: Place, repository_url: Place, *, verify: bool = False, listen: Listener = unheard
) -> int:
    """Bring an Icechunk repository to what a release is now, by one commit.

    Parts that the last snapshot holds are not written again. Where one of them is no longer in the
    release, as after a withdrawal, everything is written anew. Earlier snapshots are expired then,
    and their objects deleted.

    Parameters
    ----------
    url
        The release, whole or growing.
    repository_url
        Path, or URL of an s3 bucket, that ends in .icechunk; made where there is none. Credentials
        and AWS_ENDPOINT_URL are read from the environment.
    verify, listen
        As of `export_release`.

    Returns
    -------
    n_records
        Records that were written; 0 where the repository held all of them.

    Raises
    ------
    ModuleNotFoundError
        Without the extra that brings Icechunk, which it names.
    OptionError
        If the place is of another kind.
    StoreError
        If another export to it is under way, or the release changed meanwhile.

    Notes
    -----
    Readers need neither privpipe nor its joins: ``icechunk.Repository.open(storage)``, then
    ``xarray.open_zarr(repository.readonly_session("main").store, consolidated=False)``.
    """
    url, repository_url = as_url(url), as_url(repository_url)
    rows, parts = _list_parts(url)
    dataset = open_dataset(url, verify=verify)
    if dataset.sizes["record"] != sum(int(n) for _, n in parts):
        problem = f"{shown(url)} has changed since the export began."
        raise StoreError(problem, remedy="Export it again.", code="busy")
    with hold_workspace(repository_url):
        repository = _open_repository(repository_url)
        written = _commit(dataset, repository, rows, parts, listen)
        _forget(repository)
        remove_workspace(repository_url)
    return written


def _commit(dataset: Any, repository: Any, rows: int, parts: list[Any], listen: Listener) -> int:
    """Write what a repository does not hold: parts that came, or all parts anew."""
    session = repository.writable_session("main")
    known: Any = zarr.open_group(session.store, mode="a").attrs.get(PARTS, [])
    if known == parts:
        return 0
    begin = sum(int(n) for _, n in known) if known == parts[: len(known)] else 0
    _write(dataset, session.store, begin, rows, listen)
    zarr.open_group(session.store, mode="r+").attrs.put(dataset.attrs | {PARTS: parts})
    n_records = int(dataset.sizes["record"])
    session.commit(f"{n_records} records in {len(parts)} parts", {ANEW: bool(known and not begin)})
    return n_records - begin


def _forget(repository: Any) -> None:
    """Delete what was there before the last snapshot that was written anew."""
    # By the history, each time: an export that was killed after its commit forgot nothing.
    anew = [one for one in repository.ancestry(branch="main") if one.metadata.get(ANEW)]
    if anew:
        repository.expire_snapshots(older_than=anew[0].written_at)
        # Objects may be younger than our clock says; no one else writes meanwhile.
        repository.garbage_collect(datetime.now(UTC) + timedelta(hours=1))


def list_runs(url: str) -> list[str]:
    """Runs whose records an export would hold: by them an erasure finds it."""
    places = [url]
    if is_generational(url):
        places = [incremental.part_url(url, part) for part, _ in _list_parts(url)[1]]
    return [run for place in places for run in list_only_run(place)]


def list_only_run(url: str) -> list[str]:
    """Likewise of a release that does not grow; FormatError of another."""
    return [str(read_header(url, "release").get("run", ""))]


def _list_parts(url: str) -> tuple[int, list[list[Any]]]:
    """Records of a chunk; identifier and records of each part, as JSON has them."""
    found = incremental.read_incremental(url) if is_generational(url) else None
    if found is None:
        header = read_header(url, "release")
        return int(header["chunk_rows"]), [[str(header["run"]), int(header["n_records"])]]
    return found[1].chunk_rows, [[part.id, part.n_records] for part in found[1].parts]


def _open_repository(url: str) -> Any:
    try:
        import icechunk
    except ModuleNotFoundError as error:
        raise explain_missing(error) from None
    path, endpoint = local_path(url), os.environ.get("AWS_ENDPOINT_URL")
    icechunk.set_logs_filter("error")  # it warns of two writers to a folder, which is locked here
    if path is not None:
        storage = icechunk.local_filesystem_storage(path)
    elif url.startswith("s3://"):
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        storage = icechunk.s3_storage(
            bucket=bucket,
            prefix=prefix,
            from_env=True,
            endpoint_url=endpoint,
            allow_http=(endpoint or "").startswith("http:"),
            force_path_style=endpoint is not None,
        )
    else:
        problem = f"{shown(url)} is neither a folder nor an s3 bucket."
        raise OptionError(problem, remedy="Export to one of these, or as Parquet.")
    return icechunk.Repository.open_or_create(storage)


def _write(dataset: Any, store: Any, begin: int, rows: int, listen: Listener) -> None:
    """Records from a first one on, chunk by chunk; of the first all that was there is replaced."""
    n_records, at, plain = dataset.sizes["record"], begin, dataset.drop_encoding()
    while at < n_records or at == 0:
        end = min(n_records, (at // rows + 1) * rows)
        piece = plain.isel(record=slice(at, end)).load()
        how: dict[str, Any] = {"append_dim": "record"}
        if at == 0:
            chunks = {
                v: (rows, *a.shape[1:]) for v, a in piece.variables.items() if "record" in a.dims
            }
            how = {"mode": "w", "encoding": {v: {"chunks": c} for v, c in chunks.items()}}
        piece.to_zarr(store, consolidated=False, zarr_format=3, **how)
        listen(end - at, n_records)
        if not n_records:
            return
        at = end
