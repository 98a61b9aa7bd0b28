"""``privpipe schema`` and ``privpipe init``: what a configuration may hold, and a first one."""

import math
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_args

import numpy as np
from pydantic import BaseModel, TypeAdapter, ValidationError

from privpipe.command.output import check_new, print_document, write_new
from privpipe.errors import OptionError, PrivpipeError
from privpipe.pipeline.runs import first_look
from privpipe.pipeline.runs.configuration_file import write_keys, write_value
from privpipe.pipeline.runs.run import find_attack_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages import check, forecast
from privpipe.pipeline.stages.diagnosis import diagnose, say_few
from privpipe.pipeline.stages.trial import REVEALED, WEAKEST, draw_trial
from privpipe.protocols import Names
from privpipe.records.schema import CollectionSchema, suggest
from privpipe.report.audit_text import ABOUT
from privpipe.report.audit_text import say as say_sentence
from privpipe.report.console import say, say_raw
from privpipe.sanitizers import METHODS, ladder
from privpipe.store.arrays.layout import companion_url
from privpipe.store.collections import growing_collection as growing
from privpipe.store.collections.collection import Collection

WIDTH = 96
FILL_IN = "FILL IN"

SECTIONS = tuple(name for name in RunOptions.model_fields if name not in ("compare", "about"))
"""Tables of a configuration; ``[[compare]]`` is a list of them, ``[about]`` holds sentences."""


def write_template(
    schema: CollectionSchema, given: Mapping[tuple[str, str], Any], n_gaps: int = 0
) -> str:
    """Write a configuration for a collection.

    Parameters
    ----------
    schema
        What it holds; its variables are listed by name and kind.
    given
        Values by section and key; an empty value counts as none. They are the places of collection
        and release, the name of the method, and whatever else is known. Where no variable is named
        as desired or confidential, both are marked to be filled in.
    n_gaps
        Records with missing cells, which are then filled in.

    Returns
    -------
    toml
        The text of the configuration.

    Raises
    ------
    OptionError
        If there is no such method.
    """
    method = given["method", "name"]
    if method not in METHODS:
        problem = f"There is no method {method!r}{suggest(method, METHODS)}"
        raise OptionError(problem, remedy=f"Use one of: {', '.join(METHODS)}.")
    lines = [
        "# Configuration of privpipe; run it with: privpipe run THIS_FILE",
        "# A commented key shows its default. Where it says 'FILL IN', you decide.",
    ]
    for section in SECTIONS:
        lines += ["", *_write_section(section, schema, given, n_gaps)]
    known = {key: given.get(("about", key)) for key in ABOUT}
    sign = "" if any(known.values()) else "# "
    lines += ["", *_comment("What only the controller knows, for the officer's page")]
    lines += [f"{sign}[about]"]
    lines += [
        f"{sign}{'' if known[key] else '# '}{key} = {write_value(known[key] or '')}  # {meaning}"
        for key, meaning in ABOUT.items()
    ]
    return "\n".join(lines) + "\n"


