"""A first look at what a command was given, before any library loads: is it there, and in range?

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
"""Smallest and largest value of options that are numbers: the classes that know them load in
seconds. ``make errors`` writes it."""


def looks_whole(given: dict[str, str]) -> bool:
    """Whether every place is there, every variable that ``[collection]`` names, and no number is
    out of its range.

    Parameters
    ----------
    given
        Arguments of a command by name. What only a network would show is taken to be there.
    """
    places = [given[name] for name in ("config", "model", "source") if given.get(name, "-") != "-"]
    with suppress(Exception):  # whoever reads it in earnest says what is wrong
        if os.path.isfile(given.get("config", "")):  # a pipe would be waited for
            content = tomllib.loads(Path(given["config"]).read_text("utf-8"))
            if list_outside(content):
                return False
            section = content["collection"]
            both = {"COLLECTION": section, "TRAINING": content.get("training", section)}
            # The environment overrides the file, as in `read_options`.
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
    """Options of a configuration that are a number out of their range, by method or section.

    >>> list_outside({"method": {"name": "null_space", "utility_budget": -1.0}})
    ['null_space.utility_budget']
    """
    ranges = json.loads(RANGES.read_text("utf-8"))
    given = ((key, value, ranges.get(key)) for key, value in _list_numbers(content, ""))
    # What is no number is in no range.
    return [key for key, value, ends in given if ends and not ends[0] <= value <= ends[1]]


def _list_numbers(table: Mapping[str, Any], name: str) -> Iterator[tuple[str, float]]:
    """Numbers of a table and of tables in it, by the name of their method or section."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _list_numbers(value, key)
        elif isinstance(value, int | float):
            yield f"{table.get('name', name)}.{key}", value
