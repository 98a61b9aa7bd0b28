"""A commented configuration for a collection, written from the options' own descriptions.

Keys that must be filled in are written out, all others are comments that show their defaults;
so the file is short to read and no default is frozen into it.
"""

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter
from pydantic_core import PydanticUndefined

from privpipe.errors import OptionError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import CollectionSchema, suggest
from privpipe.sanitizers import METHODS

WIDTH = 96
FILL_IN = "FILL IN"

SECTIONS = ("collection", "training", "method", "release", "cluster", "audit", "gate")


def write_template(
    path: str,
    schema: CollectionSchema,
    *,
    release: str,
    method: str,
    desired: Sequence[str] = (),
    confidential: Sequence[str] = (),
    budget: float | None = None,
    values: Mapping[str, Any] | None = None,
    gate: Mapping[tuple[str, str], Any] | None = None,
    n_gaps: int = 0,
    standardise: bool = False,
) -> str:
    """Write a configuration for a collection.

    Parameters
    ----------
    path
        The collection.
    schema
        What it holds; its variables are listed by name and kind.
    release
        Where the release will be.
    method
        Method whose options are written.
    desired, confidential
        Variables to keep and to hide; where neither is named, both are marked to be filled in.
    budget
        A first ``utility_budget``, for methods that have one.
    values
        First values of other options of the method.
    gate
        What the audit must hold out and the gate allow, by section and key, where the defaults
        need more records than there are.
    n_gaps
        Records with missing cells, which are then filled in.
    standardise
        Standardise the features.

    Returns
    -------
    toml
        The text of the configuration.

    Raises
    ------
    OptionError
        If there is no such method.
    InputError
        If there is no such variable.
    """
    if method not in METHODS:
        raise OptionError(
            f"There is no method {method!r}{suggest(method, METHODS)}.",
            remedy=f"Use one of: {', '.join(METHODS)}.",
        )
    # A name that is not there is refused now, not when the file is used.
    for name in (*desired, *confidential):
        schema.variable(name)
    given = {
        ("collection", "path"): path,
        ("collection", "desired"): list(desired),
        ("collection", "confidential"): list(confidential),
        ("release", "path"): release,
        ("collection", "standardise"): standardise or None,
        ("release", "nonfinite"): "impute" if n_gaps else None,
        ("method", "name"): method,
        ("method", "utility_budget"): budget,
        **{("method", name): value for name, value in (values or {}).items()},
        **(gate or {}),
    }
    lines = [
        "# Configuration of privpipe; run it with: privpipe run THIS_FILE",
        "# A commented key shows its default. Where it says 'FILL IN', you decide.",
    ]
    for section in known_sections():
        lines += ["", *_write_section(section, schema, given, method, n_gaps)]
    return "\n".join(lines) + "\n"


def known_sections() -> list[str]:
    """Sections of a configuration in the order in which they are read best."""
    names = [name for name in RunOptions.model_fields if name != "compare"]  # a list of sections
    return [name for name in SECTIONS if name in names] + [n for n in names if n not in SECTIONS]


def _write_section(
    section: str,
    schema: CollectionSchema,
    given: Mapping[tuple[str, str], Any],
    method: str,
    n_gaps: int,
) -> list[str]:
    title, keys = _describe_section(section, method)
    optional = RunOptions.model_fields[section].default is None
    lines = [*_comment(title[:1].upper() + title[1:]), f"{'# ' if optional else ''}[{section}]"]
    if section == "collection":
        lines += _list_variables(schema)
    # What must be predictable and what must not is the question itself; a method may name
    # attributes instead.
    names_none = not (given["collection", "desired"] or given["collection", "confidential"])
    is_open = section == "collection" and names_none and not _names_attributes(method)
    for name, description, default in keys:
        chosen = given.get((section, name))
        lines += _comment(description)
        if chosen is not None and section in ("audit", "gate"):
            lines += _comment(_explain_weaker(section, default))
        if n_gaps and name == "nonfinite":
            lines += _comment(f"{n_gaps:,} records have cells that are missing or not finite.")
        if name == "single_records" and _mixes_records(method):
            lines += _comment(_UNPROTECTED)
            default = "unprotected"
        if is_open and name in ("desired", "confidential"):
            default = [PydanticUndefined]
        lines.append(_write_key(name, chosen, default, "# " * optional))
    return lines


def _describe_section(section: str, method: str) -> tuple[str, Iterable[tuple[str, str, Any]]]:
    """Its title, and each of its keys with a description and a default."""
    if section == "method":
        return METHODS[method].source, _method_keys(method)
    annotation = RunOptions.model_fields[section].annotation
    kinds = (annotation, *get_args(annotation))
    model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
    title = (model.__doc__ or "").partition(": ")[2].strip().splitlines()[0]
    return title, (
        (name, item.description or "", item.get_default(call_default_factory=True))
        for name, item in model.model_fields.items()
    )


_UNPROTECTED = (
    "THIS METHOD DOES NOT PROTECT SINGLE RECORDS. The gate stays closed until you accept that: "
    "take the sign # away from the next line if no one who may get the release knows the other "
    "records, or nothing in a record needs protection. The acceptance is printed in the release."
)


def _mixes_records(method: str) -> bool:
    """Whether surrogates are sums of records, with their exact coefficients."""
    return any(hasattr(one, "sum_records") for one in METHODS[method].maps)


def _explain_weaker(section: str, default: Any) -> str:
    """Why a key of the gate is not its default, for who has to answer for it."""
    if section == "audit":
        return f"More than usual ({default}): with fewer held out, the gate could not open."
    return (
        f"WEAKER THAN THE DEFAULT, {default}: not even what reveals nothing could be shown "
        "to keep within the default with so few records of such classes. A release that passes is "
        "only known to reveal no more than this; take more records to show less."
    )


def _names_attributes(method: str) -> bool:
    return "attributes" in {item.name for item in fields(METHODS[method].options)}


def _method_keys(method: str) -> Iterable[tuple[str, str, Any]]:
    schema = TypeAdapter(METHODS[method].options).json_schema()
    for name, about in schema["properties"].items():
        required = name in schema.get("required", ())
        choices = ", ".join(map(str, about.get("enum", ())))
        description = str(about.get("description", ""))
        description += f" One of: {choices}." if choices else ""
        missing = [PydanticUndefined] if about.get("type") == "array" else PydanticUndefined
        default = missing if required else about.get("default")
        yield name, "" if name == "name" else description, default


def _write_key(name: str, given: Any, default: Any, sign: str) -> str:
    if given:
        return f"{sign}{name} = {_as_toml(given)}"
    if default in (PydanticUndefined, [PydanticUndefined]):
        return f"{sign}{name} = {f'[{FILL_IN}]' if isinstance(default, list) else FILL_IN}"
    # Of a section that is commented itself, a default is commented twice: uncommenting the section
    # leaves it where it was.
    return f"{sign}# {name} = {_as_toml(default)}"


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
