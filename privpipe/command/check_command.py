"""``privpipe check`` and ``run --dry-run``: what metadata and a few chunks say before a run."""

import os
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import datetime
from itertools import count
from shlex import quote
from typing import Any

import numpy as np

from privpipe.capabilities import Forecast
from privpipe.command.ingest_command import describe
from privpipe.command.output import check_new, write_new
from privpipe.errors import PrivpipeError
from privpipe.flows.pilot import forecast_cost
from privpipe.pipeline.runs import configuration_file, earlier, spend, subject_limit, trusted_code
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages import diagnosis, forecast, increment_check
from privpipe.pipeline.stages.score_trial import try_orders
from privpipe.pipeline.stages.trial import REVEALED, draw_trial
from privpipe.records.schema import ChunkPlan, predict_chunk_memory
from privpipe.report import audit_text
from privpipe.report.console import say, tabulate
from privpipe.store.access.location import shown
from privpipe.store.access.workspace import read_state
from privpipe.store.collections.collection import Collection

MOST_NAMED = 12
"""Features whose names are listed."""

OF_BUDGET = ("budget", "variance", "share", "n_records")
"""What is said of a budget."""


def check_command(
    config: str, cost_of: float = 0.0, price: float = 0.0, score: float = 0.0, time: str = ""
) -> dict[str, Any]:
    """Check without a cluster; then read a few chunks to explain the budget."""
    moment = configuration_file.read_time(time) if time else None
    run = increment_check.check_any(configuration_file.read_options(config, moment))
    # After the check: what metadata refuses is refused without reading a record.
    found = forecast.check_sample(run)
    meaning, subjects = found.meaning, subject_limit.count_subjects(run)
    for name, sentence in _list_lines(run, found):
        say(f"{name:10s} {sentence}")
    if subjects is not None:
        say(f"subjects   {subjects.describe()}")
    cost = forecast_cost(run, round(cost_of)) if cost_of > 0 else None
    if cost is not None:
        say(f"cost       {cost.describe(price)}")
    orders = try_orders(run, score) if score > 0 else None
    if orders is not None:
        say(f"order      {audit_text.say('orders', one=orders)}")
    case, picture = _say_forecast(run)
    if case == "closed":
        say(f"All else is in order. What would pass: privpipe suggest {quote(config)}")
    else:
        say("Everything that can be known without reading all records is in order.")
    return {
        "collection": _summarise(run.collection),
        "training": None if run.trains_on_itself else _summarise(run.training),
        "method": run.method.name,
        "source": run.method.source,
        "unknown_categories": dict(run.collection.unknown_categories),
        "constant_features": list(found.constant),
        "left_out": list_left_out(run),
        "unwritten": audit_text.list_unwritten(run.options.about),
        "gate": _describe_gate(found.gate),
        "forecast": case,
        "cost": None if cost is None else asdict(cost),
        "order": orders,
        "picture": picture,
        "profiles": None,  # what readers of other methods' answers find
        **_by_subject(found.forecast),
        "subjects": None if subjects is None else asdict(subjects),
        "budget": None if meaning is None else {name: getattr(meaning, name) for name in OF_BUDGET},
    }


def _say_forecast(run: Run) -> tuple[str, list[dict[str, str]]]:
    """What the gate will say, and what is gained of noise, configured and raw records."""
    if not run.training.confidential or not run.options.audit.adversaries:
        return "", []
    try:
        trial = draw_trial(run.options, run.training).as_read_by(run.options.method)
        configured = diagnosis.try_configured(run.options, trial)
        picture = diagnosis.picture_trial(trial, configured)
    except PrivpipeError as error:
        if error.code == REVEALED:
            raise
        return "", []  # too few; what stops a run was said before
    say(tabulate(picture, title="what the audit would find about, and what [gate] allows"))
    if configured is None:
        return "", picture
    case, sentence = diagnosis.forecast_gate(configured, trial)
    say(f"forecast   {sentence}")
    return case, picture


def name_next(config: str) -> str:
    """The first place beside a configuration where no suggestion is."""
    names = (f"{config.removesuffix('.toml')}.next{n or ''}.toml" for n in count())
    return next(name for name in names if not os.path.lexists(name))


def suggest_command(config: str, out: str = "") -> dict[str, Any]:
    """Say what a gate would find of a configuration, and write one that would pass.

    Raises
    ------
    InputError
        If there are too few records to try anything.
    """
    options = configuration_file.read_options(config)
    out = out or name_next(config)
    check_new(out)
    # Limits that no one has tried yet are no fault here: what would pass may have others.
    run = increment_check.check_any(options.change("gate", enforce=False))
    trial = draw_trial(options, run.training)
    mine = trial.as_read_by(options.method)
    configured = diagnosis.try_configured(options, mine)
    picture = diagnosis.picture_trial(mine, configured)
    say(tabulate(picture), *(f"{name}  {sentence}" for name, sentence in _list_joined(run)))
    content = {"picture": picture, "tried": [], "out": None, "case": "configured"}
    if configured is not None:
        case, sentence = diagnosis.forecast_gate(configured, mine)
        say(sentence)
        if case == "open" and configured.is_useful:
            say(f"next     privpipe run {quote(config)}")
            return content
    found = diagnosis.diagnose(options, trial, () if configured is None else None)
    say(found.text)
    if found.following is not None:
        write_new(out, found.write(f"Instead of {config}."))
        say(f"next     privpipe run {quote(out)}")
    tried = [rung.describe() for rung in found.tried]
    return content | {"tried": tried, "out": out if found.following else None, "case": found.case}