def _write_section(
    section: str, schema: CollectionSchema, given: Mapping[tuple[str, str], Any], n_gaps: int
) -> Iterator[str]:
    method = METHODS[given["method", "name"]]
    annotation = RunOptions.model_fields[section].annotation
    kinds = (annotation, *get_args(annotation))
    models = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
    about = TypeAdapter(method.options if section == "method" else models[0]).json_schema()
    title = about.get("description", "").partition(": ")[2].splitlines() or [method.source]
    sign = "# " if RunOptions.model_fields[section].default is None else ""
    yield from _comment(title[0][:1].upper() + title[0][1:])
    yield f"{sign}[{section}]"
    if section == "collection":
        yield from _list_variables(schema)
    # What must be predictable and what must not is the question itself; a method may name
    # attributes instead.
    names_attributes = "attributes" in {item.name for item in fields(method.options)}
    labels = [("collection", name) for name in ("desired", "confidential")]
    is_open = not (names_attributes or any(given.get(label) for label in labels))
    for name, item in about["properties"].items():
        chosen, default = given.get((section, name)), item.get("default")
        choices = ", ".join(map(str, item.get("enum", ()))) if section == "method" else ""
        description = "" if (section, name) == ("method", "name") else item.get("description", "")
        yield from _comment(description + (f" One of: {choices}." if choices else ""))
        if chosen is not None and section in ("audit", "gate"):
            # Why a key is not its default, for who has to answer for it.
            why = "init_held_out" if section == "audit" else "init_weaker"
            yield from _comment(say_sentence(why, usual=default))
        if n_gaps and name == "nonfinite":
            yield from _comment(f"{n_gaps:,} records have cells that are missing or not finite.")
        # Whether surrogates are sums of records, with their exact coefficients.
        if name == "single_records" and any(hasattr(one, "sum_records") for one in method.maps):
            yield from _comment(say_sentence("init_unprotected"))
            default = "unprotected"
        if chosen:
            yield f"{sign}{name} = {write_value(chosen)}"
        elif name in about.get("required", ()) or (is_open and (section, name) in labels):
            yield f"{sign}{name} = {f'[{FILL_IN}]' if item.get('type') == 'array' else FILL_IN}"
        else:
            # Of a section that is commented itself, a default is commented twice: uncommenting the
            # section leaves it where it was.
            yield f"{sign}# {name} = {write_value(default)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), WIDTH)]


def _list_variables(schema: CollectionSchema) -> list[str]:
    """The variables by name and kind; what their categories are called is withheld."""
    kinds = [
        f"{v.name} ({'numeric' if v.categories is None else f'{len(v.categories)} categories'})"
        for v in schema.variables
    ]
    size = f"{schema.n_records:,} records of {schema.n_features} features."
    return _comment(f"{size} Variables: {', '.join(kinds) or 'none'}.")


RIDGE = 1e-6
"""Added where features depend on one another; see `NullSpaceOptions`."""

# Metres and centimetres differ by 100; spreads of one unit hardly ever by 30.
SCALES = 30.0
"""Ratio of deviations from which features are surely not in one unit."""

# A hundredth: predictions stay, and there is room to remove something.
SHARE = 0.01
"""Share of the variance of the target prediction that a first configuration gives away."""


def schema_command() -> dict[str, Any]:
    """Print the JSON schema of the configuration."""
    dialect = "https://json-schema.org/draft/2020-12/schema"
    schema = {"$schema": dialect, **RunOptions.model_json_schema()}
    print_document(schema)
    return schema


