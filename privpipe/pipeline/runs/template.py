"""A commented configuration for a collection, written from the options' own descriptions.

Keys that must be filled in are written out, all others are comments that show their defaults;
so the file is short to read and no default is frozen into it.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter

from privpipe.errors import OptionError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import CollectionSchema, suggest
from privpipe.sanitizers import METHODS

WIDTH = 96
FILL_IN = "FILL IN"

SECTIONS = tuple(name for name in RunOptions.model_fields if name != "compare")
"""Tables of a configuration; ``[[compare]]`` is a list of them."""


def write_template(
    schema: CollectionSchema, given: Mapping[tuple[str, str], Any], n_gaps: int = 0
) -> str:
    """Write a configuration for a collection.

    Parameters
    ----------
    schema
        What it holds; its variables are listed by name and kind.
    given
        Values by section and key, of which an empty one is none: the places of collection and
        release, the name of the method, and whatever else is known. Where no variable is named as
        desired or confidential, both are marked to be filled in.
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
        raise OptionError(
            f"There is no method {method!r}{suggest(method, METHODS)}.",
            remedy=f"Use one of: {', '.join(METHODS)}.",
        )
    lines = [
        "# Configuration of privpipe; run it with: privpipe run THIS_FILE",
        "# A commented key shows its default. Where it says 'FILL IN', you decide.",
    ]
    for section in SECTIONS:
        lines += ["", *_write_section(section, schema, given, n_gaps)]
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
            yield from _comment(_explain_weaker(section, default))
        if n_gaps and name == "nonfinite":
            yield from _comment(f"{n_gaps:,} records have cells that are missing or not finite.")
        # Whether surrogates are sums of records, with their exact coefficients.
        if name == "single_records" and any(hasattr(one, "sum_records") for one in method.maps):
            yield from _comment(_UNPROTECTED)
            default = "unprotected"
        if chosen:
            yield f"{sign}{name} = {_as_toml(chosen)}"
        elif name in about.get("required", ()) or (is_open and (section, name) in labels):
            yield f"{sign}{name} = {f'[{FILL_IN}]' if item.get('type') == 'array' else FILL_IN}"
        else:
            # Of a section that is commented itself, a default is commented twice: uncommenting the
            # section leaves it where it was.
            yield f"{sign}# {name} = {_as_toml(default)}"


_UNPROTECTED = (
    "THIS METHOD DOES NOT PROTECT SINGLE RECORDS. The gate stays closed until you accept that: "
    "take the sign # away from the next line if no one who may get the release knows the other "
    "records, or nothing in a record needs protection. The acceptance is printed in the release."
)


def _explain_weaker(section: str, default: Any) -> str:
    """Why a key of the gate is not its default, for who has to answer for it."""
    if section == "audit":
        return f"More than usual ({default}): with fewer held out, the gate could not open."
    return (
        f"WEAKER THAN THE DEFAULT, {default}: not even what reveals nothing could be shown "
        "to keep within the default with so few records of such classes. A release that passes is "
        "only known to reveal no more than this; take more records to show less."
    )


def _as_toml(value: Any) -> str:
    """A value in TOML; what is not set has none and is shown by an empty text."""
    if value is None:
        return '""  # not set'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_as_toml(item) for item in value) + "]"
    # What JSON writes of numbers, flags and texts is TOML, too.
    return json.dumps(value, ensure_ascii=False)


def _comment(text: str) -> list[str]:
    flat = " ".join(text.split())
    return [f"# {line}" for line in textwrap.wrap(flat, WIDTH)]


def _list_variables(schema: CollectionSchema) -> list[str]:
    """The variables by name and kind; what their categories are called is withheld."""
    kinds = [
        f"{v.name} ({'numeric' if v.categories is None else f'{len(v.categories)} categories'})"
        for v in schema.variables
    ]
    size = f"{schema.n_records:,} records of {schema.n_features} features."
    return _comment(f"{size} Variables: {', '.join(kinds) or 'none'}.")
