"""``privpipe status`` and ``privpipe purge``: the interrupted or running work of a release."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from flows.clean import read_progress
from privpipe.errors import StoreError
from privpipe.store.location import shown
from privpipe.store.release import exists
from privpipe.store.workspace import has_workspace, is_held, read_state, remove_workspace

__all__ = ["purge_command", "status_command"]


def status_command(release: str, *, as_json: bool) -> dict[str, Any]:
    """Say how far the run of a release is."""
    state = read_state(release)
    content = {
        "release": shown(release),
        "published": exists(release),
        "running": is_held(release),
        "run": state.run_id if state else None,
        "stage": state.stage if state else None,
        "started": state.started if state else None,
        "chunks": state.n_chunks if state else None,
        "chunks_done": read_progress(release, state.run_id) if state else None,
    }
    if as_json:
        return content
    console = Console(highlight=False, soft_wrap=True)
    if state is None:
        console.print(f"{shown(release)}: {'published' if exists(release) else 'nothing here'}")
        return content
    how = "running" if content["running"] else "interrupted; `privpipe run` goes on with it"
    console.print(
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
    if is_held(release):
        raise StoreError(
            f"A run is writing {shown(release)}.", remedy="Stop it first.", code="busy"
        )
    found = has_workspace(release)
    remove_workspace(release)
    if not as_json:
        what = "workspace removed" if found else "there was no workspace; nothing removed"
        Console(highlight=False, soft_wrap=True).print(f"{shown(release)}: {what}")
    return {"release": shown(release), "removed": found}