def init_command(
    collection: str,
    out: str,
    *,
    method: str,
    desired: Names,
    confidential: Names,
    release: str,
    subject: str = "",
) -> dict[str, Any]:
    """Write a commented configuration; an existing file is never overwritten.

    Without a method, the first that suits is written where only variables to hide are named, and
    the first of all otherwise.
    """
    if out != "-":
        check_new(out)
    opened = growing.open_whole_collection(collection)
    schema = opened.schema_of_records
    for name in (*desired, *confidential):
        if schema.variable(name).column.n_categories == 1:
            raise forecast.refuse_constant([name])
    if subject:
        schema.variable(subject)
    # Without features a target is one of the answers that a mapping releases.
    named = () if desired and schema.n_features else confidential
    suited, values = forecast.suggest_method(opened, named)
    chosen, method = method, method or suited
    release = release or companion_url(collection, "release.zarr")
    n_gaps = _count_gaps(collection, method)
    uses = growing.read_uses(collection)
    records: dict[str, Any] = {"path": collection, "desired": desired, "confidential": confidential}
    records["subject"] = subject or uses.get("subject")
    budget, first = _suggest_budget(records, release, method, n_gaps)
    gate = _suggest_gate(records, method)
    proposed, said = None, ""
    if desired and schema.n_features and confidential and not chosen:
        say("Trying what would pass: seconds, or minutes where classes are many.", stderr=True)
        proposed, said, limits = _try_methods(records, release, gate)
        gate = limits if said else gate
    if proposed is None:
        scales = method in METHODS and METHODS[method].options.scales
        standardise = scales and _differ_in_scale(opened)
        suggested = values if method == suited and values else first
    else:
        method, budget = str(proposed.method.name), None
        standardise = proposed.collection.standardise
        suggested = {k: v for k, v in asdict(proposed.method).items() if v is not None}
    weighs = method in METHODS and METHODS[method].options.weighs
    given: dict[tuple[str, str], Any] = {
        **{("collection", name): value for name, value in records.items()},
        ("collection", "weights"): uses.get("weights") if weighs else None,
        ("collection", "standardise"): standardise,
        # What holds on average may not of the latest records: each period is audited by itself.
        ("about", "groups"): uses.get("time"),
        ("release", "path"): release,
        ("release", "nonfinite"): "impute" if n_gaps else None,
        ("method", "name"): method,
        ("method", "utility_budget"): budget,
        **{("method", name): value for name, value in suggested.items()},
    }
    text = write_template(schema, given | gate, n_gaps)
    # Comments explain the mark itself.
    complete = not any(FILL_IN in one for one in text.splitlines() if not one.startswith("#"))
    if out == "-":
        say_raw(text, end="")
    else:
        write_new(out, text)
        _explain_written(schema.n_records, n_gaps, gate, said, standardise=standardise)
        todo = "" if complete else f"fill in what is marked {FILL_IN}, then: "
        if said and proposed is None:  # nothing passed, and running it would say so at length
            todo += "the gate would refuse it. Where you change it: "
        say(f"{out}: method {method}; {todo}privpipe check {out}, privpipe run {out}")
    return {"path": out, "complete": complete, "text": text}


def _explain_written(
    n: int, n_gaps: int, gate: Mapping[tuple[str, str], Any], said: str, *, standardise: bool
) -> None:
    """Why a configuration has what is no default: what the records need, and what passed."""
    if n_gaps:
        say(say_sentence("gaps", n=n_gaps, n_records=n))
    if standardise:
        say("Features are put on one scale: [collection] standardise = true is written.")
    if said:
        say(said)
    elif gate:
        raised, is_audit = write_keys(gate), all(section == "audit" for section, _ in gate)
        say(say_sentence("raised", is_audit=is_audit, n=n, keys=raised))


def _try_methods(
    records: Mapping[str, Any], release: str, gate: Mapping[tuple[str, str], Any]
) -> tuple[RunOptions | None, str, dict[tuple[str, str], Any]]:
    """What would pass, tried: its configuration, what is said of it, and keys of audit and gate.

    Nothing is said where there are too few records to try anything.
    """
    audited = {key: value for (section, key), value in gate.items() if section == "audit"}
    try:
        place = {"path": release}
        options = RunOptions(collection=records, method=ladder.LAST, release=place, audit=audited)
        training = _open_labelled(records)
        trial = draw_trial(options, training)
        # A limit that not even noise meets says nothing of a release.
        noise = trial.noise.find_limits()
        for needs in forecast.plan_gate(options, training).plan_limits():
            # Of all attacks, more than a trial runs, the luckiest decides.
            least = min(1.0, math.ceil(100 * needs.reaches) / 100)
            noise[needs.key] = max(noise.get(needs.key, 0.0), least)
        options = options.change("gate", **noise)
        found = diagnose(options, replace(trial, options=find_attack_options(options)), ())
    except (PrivpipeError, ValidationError) as error:
        if isinstance(error, PrivpipeError) and error.code == REVEALED:
            raise
        return None, "", {}  # `check` will say what is wrong
    usual, final = RunOptions.model_fields["gate"].default, found.following or options

    def list_weaker(chosen: RunOptions) -> dict[tuple[str, str], Any]:
        """Limits that allow more than usual."""
        values = {key: getattr(chosen.gate, key) for key in WEAKEST}
        return {("gate", k): value for k, value in values.items() if value > getattr(usual, k)}

    said, keys = "", {("audit", key): value for key, value in audited.items()}
    # Never weaker than what means anything without saying so.
    if not trial.noise.passes(WEAKEST):
        said = f"{say_few(options, trial, WEAKEST)} Limits that noise meets are written. "
    elif raised := list_weaker(options):
        said = f"So few records can show no less than {write_keys(raised)}: that is written. "
    if keys:
        said += f"To show that, {write_keys(keys)} is written. "
    said += found.text
    if found.following is not None and found.following.method.name == ladder.LAST["name"]:
        said += " It releases the predicted target and nothing else: --method writes another."
    return found.following, said, keys | list_weaker(final)


