"""``privpipe export``: a release becomes a Parquet file."""

from __future__ import annotations

from typing import Any

from privpipe.report.console import say
from privpipe.report.work_bar import showing
from privpipe.store.access.location import local_path, shown
from privpipe.store.arrays.headers import read_header
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.export_register import note_export
from privpipe.store.releases.export import export_release


def export_command(release: str, out: str, *, verify: bool, as_json: bool) -> dict[str, Any]:
    """Export and say how many records were written."""
    run = str(read_header(release, "release").get("run", ""))
    path = local_path(out)
    note_export(find_account(), run, shown(out) if path is None else path)
    with showing("export") as listen:
        n_records = export_release(release, out, verify=verify, listen=listen)
    if not as_json:
        say(f"{shown(out)}: {n_records:,} released records")
    return {"release": shown(release), "out": shown(out), "n_records": n_records}
