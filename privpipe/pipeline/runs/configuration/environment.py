"""Overrides from the environment: ``PRIVPIPE_SECTION__KEY``, whose value is written as in TOML.

Where the key takes text, the value is that text; elsewhere ``0.02``, ``true``, ``["a", "b"]``. A
list of names may also be written with commas alone.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from typing import Any, get_args

from privpipe.option_values import admits

PREFIX = "PRIVPIPE_"


def read_environment(find: Callable[[str, str], Any]) -> dict[str, dict[str, Any]]:
    """What the environment sets, by section and key.

    Parameters
    ----------
    find
        Annotation of a key of a section: None where the section is not known (such a variable
        means something else), and `Any` where the key is not.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, text in os.environ.items():
        section, _, key = name.upper().removeprefix(PREFIX).lower().partition("__")
        if not name.upper().startswith(PREFIX) or not key:
            continue
        annotation = find(section, key)
        if annotation is not None:
            found.setdefault(section, {})[key] = _decode(text, annotation)
    return found


def name_variable(names: list[str], given: Mapping[str, Mapping[str, Any]]) -> str | None:
    """The variable that set a key, as messages may name it; None if the file did."""
    if len(names) < 2 or names[1] not in given.get(names[0], {}):
        return None
    return f"{PREFIX}{names[0]}__{names[1]}".upper()


def _decode(text: str, annotation: Any) -> Any:
    if admits(annotation, str) or _is_choice(annotation):
        return text
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        is_list = any(str(part).startswith("tuple") for part in (annotation, *get_args(annotation)))
        return [part.strip() for part in text.split(",") if part.strip()] if is_list else text


def _is_choice(annotation: Any) -> bool:
    """Whether a key takes one of some texts."""
    return str(annotation).startswith("typing.Literal")
