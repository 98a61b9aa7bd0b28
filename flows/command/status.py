"""``privpipe status`` and ``privpipe purge``: the interrupted or running work of a release."""

from __future__ import annotations

import json

from rich.console import Console

from flows.clean import read_progress
from privpipe.errors import StoreError
from privpipe.store.location import shown
from privpipe.store.release import exists
from privpipe.store.workspace import is_held, read_state, remove_workspace

__all__ = ["purge_command", "status_command"]


def status_command(release: str, *, as_json: bool) -> None:
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
        print(json.dumps(content, indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    if state is None:
        console.print(f"{shown(release)}: {'published' if exists(release) else 'nothing here'}")
        return
    how = "running" if content["running"] else "interrupted; `privpipe run` goes on with it"
    console.print(
        f"{shown(release)}: {how}. Run {state.run_id}, started {state.started}, stage "
        f"{state.stage}, {content['chunks_done']} of {state.n_chunks or '?'} chunks."
    )


def purge_command(release: str) -> None:
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
    remove_workspace(release)
    Console(highlight=False, soft_wrap=True).print(f"{shown(release)}: workspace removed")
