"""How objects show themselves, as text and in a notebook: shapes, roles, promises; no values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, TypeVar, dataclass_transform

from privpipe.errors import printable

C = TypeVar("C", bound=type)

STYLE = "text-align:left;padding:0 1em 0 0;vertical-align:top"


def described(facts: Callable[[Any], Mapping[str, str]]) -> Callable[[C], C]:
    """Let a class show facts instead of its fields, which may be large or confidential.

    Parameters
    ----------
    facts
        What to show of an object, by name, in order.

    Examples
    --------
    >>> @described(lambda self: {"records": f"{self.n:,}"})
    ... class Few:
    ...     n = 1200
    >>> Few()
    <Few>
      records  1,200
    """

    def decorate(cls: C) -> C:
        def write_text(self: Any) -> str:
            shown = facts(self)
            # Names of variables are the user's: what a terminal obeys in them is shown by its code.
            width = max(map(len, shown), default=0)
            lines = [f"  {name:{width}s}  {printable(value)}" for name, value in shown.items()]
            return "\n".join([f"<{type(self).__name__}>", *lines])

        def write_html(self: Any) -> str:
            rows = "".join(
                f'<tr><th style="{STYLE}">{escape(name)}</th>'
                f'<td style="{STYLE}">{escape(printable(value))}</td></tr>'
                for name, value in facts(self).items()
            )
            return f"<strong>{type(self).__name__}</strong><table>{rows}</table>"

        cls.__repr__ = write_text  # type: ignore[method-assign,assignment]
        cls._repr_html_ = write_html  # type: ignore[attr-defined]
        return cls

    return decorate


def facts_of_map(fitted: Any) -> dict[str, str]:
    """What is to know of a fitted map: what goes in and comes out, and what it promises."""
    promise = fitted.guarantee
    number = "" if promise.number is None else f" {promise.number:g} {promise.unit}"
    return {
        "reads": f"{fitted.n_features_in:,} {fitted.reads}",
        "releases": f"{fitted.n_features_out:,}" + (", drawn by a key" if fitted.draws else ""),
        "promise": f"{promise.kind}{number}, {promise.scope}",
        "rests on": promise.theorem,
    } | ({"assumes": promise.assumptions} if promise.assumptions else {})


@dataclass_transform(frozen_default=True, eq_default=False)
def record_map(cls: C) -> C:
    """Make a map of a class: a frozen dataclass of a few arrays, which shows what it promises."""
    made: Any = dataclass(frozen=True, eq=False)(cls)
    return described(facts_of_map)(made)  # type: ignore[no-any-return]  # the class itself
