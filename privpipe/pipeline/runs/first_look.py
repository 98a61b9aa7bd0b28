"""A first look at what a command was given, before any library loads: is it there, is it allowed?

It decides what may start at once, and refuses nothing. What looks wrong is refused, with its
reason, by whoever reads it in earnest, and nothing was started for it.
"""

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from privpipe.store.access.location import local_path

RANGES = Path(__file__).with_name("ranges.json")
"""The two ends of options that are numbers, and all texts of those that are choices: the classes
that know them load in seconds. ``make errors`` writes it."""


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
    """Options that are a number out of their range or no known choice, by method or section.

    >>> list_outside({"method": {"name": "null_space", "utility_budget": -1.0, "rule": "grabby"}})
    ['null_space.utility_budget', 'null_space.rule']
    """
    ranges = json.loads(RANGES.read_text("utf-8"))
    given = ((key, value) for key, value in _list_values(content, "") if key in ranges)
    return [key for key, value in given if not _admits(ranges[key], value)]


def _admits(range_: list[Any], value: Any) -> bool:
    if isinstance(range_[0], str):
        return value in range_
    # What is no number is in no range.
    return not isinstance(value, int | float) or range_[0] <= value <= range_[1]


def _list_values(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
    """Values of a table, and of tables and lists in it, by the name of their method or section."""
    for key, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, Mapping):
                yield from _list_values(one, key)
            else:  # a method's name is by the table that has it: it may be that of none
                yield f"{name if key == 'name' else table.get('name', name)}.{key}", one


def _override(content: dict[str, Any]) -> dict[str, Any]:
    """The environment overrides the file, about as in `read_environment`, which knows types."""
    for name, text in os.environ.items():
        section, _, key = name.upper().removeprefix("PRIVPIPE_").lower().partition("__")
        if name.upper().startswith("PRIVPIPE_") and key:
            value: Any = text.split(",") if "," in text else text
            with suppress(tomllib.TOMLDecodeError):
                value = tomllib.loads(f"x = {text}")["x"]
            content[section] = content.get(section, {}) | {key: value}
    return content
