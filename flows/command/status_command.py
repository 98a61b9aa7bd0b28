"""``privpipe status`` and ``privpipe purge``: the interrupted or running work of a release."""

from __future__ import annotations

from typing import Any

from flows.runs.stages.clean import read_progress
from privpipe.report.console import say
from privpipe.store.access.holding.workspace import is_held, purge_workspace, read_state
from privpipe.store.access.location import shown
from privpipe.store.arrays.headers import exists, read_header

__all__ = ["purge_command", "status_command"]


def status_command(release: str, *, as_json: bool) -> dict[str, Any]:
    """Say how far the run of a release is.

    Raises
    ------
    StoreError, FormatError
        If something else stands at the place.
    """
    state = read_state(release)
    # Whatever else is there is no release, and reported as an error.
    published = exists(release) and bool(read_header(release, "release"))
    content = {
        "release": shown(release),
        "published": published,
        "running": is_held(release),
        "run": state.run_id if state else None,
        "stage": state.stage if state else None,
        "started": state.started if state else None,
        "chunks": state.n_chunks if state else None,
        "chunks_done": read_progress(release, state.run_id) if state else None,
    }
    if as_json:
        return content
    if state is None:
        say(f"{shown(release)}: {'published' if published else 'nothing here'}")
        return content
    how = "running" if content["running"] else "interrupted; `privpipe run` goes on with it"
    say(
        f"{shown(release)}: {how}. Run {state.run_id}, started {state.started}, stage "
        f"{state.stage}, {content['chunks_done']} of {state.n_chunks or '?'} chunks."
    )
    return content


def purge_command(release: str, *, as_json: bool) -> dict[str, Any]:
    """Remove what an interrupted run left; a running one and a published release stay.

    Raises
    ------
    StoreError
        If a run is writing.
    """
    found = purge_workspace(release)
    if not as_json:
        what = "workspace removed" if found else "there was no workspace; nothing removed"
        say(f"{shown(release)}: {what}")
    return {"release": shown(release), "removed": found}
