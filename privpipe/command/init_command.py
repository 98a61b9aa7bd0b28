"""``privpipe schema`` and ``privpipe init``: what a configuration may hold, and a first one."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from privpipe.command.output import print_document
from privpipe.errors import PrivpipeError, StoreError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.runs.template import FILL_IN, write_template
from privpipe.pipeline.stages import forecast
from privpipe.pipeline.stages.check import check_stage
from privpipe.protocols import Method
from privpipe.report.console import say, say_raw
from privpipe.sanitizers import METHODS
from privpipe.store.arrays.layout import companion_url
from privpipe.store.collections.collection import Collection
from privpipe.store.collections.growing_collection import open_whole_collection
from privpipe.store.collections.writing import read_statistics

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
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RunOptions.model_json_schema(),
    }
    print_document(schema)
    return schema


def init_command(
    collection: str,
    out: str,
    *,
    method: str,
    desired: Sequence[str],
    confidential: Sequence[str],
    release: str,
) -> dict[str, Any]:
    """Write a commented configuration; an existing file is never overwritten.

    Without a method, the first that suits is written where only variables to hide are named, and
    the first of all otherwise.
    """
    opened = open_whole_collection(collection)
    schema = opened.schema_of_records
    for name in (*desired, *confidential):
        schema.variable(name)
    suited, values = forecast.suggest_method(opened, () if desired else confidential)
    method = method or suited
    release = release or companion_url(collection, "release.zarr")
    n_gaps = _count_gaps(collection, method)
    budget, first = _suggest_budget(collection, release, method, desired, confidential, n_gaps)
    gate = _suggest_gate(collection, method, desired, confidential)
    standardise = method in METHODS and METHODS[method].options.scales and _differ_in_scale(opened)
    suggested = values if method == suited and values else first
    given = {
        ("collection", "path"): collection,
        ("collection", "desired"): list(desired),
        ("collection", "confidential"): list(confidential),
        ("collection", "standardise"): standardise,
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
        _write_new(out, text)
        if n_gaps:
            say(
                f"{n_gaps:,} of {schema.n_records:,} records have cells that are missing: "
                '[release] nonfinite = "impute" is written, which fills in means.'
            )
        if standardise:
            say("Features differ in scale: [collection] standardise = true is written.")
        if gate:
            say(_explain_gate(schema.n_records, gate))
        todo = "" if complete else f"fill in what is marked {FILL_IN}, then: "
        say(f"{out}: method {method}; {todo}privpipe check {out}, privpipe run {out}")
    return {"path": out, "complete": complete, "text": text}


def _suggest_budget(
    collection: str,
    release: str,
    method: str,
    desired: Sequence[str],
    confidential: Sequence[str],
    n_gaps: int,
) -> tuple[float | None, dict[str, Any]]:
    """1 % of the variance of the target prediction, to two digits, and what else the fit needs.

    A small ridge where the features of a few chunks depend on one another, as columns of 0 and 1
    made of one column do, or do not vary. Nothing where that is unknown.
    """
    if method not in METHODS or "utility_budget" not in _options_of(method) or not desired:
        return None, {}
    try:
        options = RunOptions(
            collection={"path": collection, "desired": desired, "confidential": confidential},
            method={"name": method, "utility_budget": 1.0},
            release={"path": release, "nonfinite": "impute" if n_gaps else "fail"},
            gate={"enforce": False},  # nothing is released
        )
        meaning = forecast.explain_budget(check_stage(options))
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return None, {}
    first = {"ridge": RIDGE} if meaning is not None and meaning.dependence else {}
    if meaning is None or not meaning.variance > 0:
        return None, first
    # Two digits: more would pretend that the sample says so.
    return float(f"{SHARE * meaning.variance:.2g}"), first


def _suggest_gate(
    collection: str, method: str, desired: Sequence[str], confidential: Sequence[str]
) -> dict[tuple[str, str], Any]:
    """Limits that can be shown, where those of the gate cannot; none where that is unknown.

    They depend on how many records there are and how rare the classes, on no option of a method;
    where surrogates are sums of records, on what is attacked as well.
    """
    if method not in METHODS:
        return {}
    try:
        chosen: dict[str, Any] = {"name": method}
        if "n_surrogates" in _options_of(method):  # the fewest: how many does not matter here
            found = open_whole_collection(collection)
            chosen["n_surrogates"] = found.schema_of_records.n_features + 1
        elif METHODS[method].releases == "rows":  # any of rows: options do not matter
            chosen["name"] = next(one.name for one in METHODS.values() if _needs_nothing(one))
        options = RunOptions(
            collection={"path": collection, "desired": desired, "confidential": confidential},
            method=chosen,
            release={"path": companion_url(collection, "release.zarr")},
        )
        training = open_whole_collection(collection, desired=desired, confidential=confidential)
        rarest = forecast.measure_rarest(options, training)
        return forecast.GateForecast(options, training, rarest=rarest).suggest()
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return {}


def _needs_nothing(method: Method) -> bool:
    """Whether a method of rows can do without any option."""
    options = TypeAdapter(method.options).json_schema()
    return method.releases == "rows" and not set(options.get("required", ())) - {"name"}


def _count_gaps(collection: str, method: str) -> int:
    """Records whose features are not all there, where the method would stumble over them."""
    if method not in METHODS or METHODS[method].releases == "surrogate":
        return 0  # surrogates are made of records with gaps
    # A missing attribute is a category of its own.
    reads_codes = "attributes" in _options_of(method)
    return 0 if reads_codes else read_statistics(collection).records_not_finite


def _explain_gate(n_records: int, gate: Mapping[tuple[str, str], Any]) -> str:
    """Why keys of the gate are not their defaults."""
    if all(section == "audit" for section, _ in gate):
        return (
            "The limits of the gate can only be shown with more held-out records than usual: "
            f"{forecast.write_keys(gate)} is written."
        )
    return (
        f"{n_records:,} records are too few, for classes as rare as these, to show the usual "
        "limits of the gate. Weaker ones are written, and will be reported in the release: "
        f"{forecast.write_keys(gate)}. For stricter limits, take more records."
    )


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


def _write_new(out: str, text: str) -> None:
    try:
        # "x": never over a configuration that is there, also where two processes write.
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        exists = isinstance(error, FileExistsError)
        problem = "exists" if exists else f"cannot be written ({error.strerror})"
        raise StoreError(
            f"{out} {problem}.", remedy="Choose another place.", code="exists"
        ) from None
