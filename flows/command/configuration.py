"""``privpipe schema`` and ``privpipe init``: what a configuration may hold, and a first one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from pydantic import ValidationError

from privpipe.errors import PrivpipeError, RankError, StoreError
from privpipe.report.console import say, say_raw
from privpipe.sanitizers import METHODS
from privpipe.store.arrays.headers import companion_url
from privpipe.store.collections.collection import open_collection
from privpipe_flows.command.output import print_document
from privpipe_flows.runs.configuration.run_options import RunOptions
from privpipe_flows.runs.configuration.template import FILL_IN, write_template
from privpipe_flows.runs.run import Run
from privpipe_flows.runs.stages.budget import explain_budget
from privpipe_flows.runs.stages.check import check_stage
from privpipe_flows.runs.stages.first_gate import suggest_gate
from privpipe_flows.runs.stages.preview import suggest_method

__all__ = ["init_command", "schema_command"]

RIDGE = 1e-6
"""Added where features depend on one another; see `NullSpaceOptions`."""

SHARE = 0.01
"""Share of the variance of the desired prediction that a first configuration gives away."""


def schema_command(*, as_json: bool) -> dict[str, Any]:
    """Print the JSON schema of the configuration."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **RunOptions.model_json_schema(),
    }
    if not as_json:
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
    as_json: bool,
) -> dict[str, Any]:
    """Write a commented configuration; an existing file is never overwritten.

    Without a method, the first that suits is written where only variables to hide are named, and
    the first of all otherwise.
    """
    opened = open_collection(collection)
    schema = opened.schema_of_records
    for name in (*desired, *confidential):
        schema.variable(name)
    suited, values = suggest_method(opened, () if desired else confidential)
    method = method or suited
    release = release or companion_url(collection, "release.zarr")
    budget, first = _suggest_budget(collection, release, method, desired, confidential)
    gate = _suggest_gate(collection, release, method, desired, confidential, budget)
    text = write_template(
        collection,
        schema,
        release=release,
        method=method,
        desired=desired,
        confidential=confidential,
        budget=budget,
        values=values if method == suited and values else first,
        gate=gate,
    )
    answer = {"path": out, "complete": FILL_IN not in _uncommented(text), "text": text}
    if out != "-":
        _write_new(out, text)
    elif not as_json:
        say_raw(text, end="")
    if out != "-" and not as_json:
        todo = "" if answer["complete"] else f"fill in what is marked {FILL_IN}, then: "
        say(f"{out}: method {method}; {todo}privpipe check {out}, privpipe run {out}")
        if gate:
            chosen = ", ".join(f"[{s}] {key} = {value}" for (s, key), value in gate.items())
            say(
                f"{schema.n_records:,} records can hardly show less than {chosen}: these are "
                "written, and will stand in the release. For smaller limits, take more records."
            )
    return answer


def _uncommented(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _suggest_budget(
    collection: str,
    release: str,
    method: str,
    desired: Sequence[str],
    confidential: Sequence[str],
) -> tuple[float | None, dict[str, Any]]:
    """1 % of the variance of the desired prediction, to two digits, and what else the fit needs.

    A small ridge where the features of a few chunks depend on one another, as columns of 0 and 1
    made of one column do, or do not vary. Nothing where that is unknown.
    """
    if method not in METHODS or "utility_budget" not in _options_of(method) or not desired:
        return None, {}
    try:
        options = RunOptions(
            collection={"path": collection, "desired": desired, "confidential": confidential},
            method={"name": method, "utility_budget": 1.0},
            release={"path": release},
            gate={"enforce": False},  # nothing is released
        )
        run = check_stage(options)
        meaning = explain_budget(run)
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return None, {}
    first = {"ridge": RIDGE} if _depend(run) else {}
    if meaning is None or not meaning.variance > 0:
        return None, first
    return float(f"{SHARE * meaning.variance:.2g}"), first


def _suggest_gate(
    collection: str,
    release: str,
    method: str,
    desired: Sequence[str],
    confidential: Sequence[str],
    budget: float | None,
) -> dict[tuple[str, str], Any]:
    """Limits that can be shown, where those of the gate cannot; none where that is unknown."""
    if method not in METHODS:
        return {}
    first: dict[str, Any] = {} if budget is None else {"utility_budget": budget}
    try:
        if "n_surrogates" in _options_of(method):  # the fewest: how many does not matter here
            first["n_surrogates"] = open_collection(collection).schema_of_records.n_features + 1
        options = RunOptions(
            collection={"path": collection, "desired": desired, "confidential": confidential},
            method={"name": method, **first},
            release={"path": release},
            gate={"enforce": False},
        )
        return suggest_gate(options, check_stage(options).training)
    except (PrivpipeError, ValidationError):  # `check` will say what is wrong
        return {}


def _depend(run: Run) -> bool:
    """Whether the fit refuses the features of a few chunks."""
    try:
        explain_budget(run, strict=True)
    except RankError:
        return True
    return False


def _options_of(method: str) -> set[str]:
    return {item.name for item in fields(METHODS[method].options)}


def _write_new(out: str, text: str) -> None:
    problem = ""
    try:
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        problem = "exists"
    except OSError as error:
        problem = f"cannot be written ({error.strerror})"
    if problem:
        raise StoreError(f"{out} {problem}.", remedy="Choose another place.", code="exists")
