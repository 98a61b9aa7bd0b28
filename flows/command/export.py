"""``privpipe export``: a release becomes a Parquet file."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from privpipe.store.export import export_release
from privpipe.store.location import shown

__all__ = ["export_command"]


def export_command(release: str, out: str, *, verify: bool, as_json: bool) -> dict[str, Any]:
    """Export and say how many records were written."""
    n_records = export_release(release, out, verify=verify)
    if not as_json:
        console = Console(highlight=False)
        console.print(f"{shown(out)}: {n_records:,} released records", soft_wrap=True)
    return {"release": shown(release), "out": shown(out), "n_records": n_records}
