"""Places of this machine and the bucket: disk, modes, key folder, put-if-absent."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import fsspec

from privpipe.cluster.workers.boundary import seal
from privpipe.pipeline.runs.lasting import is_promised_across_runs, list_fleeting
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.location import join, local_path, shown
from privpipe.store.access.remote import create_bytes
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.keyfiles import KeyFolder, key_folder

LEAST_FREE = 2**30
"""Bytes where releases go."""


def check_places(options: Any) -> Iterator[Finding]:
    """Where the release goes: space on a disk, conditional writes of a bucket."""
    release = options.release.path
    path = local_path(release)
    if path is None:
        parent = release.rstrip("/").rpartition("/")[0]
        enforced = tries_conditions(parent)
        does = "refuses" if enforced else "takes"
        remedy = "Use a store that enforces If-None-Match: without it two runs may publish."
        yield weigh(
            "put-if-absent",
            f"{shown(parent)} {does} a second write of one object",
            "" if enforced else remedy,
        )
        return
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    free = shutil.disk_usage(folder).free
    remedy = "Free space; `privpipe purge RELEASE` drops stopped runs." * (free < LEAST_FREE)
    yield weigh("disk", f"{free / 2**30:.1f} GiB free at {folder}", remedy)


def tries_conditions(parent: str) -> bool:
    """Whether a bucket refuses to replace an object that must not exist; tried, then removed."""
    probe = join(parent, f".privpipe-doctor-{secrets.token_hex(8)}")
    try:
        return create_bytes(probe, b"first") and not create_bytes(probe, b"second")
    finally:
        file_system, path = fsspec.core.url_to_fs(probe)
        file_system.rm(path)


def check_account(options: RunOptions) -> Iterator[Finding]:
    """Account and keys lie where they last; what is refused fails the configuration as well."""
    fleeting = list_fleeting(options)
    refused = is_promised_across_runs(options) and options.privacy.ephemeral == "refuse"
    for sentence in fleeting:
        yield weigh(
            "account",
            f"{sentence}: what later runs have to know is forgotten",
            "Name folders that last in [privacy] account or PRIVPIPE_ACCOUNT, and PRIVPIPE_KEYS.",
            fails=refused,
        )
    if not fleeting:
        place = shown(find_account(options.privacy.account))
        yield weigh("account", f"{place} is not in memory or a container's layer")


def check_keys() -> Iterator[Finding]:
    """The folder of keys is private, or not there yet."""
    folder = key_folder()
    if not folder.exists():
        yield weigh("key folder", f"{folder} is made when a method first draws")
        return
    with KeyFolder(folder, "").opened():
        yield weigh("key folder", f"{folder} is its owner's alone")


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Parameters
    ----------
    state
        "ok", "warns" (works, and will not for long or not for everybody) or "fails".
    what
        The thing looked at, in two or three words.
    detail
        What was seen.
    remedy
        The way out; empty where nothing is wrong.
    """

    state: Literal["ok", "warns", "fails"]
    what: str
    detail: str
    remedy: str = ""


def weigh(what: str, detail: str, remedy: str = "", *, fails: bool = True) -> Finding:
    """A finding: what needs no remedy is well."""
    bad: Literal["warns", "fails"] = "fails" if fails else "warns"
    return Finding(bad if remedy else "ok", what, detail, remedy)


Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Findings of all checks, in order; a check that breaks fails with what it says."""
    for name, check in checks:
        found: list[Finding] = []
        try:
            found.extend(check())
        except Exception as error:
            sealed = seal(error, name)
            found.append(Finding("fails", name, sealed.message, sealed.remedy))
        yield from found
