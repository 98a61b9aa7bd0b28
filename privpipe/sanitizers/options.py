"""Making the options of a method from what a caller gave, with messages that name the option.

How the values themselves are read is the same for all options: see `privpipe.option_values`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from privpipe.errors import OptionError

T = TypeVar("T")


def make_options(kind: type[T], given: Mapping[str, Any], method: str) -> T:
    """Validate options; what a caller chose is no record and may be shown.

    Parameters
    ----------
    kind
        The options class.
    given
        Options by name.
    method
        Name of the method, for messages.

    Raises
    ------
    OptionError
        With every option that is wrong, its value, and what is allowed.

    Examples
    --------
    >>> from privpipe.sanitizers.null_space.algorithm_1 import NullSpaceOptions
    >>> make_options(NullSpaceOptions, {"name": "null_space", "utility_budget": 1}, "x").rule
    'greedy'
    """
    try:
        return TypeAdapter(kind).validate_python(dict(given))
    except ValidationError as error:
        found = error.errors(include_input=False)
    problems = [
        _describe(item["loc"], item["msg"].removeprefix("Value error, "), given) for item in found
    ]
    raise OptionError(
        f"The options of {method!r} are wrong: {'; '.join(problems)}.",
        remedy=f"See privpipe.sanitizers' {kind.__name__}.",
    )


def _describe(loc: tuple[int | str, ...], message: str, given: Mapping[str, Any]) -> str:
    name = ".".join(map(str, loc))
    value = given.get(str(loc[0])) if loc else None
    is_plain = isinstance(value, str | int | float | bool) and "://" not in str(value)
    shown = f" is {value!r}" if is_plain else ""  # a URL may hold a password
    return f"{name}{shown}: {message}"
