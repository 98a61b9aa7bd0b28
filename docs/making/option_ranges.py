"""What every number and choice of a configuration may be, from where options are declared.

``python -m docs.making.option_ranges`` writes ``ranges.json``, which `first_look` reads. A test
holds it against the declarations.
"""

import json
import math
from typing import Any

from pydantic import TypeAdapter

from privpipe.pipeline.runs.first_look import RANGES
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.sanitizers import METHODS


def find_ranges() -> dict[str, tuple[float, float] | list[str]]:
    """What is allowed, by method or section and option; an empty list of what may be anything.

    Of numbers the two ends, infinite where there is none; of choices, alone or in a list, all of
    them. The names of methods are by the table that has them: ``method`` or an option. Under the
    name of a method or section alone are the options that it cannot do without.
    """
    whole = RunOptions.model_json_schema()
    sections = {
        name: whole["$defs"][kind["$ref"].rpartition("/")[2]]
        for name, about in whole["properties"].items()
        for kind in _list_kinds(about)
        if "$ref" in kind
    }
    methods = {name: TypeAdapter(row.options).json_schema() for name, row in METHODS.items()}
    found: dict[str, tuple[float, float] | list[str]] = {}
    for name, about in ({"": whole} | dict(sorted((sections | methods).items()))).items():
        found[name] = about.get("required", [])
        for key, option in about["properties"].items():
            if names := _list_names(option):
                assert found.setdefault(f"{key}.name", names) == names
                found[f"{name}.{key}"], found[key] = [], ["name"]
            elif choices := _list_choices(option):
                found[f"{name}.{key}"] = choices
            else:
                ends = _read_ends(option)
                found[f"{name}.{key}"] = [] if ends == EVERY else ends
    return found


EVERY = (-math.inf, math.inf)


def _list_kinds(option: dict[str, Any]) -> list[dict[str, Any]]:
    """What it may be but nothing, which TOML cannot say."""
    return [one for one in option.get("anyOf", [option]) if one.get("type") != "null"]


def _list_names(option: dict[str, Any]) -> list[str]:
    """Of a table that is a method."""
    named = [one["discriminator"]["mapping"] for one in _list_kinds(option) if "oneOf" in one]
    return list(named[0]) if named else []


def _list_choices(option: dict[str, Any]) -> list[str]:
    """Of an option that is one of some texts, or a list of them, and nothing else."""
    kinds = [one.get("items", one) for one in _list_kinds(option)]
    if not all("enum" in one for one in kinds):
        return []
    return [text for one in kinds for text in one["enum"]]


def _read_ends(option: dict[str, Any]) -> tuple[float, float]:
    """Of an option that is a number, or may be; an end that is left out is the next number."""
    numbers = [one for one in _list_kinds(option) if one.get("type") in ("number", "integer")]
    if len(numbers) != 1:
        return EVERY
    low, high = numbers[0].get("minimum", EVERY[0]), numbers[0].get("maximum", EVERY[1])
    if (above := numbers[0].get("exclusiveMinimum")) is not None:
        low = math.nextafter(above, math.inf)
    if (below := numbers[0].get("exclusiveMaximum")) is not None:
        high = math.nextafter(below, -math.inf)
    return low, high


def write_ranges() -> str:
    """The ranges as JSON, one option after the other."""
    lines = (f" {json.dumps(key)}: {json.dumps(ends)}" for key, ends in find_ranges().items())
    # JSON has no infinity, and reads it from a number that is too large.
    return "{\n" + ",\n".join(lines).replace("Infinity", "1e999") + "\n}\n"


if __name__ == "__main__":
    RANGES.write_text(write_ranges(), encoding="utf-8")
