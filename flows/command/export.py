"""``privpipe export``: a release becomes a Parquet file."""

from __future__ import annotations

from rich.console import Console

from privpipe.store.export import export_release
from privpipe.store.location import shown

__all__ = ["export_command"]


def export_command(release: str, out: str, *, verify: bool) -> None:
    """Export and say how many records were written."""
    n_records = export_release(release, out, verify=verify)
    console = Console(highlight=False)
    console.print(f"{shown(out)}: {n_records:,} released records", soft_wrap=True)
