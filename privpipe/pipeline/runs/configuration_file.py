"""A configuration file read: TOML, overridden by the environment, every problem at its place.

A key is overridden by ``PRIVPIPE_SECTION__KEY``, as ``PRIVPIPE_METHOD__UTILITY_BUDGET=0.02``.
A logical time is the moment that a run is for, whenever it happens; always with an offset.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from itertools import count
from typing import Any, get_args

from pydantic import ValidationError

from privpipe.errors import OptionError
from privpipe.option_values import admits, reading_only
from privpipe.pipeline.runs.first_look import read_ranges
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.records.schema import suggest
from privpipe.report.audit_text import read_texts
from privpipe.sanitizers import METHODS

MOST_BYTES = 2**20
"""Of a configuration; the rest is not read, and its syntax is refused."""

REMOVED: Mapping[str, str] = read_texts("words.yaml")["removed"]
"""Keys of older versions, and what to do instead."""


def read_options(path: str, logical_time: datetime | None = None) -> RunOptions:
    """Read a configuration file.

    Parameters
    ----------
    path
        A TOML file.
    logical_time
        Fills ``{logical_time}`` in ``[release] path``.

    Raises
    ------
    OptionError
        With file, line and column of every problem, and the closest known key; values that
        were given are never shown.
    """
    options = read_pattern(path)
    return options.change("release", path=fill_time(options.release.path, logical_time))


def read_pattern(path: str) -> RunOptions:
    """The same with ``{logical_time}`` as it is written, for whoever fills in many times."""
    try:
        # A pipe is not waited for, and a device not read to its end.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), encoding="utf-8") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError("no regular file")
            text = file.read(MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        problem = f"{path} cannot be read ({type(error).__name__})."
        remedy = "Give the path of a TOML file."
        raise OptionError(problem, remedy=remedy, code="config-file") from None
    content, given = _parse(text, path), read_environment()
    for section, keys in given.items():
        written = content.setdefault(section, {})
        if isinstance(written, dict):  # else it is refused with all the rest
            content[section] = written | keys
    try:
        # Options may name files of code: reading a configuration runs no code.
        with reading_only():
            options = RunOptions(**content)
    except ValidationError as error:
        found = error.errors(include_input=False)  # values are never shown
    else:
        return options
    problems = [_describe(item, text, path, given) for item in found]
    raise OptionError("\n".join(problems), remedy="\nSee `privpipe schema`.", code="config")


def write_options(options: RunOptions, title: str) -> str:
    """A configuration as TOML that reads as these options, with a title; defaults are left out."""
    lines = [f"# {line}" for line in title.splitlines()]
    for section, keys in options.model_dump(mode="json", exclude_defaults=True).items():
        if section == "compare":
            continue
        if section == "method":
            # Of a union the name says which, though it is the default of its class.
            usual = {one.name: one.default for one in fields(type(options.method))}
            keys = options.model_dump(mode="json")["method"]
            keys = {
                k: v for k, v in keys.items() if k == "name" or v not in (None, usual.get(k, v))
            }
        written = [f"{key} = {write_value(value)}" for key, value in keys.items()]
        lines += ["", f"[{section}]", *written]
    return "\n".join(lines) + "\n"


def write_keys(keys: Mapping[tuple[str, str], Any]) -> str:
    """Keys and values as a configuration would have them.

    >>> write_keys({("audit", "holdout"): 0.5, ("gate", "exposed_max"): 0.03})
    '[audit] holdout = 0.5, [gate] exposed_max = 0.03'
    """
    return ", ".join(f"[{section}] {key} = {value}" for (section, key), value in keys.items())


def write_value(value: Any) -> str:
    """A value in TOML; what is not set has none and is shown by an empty text."""
    if value is None:
        return '""  # not set'
    if isinstance(value, list | tuple):
        return "[" + ", ".join(write_value(item) for item in value) + "]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {write_value(value[key])}' for key in value)}}}"
    # What JSON writes of numbers, flags and texts is TOML, too.
    return json.dumps(value, ensure_ascii=False)


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:  # of a document that is made to exhaust the stack
        problem = "is nested deeper than can be read"
    except tomllib.TOMLDecodeError as error:
        problem = f"is not valid TOML: {error}"
    if open_ := re.findall(r"(?m)^(\w+) = \[?FILL IN", text):  # as `privpipe init` wrote it
        first = (
            " For utility_budget, 0.001 is a first try with target classes: `privpipe check` then "
            "says what share of the prediction's variance it is."
        )
        raise OptionError(
            f"{path} still says FILL IN at {', '.join(open_)}.",
            remedy="The lines above each key say what it means; write a value there."
            + first * ("utility_budget" in open_),
            code="fill-in",
        )
    raise OptionError(f"{path} {problem}.", remedy="Fix that line.", code="config-syntax")


def _list_keys(section: str, methods: Iterable[str] = METHODS) -> dict[str, Any]:
    """Keys of a section, which may be optional or a list, and what each takes.

    Parameters
    ----------
    section
        Of a configuration.
    methods
        Of ``[method]``: the keys of these, a key that several have with all that it may be.
    """
    if section == "method":
        models = [getattr(METHODS[name].options, "__pydantic_fields__", {}) for name in methods]
    else:
        annotation = RunOptions.model_fields[section].annotation
        models = [getattr(kind, "model_fields", {}) for kind in (annotation, *get_args(annotation))]
    found: dict[str, Any] = {}
    for model in models:
        for key, about in model.items():
            found[key] = found[key] | about.annotation if key in found else about.annotation
    return found


def _describe(
    item: Mapping[str, Any], text: str, path: str, given: Mapping[str, Mapping[str, Any]]
) -> str:
    """One problem as ``file:line:column: what``, or with the variable that is to blame."""
    loc = item["loc"]
    # A union adds the method's name to the place of an error.
    tags = [part for part in loc if loc[0] == "method" and part in METHODS]
    names = [str(part) for part in loc if part not in tags]
    place = find_place(text, names)
    where = f"{path}:{place[0]}:{place[1]}" if place else path
    if variable := name_variable(names, given):
        where = f"The environment variable {variable}"
    shown = f"[{names[0]}] {'.'.join(names[1:])}".rstrip()
    if item["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if instead := REMOVED.get(".".join(names)):
            return f"{where}: {names[-1]} is no option any more: {instead}. Delete the line."
        keys = _list_keys(names[0], tags or METHODS) if names[1:] else RunOptions.model_fields
        return f"{where}: {shown} is not known{suggest(names[-1], list(keys))}"
    if item["type"] in ("missing", "missing_argument"):
        return f"{where}: {shown} is missing."
    if item["type"].startswith("union_tag"):
        known = ", ".join(read_ranges()[f"{names[-1]}.name"])
        return f"{where}: [{'.'.join(names)}] name is missing or not known; use one of: {known}."
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message.replace("valid dictionary", "table: {name = value, ...}")
    if item["type"] == "string_pattern_mismatch":  # of a place, the only pattern
        message = "name a place; its only braces may be {logical_time}"
    return f"{where}: {shown}: {message.rstrip('.')}."


PREFIX = "PRIVPIPE_"


def read_environment() -> dict[str, dict[str, Any]]:
    """What the environment sets, by section and key.

    A variable of an unknown section means something else; an unknown key of a known section is
    refused with those of the file.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, text in os.environ.items():
        section, _, key = name.upper().removeprefix(PREFIX).lower().partition("__")
        if name.upper().startswith(PREFIX) and key and section in RunOptions.model_fields:
            found.setdefault(section, {})[key] = _decode(text, _list_keys(section).get(key, Any))
    return found


