"""Whether the account still knows what releases of it recorded: a restored backup may not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import fsspec

from privpipe.errors import GuaranteeError
from privpipe.pipeline.runs.run import Run
from privpipe.store.access.location import join, local_path, open_store, read_bytes, shown
from privpipe.store.keyring.account_chain import AccountChain, reaching
from privpipe.store.releases.incremental_release import PARTS


def check_remembered(run: Run, chain: AccountChain) -> None:
    """Refuse draws on an account that has forgotten some, or was begun anew.

    Looked at are the releases named by ``[audit] earlier`` and those beside this one, with the
    parts of those that grow.

    Raises
    ------
    GuaranteeError
        If one of them recorded a head that this chain of the same account never had, or was charged
        for the same records to an account that is not this one.
    StoreError
        If the folder of the releases cannot be reached.
    """
    for url in _list_releases(run):
        with reaching(url):
            header = _read_header(url)
        recorded = header["account"]
        mine = recorded.get("chain") == chain.id
        if chain.knows(str(recorded.get("head"))) or not (mine or _is_charged(run, header)):
            continue
        said = "" if mine else "or to another account for the same records, "
        raise GuaranteeError(
            f"The account at {shown(chain.url)} does not know the release {shown(url)}, which "
            f"was charged to it, {said}before it was restored from an older backup, begun anew, or "
            "lost its newest entries.",
            remedy="Restore the newest backup of the account, or name in [privacy] account the one "
            "that knows; nothing private is released on one that has forgotten losses.",
            code="account-behind",
        )


def _is_charged(run: Run, header: Mapping[str, Any]) -> bool:
    """Whether a release lost of these records what an account has to remember."""
    promised = header.get("guarantee")
    kind = promised.get("kind") if isinstance(promised, dict) else None
    return kind == "local_dp" and header.get("source_digest") == run.collection.digest


def _list_releases(run: Run) -> Iterator[str]:
    """Places that may be releases: named ones, and all beside this one; each with its parts."""
    place = run.release_url.rstrip("/")
    folder, _, _ = place.rpartition("/")
    if folder.endswith(f"/{PARTS}"):  # this is a part: what grows stands beside others
        folder = folder.rpartition("/")[0].rpartition("/")[0]
    for url in (*run.options.audit.earlier, *_list_places(folder)):
        yield url
        yield from _list_places(join(url, PARTS))


def _list_places(folder: str) -> list[str]:
    """What stands in a folder; nothing where there is none, or it is a file."""
    if not folder:
        return []
    with reaching(folder):
        files, path = fsspec.core.url_to_fs(local_path(folder) or folder)
        files.invalidate_cache()
        found = files.ls(path, detail=False) if files.isdir(path) else []
    return [
        join(folder, name) for name in sorted(one.rstrip("/").rpartition("/")[2] for one in found)
    ]


def _read_header(url: str) -> dict[str, Any]:
    """The header of a release, with what it records of its account; empty where it is no such."""
    content = read_bytes(open_store(url, read_only=True), "zarr.json")
    try:
        header = dict(json.loads(content or b"")["attributes"]["privpipe"])
        return header | {"account": dict(header["account"])}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"account": {}}
