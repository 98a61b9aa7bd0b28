"""``privpipe check``: what metadata tells of a configuration, and what its budget means."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from flows.budget import explain_budget
from flows.check import check_stage
from flows.command.ingest import describe
from flows.options import read_options
from privpipe.store.location import shown

__all__ = ["check_command"]


def check_command(config: str) -> None:
    """Check without a cluster; then read a few chunks to explain the budget."""
    run = check_stage(read_options(config))
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"collection {shown(run.collection.url)}: {describe(run.collection.schema_of_records)}"
    )
    if not run.trains_on_itself:
        console.print(
            f"training   {shown(run.training.url)}: {describe(run.training.schema_of_records)}"
        )
    console.print(f"method     {run.method.name} ({run.method.source})")
    meaning = explain_budget(run)
    if meaning is not None:
        console.print(
            f"budget     {meaning.budget:g} is {meaning.share:.2%} of the variance of the desired "
            f"prediction ({meaning.variance:.4g}, from {meaning.n_records:,} records)."
        )
        table = Table("utility_budget", "share of the variance")
        for share, budget in meaning.suggestions:
            table.add_row(f"{budget:.3g}", f"{share:.1%}")
        console.print(table)
    console.print("Everything that can be told without reading all records is in order.")