def name_variable(names: list[str], given: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The variable that set a key, as messages may name it; None if the file did."""
    if len(names) < 2 or names[1] not in given.get(names[0], {}):
        return None
    return f"{PREFIX}{names[0]}__{names[1]}".upper()


def _decode(text: str, annotation: Any) -> Any:
    # A text, or one of some texts, is taken as it is; all else as TOML has it.
    if admits(annotation, str) or str(annotation).startswith("typing.Literal"):
        return text
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        is_list = any(str(part).startswith("tuple") for part in (annotation, *get_args(annotation)))
        return [part.strip() for part in text.split(",") if part.strip()] if is_list else text


# tomllib reports no places of keys: they are found again in the text.
_HEADER = re.compile(r"^\s*\[\[?\s*([^\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^(\s*)(["']?)([A-Za-z0-9_.\-]+)\2\s*=""")


def find_place(text: str, names: Sequence[str]) -> tuple[int, int] | None:
    """Line and column, from 1, of a key by its path; of the nearest table around it otherwise.

    >>> find_place("[method]\\nname = 1\\n  budgte = 2\\n", ["method", "budgte"])
    (3, 3)
    >>> find_place("[method]\\n", ["method", "missing"])
    (1, 1)
    >>> find_place("[[compare]]\\nname = 1\\n[[compare]]\\nname = 2\\n", ["compare", "1", "name"])
    (4, 1)
    """
    best: tuple[int, int] | None = None
    table: list[str] = []
    entries = count()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = header.group(1).split(".")
            if line.lstrip().startswith("[["):  # one of several tables, by its number
                table.append(str(next(entries)))
            if list(names[: len(table)]) == table:
                best = best or (number, line.index("[") + 1)
        elif (key := _KEY.match(line)) and [*table, *key.group(3).split(".")] == list(names):
            return number, len(key.group(1)) + 1
    return best


PLACE = "{logical_time}"
"""In ``[release] path`` it is filled with the logical time of the run."""


def read_time(text: str | datetime) -> datetime:
    """A logical time in UTC, to the second.

    Raises
    ------
    OptionError
        If it is no ISO 8601 time, or has no offset: the same text would be another moment on
        another machine.

    Examples
    --------
    >>> str(read_time("2026-11-22T07:00:00+01:00"))
    '2026-11-22 06:00:00+00:00'
    """
    try:
        time = text if isinstance(text, datetime) else datetime.fromisoformat(text)
        moment = time.astimezone(UTC)
    except (ValueError, OverflowError):  # and the edges of the calendar, beyond which UTC may be
        time = None
    if time is None or time.utcoffset() is None:
        problem = "A logical time is no ISO 8601 time with an offset."
        remedy = 'Give one as "2026-11-22T06:00:00Z" or "2026-11-22T07:00:00+01:00".'
        raise OptionError(problem, remedy=remedy, code="logical-time")
    return moment.replace(microsecond=0)


def fill_time(path: str, time: datetime | None) -> str:
    """A path with the logical time, in UTC, in its place; such names sort as times do.

    Raises
    ------
    OptionError
        If the path needs a logical time and none is given.
    """
    if PLACE not in path:
        return path
    if time is None:
        problem = f"[release] path holds {PLACE}, and this run has no logical time."
        remedy = "Give --time, as 2026-11-22T06:00:00Z; a scheduled run has its schedule's."
        raise OptionError(problem, remedy=remedy, code="logical-time")
    return path.replace(PLACE, time.astimezone(UTC).strftime("%Y%m%dT%H%M%SZ"))


def find_release(place: str) -> str:
    """Where the release is; of a configuration, the one that it writes."""
    return read_options(place).release.path if place.endswith(".toml") else place
