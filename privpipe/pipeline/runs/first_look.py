"""A first look at what a command was given, before any library loads: is it there, is it allowed?

It decides what may start at once, and refuses nothing. What looks wrong is refused, with its
reason, by whoever reads it in earnest, and nothing was started for it.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from privpipe.store.access.location import local_path

RANGES = Path(__file__).with_name("ranges.json")
"""All options, with the two ends of numbers and all texts of choices: the classes that know them
load in seconds. ``make errors`` writes it."""


def looks_whole(given: dict[str, str]) -> bool:
    """Whether every place is there, every variable that ``[collection]`` names, and every number
    and choice is allowed.

    Parameters
    ----------
    given
        Arguments of a command by name. What only a network would show is taken to be there.
    """
    places = [given[name] for name in ("config", "model", "source") if given.get(name, "-") != "-"]
    with suppress(Exception):  # whoever reads it in earnest says what is wrong
        if os.path.isfile(given.get("config", "")):  # a pipe would be waited for
            content = _override(tomllib.loads(Path(given["config"]).read_text("utf-8")))
            if list_outside(content):
                return False
            section = content["collection"]
            both = {"COLLECTION": section, "TRAINING": content.get("training", section)}
            # A place is a text, whatever it would be in TOML.
            places += [os.environ.get(f"PRIVPIPE_{k}__PATH", v["path"]) for k, v in both.items()]
            document = Path(local_path(places[-1]) or os.devnull, "zarr.json")
            if document.exists():  # else it is remote, or grows by partitions
                about = json.loads(document.read_text("utf-8"))["attributes"]["privpipe"]
                named = {*section.get("desired", ()), *section.get("confidential", ())}
                if not named <= {variable["name"] for variable in about["schema"]["variables"]}:
                    return False
        return all(path is None or os.path.exists(path) for path in map(local_path, places))
    return False


def list_outside(content: Mapping[str, Any]) -> list[str]:
    """Options that are unknown, missing, out of their range or no known choice.

    By method or section.

    >>> list_outside({"method": {"name": "null_space", "ridge": -1.0, "rul": "greedy"}})
    ['.collection', '.release', 'null_space.ridge', 'null_space.rul', 'null_space.utility_budget']
    """
    ranges, found = read_ranges(), list[str]()
    for name, table in _list_tables(content, ""):
        tag = table.get("name", name)
        for key, value in table.items():  # a method's name is by the table that has it
            known = name if key == "name" else tag
            if known in ranges and not _admits(ranges.get(f"{known}.{key}"), value):
                found.append(f"{known}.{key}")
        found += [f"{tag}.{key}" for key in ranges.get(tag, ()) if key not in table]
    return found


@cache
def read_ranges() -> dict[str, list[Any]]:
    """What is allowed by method or section and option, as `docs.making.option_ranges` found it."""
    return dict(json.loads(RANGES.read_text("utf-8")))


def _admits(range_: list[Any] | None, value: Any) -> bool:
    if not range_:
        return range_ is not None
    if isinstance(range_[0], str):
        return all(one in range_ for one in (value if isinstance(value, list) else [value]))
    # What is no number is in no range.
    return not isinstance(value, int | float) or range_[0] <= value <= range_[1]


def _list_tables(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A table and those in it, with the names of each."""
    yield name, table
    for key, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield from _list_tables(one, key)


def _override(content: dict[str, Any]) -> dict[str, Any]:
    """The environment overrides the file, about as in `read_environment`, which knows types."""
    for name, text in os.environ.items():
        section, _, key = name.upper().removeprefix("PRIVPIPE_").lower().partition("__")
        if name.upper().startswith("PRIVPIPE_") and key and f".{section}" in read_ranges():
            value: Any = text.split(",") if "," in text else text
            with suppress(tomllib.TOMLDecodeError):
                value = tomllib.loads(f"x = {text}")["x"]
            content[section] = content.get(section, {}) | {key: value}
    return content
