"""Whether the account still knows what releases of it recorded: a restored backup may not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import fsspec

from privpipe.errors import GuaranteeError
from privpipe.pipeline.runs.run import Run
from privpipe.store.access.location import join, local_path, open_store, read_bytes, shown
from privpipe.store.keyring.account_chain import AccountChain, reaching

__all__ = ["check_remembered"]


def check_remembered(run: Run, chain: AccountChain) -> None:
    """Refuse draws on an account that has forgotten some.

    Looked at are the releases named by ``[audit] earlier`` and those beside this one.

    Raises
    ------
    GuaranteeError
        If one of them recorded a head that this chain of the same account never had.
    StoreError
        If the folder of the releases cannot be reached.
    """
    for url in (*run.options.audit.earlier, *_list_beside(run.release_url)):
        with reaching(url):
            recorded = _read_recorded(url)
        if recorded.get("chain") == chain.id and not chain.knows(str(recorded.get("head"))):
            raise GuaranteeError(
                f"The account at {shown(chain.url)} does not know the release {shown(url)}, which "
                "was charged to it: it was restored from an older backup, or lost its newest "
                "entries.",
                remedy="Restore the newest backup of the account; nothing private is released on "
                "one that has forgotten losses.",
                code="account-behind",
            )


def _list_beside(release_url: str) -> Iterator[str]:
    """Places beside a release that may be releases, or parts of the same one."""
    parent = release_url.rstrip("/").rpartition("/")[0]
    if not parent:
        return
    with reaching(parent):
        files, path = fsspec.core.url_to_fs(local_path(parent) or parent)
        files.invalidate_cache()
        found = files.ls(path, detail=False) if files.exists(path) else []
    for name in sorted(one.rstrip("/").rpartition("/")[2] for one in found):
        if not name.startswith(".") and not name.endswith((".model.zarr", ".report")):
            yield join(parent, name)


def _read_recorded(url: str) -> dict[str, str]:
    """What the header of a release says of its account; nothing of what is no such release."""
    content = read_bytes(open_store(url, read_only=True), "zarr.json")
    try:
        return dict(json.loads(content or b"")["attributes"]["privpipe"]["account"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