def _list_joined(run: Run) -> Iterator[tuple[str, str]]:
    """Earlier releases of these records, which no forecast knows."""
    # The newest partition of a release that grows may be in that very release already.
    mine = os.path.dirname(run.release_url) if run.shared_model else ""
    if joined := [o for o in earlier.find_earlier(run).releases if os.path.dirname(o.url) != mine]:
        yield "earlier", audit_text.say("check_earlier", names=[one.name for one in joined])


def _by_subject(found: Forecast | None) -> dict[str, Any]:
    """A forecast by what it is about."""
    return {found.about: asdict(found)} if is_dataclass(found) else {}


def _summarise(collection: Collection) -> dict[str, Any]:
    schema = collection.schema_of_records
    return {
        "url": shown(collection.url),
        "digest": collection.digest,
        "n_records": schema.n_records,
        "n_features": schema.n_features,
        "dtype": schema.dtype,
    }


def _list_lines(run: Run, found: forecast.SampleFindings) -> Iterator[tuple[str, str]]:
    """What was found, a name and a sentence each."""
    meaning, about, constant = found.meaning, found.forecast, found.constant
    for name, collection in (("collection", run.collection), ("training", run.training)):
        if name == "collection" or not run.trains_on_itself:
            yield name, f"{shown(collection.url)}: {describe(collection.schema_of_records)}"
    yield "method", f"{run.method.name} ({run.method.source})"
    if meaning is not None:
        share = _write_share(meaning.share)
        yield "budget", audit_text.say("check_budget", found=meaning, share=share)
    if about is not None:
        yield about.about, about.describe()
    if unknown := audit_text.say("unknown", found=run.collection.unknown_categories):
        yield "names", unknown
    if constant:
        yield "features", audit_text.say("check_constant", names=constant, most=MOST_NAMED)
    if found.dependence:
        yield "features", found.dependence
    yield from (("code", sentence) for sentence in trusted_code.list_unrun(run.options))
    known = read_state(run.release_url)
    if known is not None and (changed := trusted_code.say_changed_code(known.code, run.state.code)):
        yield "code", f"Since run {known.run_id} began, {changed}: `run` refuses it."
    if found.warning:
        yield "gate", found.warning
    elif found.gate is not None:
        yield "gate", found.gate.describe()
    elif run.options.gate.enforce:
        yield "gate", "nothing is attacked."
    else:
        yield "gate", "not enforced: the release will say that it is not gated."
    yield from _list_joined(run)
    for sentence in spend.list_fleeting(run.options):
        yield "account", f"{sentence}: later runs do not know of what is released."
    if unwritten := audit_text.list_unwritten(run.options.about):
        yield "about", f"the officer's page lacks, for [about]: {', '.join(unwritten)}."
    if left_out := list_left_out(run):
        yield "left out", f"{', '.join(left_out)}: variables are released where include names them."


def _describe_gate(needs: forecast.GateNeeds | None) -> dict[str, Any] | None:
    """What the gate needs; None where it is not enforced."""
    if needs is None:
        return None
    # JSON has no infinity.
    return asdict(needs) | {"n_needed": needs.n_needed if needs.n_needed < float("inf") else None}


def list_left_out(run: Run) -> list[str]:
    """Variables of the collection that the release will not hold."""
    held = {*run.options.release.include, *run.collection.attributes}
    return [v.name for v in run.collection.schema_of_records.variables if v.name not in held]


def _write_share(share: float) -> str:
    """A share as a percentage, or as a multiple where that is what it is.

    >>> _write_share(0.0123), _write_share(3e300), _write_share(float("inf"))
    ('1.23% of', '3e+300 times', 'beyond')
    """
    # A target whose prediction does not vary: any budget is beyond it.
    if share == float("inf"):
        return "beyond"
    return f"{share:.2%} of" if share < 10 else f"{share:.3g} times"


def dry_run_command(config: str, moment: datetime | None = None) -> dict[str, Any]:
    """Print the plan of a run."""
    options = configuration_file.read_options(config, moment)
    run = increment_check.check_any(options)
    plan = _plan(run, options.release.path)
    meaning, subjects = forecast.forecast_run(run), subject_limit.count_subjects(run)
    say(audit_text.say("dry_run", plan=plan))
    if meaning is not None:
        say(f"would mean  {meaning.describe()}")
    for sentence in trusted_code.list_unrun(run.options):
        say(f"would run   {sentence}")
    if subjects is not None:
        say(f"would count {subjects.describe()}")
    for what, place in plan["writes"].items():
        say(f"would write {what:8s} {place}")
    return plan | _by_subject(meaning)


def _plan(run: Run, place: str) -> dict[str, Any]:
    schema = run.collection.schema_of_records
    chunks = ChunkPlan(schema.n_records, schema.chunk_rows)
    itemsize = np.dtype(schema.dtype).itemsize
    # Attributes are codes of a few bytes: an upper bound.
    raw = schema.n_records * max(schema.n_features, len(run.collection.attributes)) * itemsize
    return {
        "records": schema.n_records,
        "chunks": chunks.n_chunks,
        "tasks": len(chunks.tasks()),
        "bytes_raw": raw,
        "bytes_per_thread": predict_chunk_memory(
            schema.chunk_rows, schema.n_features, schema.n_features, itemsize
        ),
        "writes": {
            "release": shown(place),
            "model": shown(run.model_url),
            "report": shown(run.report_url),
        },
    }
