"""``privpipe check``: what metadata tells of a configuration, and what its budget means."""

from __future__ import annotations

from dataclasses import asdict, is_dataclass
from typing import Any

from privpipe.capabilities import Forecast
from privpipe.command.ingest_command import describe
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.lasting import list_fleeting
from privpipe.pipeline.runs.run import Run, say_changed_code
from privpipe.pipeline.runs.subject_limit import count_subjects
from privpipe.pipeline.runs.trusted_code import list_unrun
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import SampleFindings, check_sample
from privpipe.pipeline.stages.gate_forecast import GateNeeds
from privpipe.report.audit_text import say_unknown
from privpipe.report.console import say, tabulate
from privpipe.store.access.holding.workspace import read_state
from privpipe.store.access.location import shown
from privpipe.store.collections.collection import Collection


def check_command(config: str, *, as_json: bool) -> dict[str, Any]:
    """Check without a cluster; then read a few chunks to explain the budget."""
    run = check_stage(read_options(config))
    found = check_sample(run)
    meaning, subjects = found.meaning, count_subjects(run)
    if not as_json:
        _show(run, found)
        if subjects is not None:
            say(f"subjects   {subjects.describe()}")
        say("Everything that can be known without reading all records is in order.")
    return {
        "collection": _summarise(run.collection),
        "training": None if run.trains_on_itself else _summarise(run.training),
        "method": run.method.name,
        "source": run.method.source,
        "unknown_categories": dict(run.collection.unknown_categories),
        "constant_features": list(found.constant),
        "left_out": list_left_out(run),
        "gate": _describe_gate(found.gate),
        "profiles": None,  # what readers of other methods' answers find
        **_tell(found.forecast),
        "subjects": None if subjects is None else asdict(subjects),
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


def _tell(forecast: Forecast | None) -> dict[str, Any]:
    """A forecast by what it is about."""
    return {forecast.about: asdict(forecast)} if is_dataclass(forecast) else {}


def _summarise(collection: Collection) -> dict[str, Any]:
    schema = collection.schema_of_records
    return {
        "url": shown(collection.url),
        "digest": collection.digest,
        "n_records": schema.n_records,
        "n_features": schema.n_features,
        "dtype": schema.dtype,
    }


def _show(run: Run, found: SampleFindings) -> None:
    meaning, forecast, constant = found.meaning, found.forecast, found.constant
    say(f"collection {shown(run.collection.url)}: {describe(run.collection.schema_of_records)}")
    if not run.trains_on_itself:
        say(f"training   {shown(run.training.url)}: {describe(run.training.schema_of_records)}")
    say(f"method     {run.method.name} ({run.method.source})")
    if meaning is not None:
        say(
            f"budget     {meaning.budget:g} is {_write_share(meaning.share)} the variance of the "
            f"desired prediction ({meaning.variance:.4g}, from {meaning.n_records:,} records)."
        )
        table = tabulate("utility_budget", "share of the variance")
        for share, budget in meaning.suggestions:
            table.add_row(f"{budget:.3g}", f"{share:.1%}")
        say(table)
    if forecast is not None:
        say(f"{forecast.about:10s} {forecast.describe()}")
    if unknown := say_unknown(run.collection.unknown_categories):
        say(f"names      {unknown}")
    if constant:
        more = f" and {len(constant) - 12} more" if len(constant) > 12 else ""
        say(
            f"features   {', '.join(constant[:12])}{more} did not vary in the records read: they "
            "say nothing, and least squares without a ridge refuses them."
        )
    if found.dependence:
        say(f"features   {found.dependence}")
    for sentence in list_unrun(run.options):
        say(f"code       {sentence}")
    known = read_state(run.release_url)
    if known is not None and (changed := say_changed_code(known.code, run.state.code)):
        say(f"code       Since run {known.run_id} began, {changed}: `run` refuses it.")
    if found.warning:
        say(f"gate       {found.warning}")
    elif found.gate is not None:
        say(f"gate       {found.gate.describe()}")
    elif run.options.gate.enforce:
        say("gate       nothing is attacked.")
    else:
        say("gate       not enforced: the release will say that it is not gated.")
    for sentence in list_fleeting(run.options):
        say(f"account    {sentence}: later runs do not know of what is released.")
    left_out = list_left_out(run)
    if left_out:
        say(f"left out   {', '.join(left_out)}: variables are released where include names them.")


def _describe_gate(needs: GateNeeds | None) -> dict[str, Any] | None:
    """What the gate needs; None where it is not enforced."""
    if needs is None:
        return None
    found = asdict(needs)
    return found | {"n_needed": needs.n_needed if needs.n_needed < float("inf") else None}


def list_left_out(run: Run) -> list[str]:
    """Variables of the collection that the release will not hold."""
    held = {*run.options.release.include, *run.collection.attributes}
    return [v.name for v in run.collection.schema_of_records.variables if v.name not in held]


def _write_share(share: float) -> str:
    """A share as a percentage, or as a multiple where that is what it is.

    >>> _write_share(0.0123), _write_share(3e300), _write_share(float("inf"))
    ('1.23% of', '3e+300 times', 'beyond')
    """
    if share == float("inf"):
        return "beyond"
    return f"{share:.2%} of" if share < 10 else f"{share:.3g} times"
