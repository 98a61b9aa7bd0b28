"""``privpipe check``: what metadata tells of a configuration, and what its budget means."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from flows.budget import BudgetMeaning, explain_budget
from flows.check import check_stage
from flows.command.ingest import describe
from flows.options import read_options
from flows.run import Run
from privpipe.store.collection import Collection
from privpipe.store.location import shown

__all__ = ["check_command"]


def check_command(config: str, *, as_json: bool) -> dict[str, Any]:
    """Check without a cluster; then read a few chunks to explain the budget."""
    run = check_stage(read_options(config))
    meaning = explain_budget(run)
    if not as_json:
        _show(run, meaning)
    return {
        "collection": _summarise(run.collection),
        "training": None if run.trains_on_itself else _summarise(run.training),
        "method": run.method.name,
        "source": run.method.source,
        "budget": None
        if meaning is None
        else {
            "budget": meaning.budget,
            "variance": meaning.variance,
            "share": meaning.share,
            "n_records": meaning.n_records,
            "suggestions": [{"share": s, "budget": b} for s, b in meaning.suggestions],
        },
    }


def _summarise(collection: Collection) -> dict[str, Any]:
    schema = collection.schema_of_records
    return {
        "url": shown(collection.url),
        "digest": collection.digest,
        "n_records": schema.n_records,
        "n_features": schema.n_features,
        "dtype": schema.dtype,
    }


def _show(run: Run, meaning: BudgetMeaning | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"collection {shown(run.collection.url)}: {describe(run.collection.schema_of_records)}"
    )
    if not run.trains_on_itself:
        console.print(
            f"training   {shown(run.training.url)}: {describe(run.training.schema_of_records)}"
        )
    console.print(f"method     {run.method.name} ({run.method.source})")
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
