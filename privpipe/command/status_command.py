"""``privpipe status``, ``approve`` and ``purge``: the interrupted or running work of a release."""

from __future__ import annotations

from typing import Any

from privpipe.pipeline.runs.approval import approve_release
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.clean import read_progress
from privpipe.report.console import say
from privpipe.store.access.generation_log import newest_kind
from privpipe.store.access.holding.workspace import (
    has_workspace,
    is_held,
    purge_workspace,
    read_state,
)
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import exists, has_root, read_header
from privpipe.store.collections.erasing import end_exchange
from privpipe.store.collections.growing_collection import purge_collection
from privpipe.store.releases.incremental_release import purge_parts


def status_command(release: str, *, as_json: bool) -> dict[str, Any]:
    """Say how far the run of a release is.

    Raises
    ------
    StoreError, FormatError
        If something else stands at the place.
    """
    release = find_release(release)
    state = read_state(release)
    begun, running = has_workspace(release), is_held(release)
    # A first incremental run makes folders before there is anything to read in them. Whatever else
    # is there is no release, and reported as an error.
    there = has_root(release) if begun else exists(release)
    grown = newest_kind(release) == "release"
    published = grown or (there and bool(read_header(release, "release")))
    content = {
        "release": shown(release),
        "published": published,
        "running": running,
        "interrupted": begun and not running,
        "run": state.run_id if state else None,
        "stage": state.stage if state else None,
        "started": state.started if state else None,
        "chunks": state.n_chunks if state else None,
        "chunks_done": read_progress(release, state.run_id) if state else None,
    }
    if as_json:
        return content
    how = "running" if running else "interrupted; `privpipe run` goes on with it"
    if state is None:
        said = ["published"] * published + [how] * begun
        say(f"{shown(release)}: {'; '.join(said) or 'nothing here'}")
        return content
    say(
        f"{shown(release)}: {how}. Run {state.run_id}, started {state.started}, stage "
        f"{state.stage}, {content['chunks_done']} of {state.n_chunks or '?'} chunks."
    )
    return content


def approve_command(release: str, name: str, reason: str, *, as_json: bool) -> dict[str, Any]:
    """Approve what the gate of a release refused.

    Raises
    ------
    OptionError, StoreError
        If there is nothing to approve, or a run is writing.
    """
    release = find_release(release)
    approval = approve_release(release, name, reason)
    if not as_json:
        say(f"approved by {approval['name']}: {approval['reason']}\n{approval['sentence']}")
        say("`privpipe run` publishes it; the approval stands in the release.")
    return {"release": shown(release), **approval}


def purge_command(release: str, *, as_json: bool) -> dict[str, Any]:
    """Remove what an interrupted run left; a running one and a published release stay.

    Raises
    ------
    StoreError
        If a run is writing.
    """
    release = find_release(release)
    end_exchange(release)
    if purge_collection(release):
        if not as_json:
            say(f"{shown(release)}: partitions that no generation names removed")
        return {"release": shown(release), "removed": True}
    found = purge_parts(release)
    found = purge_workspace(release) or found
    if not as_json:
        what = "workspace removed" if found else "there was no workspace; nothing removed"
        say(f"{shown(release)}: {what}")
    return {"release": shown(release), "removed": found}


def find_release(place: str) -> str:
    """Where the release is; of a configuration, the one that it writes."""
    return read_options(place).release.path if place.endswith(".toml") else place