def _open_labelled(records: Mapping[str, Any]) -> Collection:
    named = {role: records[role] for role in ("desired", "confidential")}
    return growing.open_whole_collection(records["path"], **named)


def _suggest_budget(
    records: Mapping[str, Any], release: str, method: str, n_gaps: int
) -> tuple[float | None, dict[str, Any]]:
    """1 % of the variance of the target prediction, to two digits, and what else the fit needs.

    A small ridge where the features of a few chunks do not vary, or depend on one another. Columns
    of 0 and 1 that are made of one column do. Nothing where that is unknown.
    """
    if not (method in METHODS and "utility_budget" in _options_of(method) and records["desired"]):
        return None, {}
    try:
        options = RunOptions(
            collection=records,
            method={"name": method, "utility_budget": 1.0},
            # Nothing is released, least of all where another release is.
            release={"path": f"{release}.none", "nonfinite": "impute" if n_gaps else "fail"},
            gate={"enforce": False},
        )
        meaning = forecast.explain_budget(check.check_stage(options))
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return None, {}
    first = {"ridge": RIDGE} if meaning is not None and meaning.dependence else {}
    if meaning is None or not meaning.variance > 0:
        return None, first
    # Two digits: more would pretend that the sample says so.
    return float(f"{SHARE * meaning.variance:.2g}"), first


def _suggest_gate(records: Mapping[str, Any], method: str) -> dict[tuple[str, str], Any]:
    """Limits that can be shown, where those of the gate cannot; none where that is unknown.

    They depend on how many records there are and how rare the classes, on no option of a method.
    Where surrogates are sums of records, they depend on what is attacked as well.
    """
    if method not in METHODS:
        return {}
    try:
        chosen: dict[str, Any] = {"name": method}
        # The fewest: how many does not matter here. Of noisy ones variables are judged as of rows.
        if "n_surrogates" in _options_of(method) and "epsilon" not in _options_of(method):
            found = growing.open_whole_collection(records["path"])
            chosen["n_surrogates"] = found.schema_of_records.n_features + 1
        else:  # any of rows that can do without options: these do not matter
            rows = (name for name, one in METHODS.items() if one.releases == "rows")
            chosen["name"] = next(name for name in rows if first_look.read_ranges().get(name) == [])
        place = companion_url(records["path"], "release.zarr")
        options = RunOptions(collection=records, method=chosen, release={"path": place})
        return forecast.plan_gate(options, _open_labelled(records)).suggest()
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return {}


def _count_gaps(collection: str, method: str) -> int:
    """Records whose features are not all there, where the method would stumble over them."""
    if method not in METHODS or METHODS[method].releases == "surrogate":
        return 0  # surrogates are made of records with gaps
    # A missing attribute is a category of its own.
    return 0 if "attributes" in _options_of(method) else growing.count_gaps(collection)[0]


def _differ_in_scale(collection: Collection) -> bool:
    """Whether features of a few chunks have deviations that differ by more than `SCALES`."""
    x = np.asarray(forecast.read_sample(collection).features, np.float64)
    # Infinity too: a deviation with it is none.
    x[~np.isfinite(x)] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a feature without any value
        deviations = np.nanstd(x, axis=0) if x.size else np.zeros(0)
    varying = deviations[deviations > 0]
    # Constant features have no scale.
    return bool(varying.size) and bool(varying.max() > SCALES * varying.min())


def _options_of(method: str) -> set[str]:
    return {item.name for item in fields(METHODS[method].options)}
