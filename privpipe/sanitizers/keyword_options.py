"""Fits for Python's users: the keywords are the fields of the method's options, written there once.

What a field is called, what it may be, its default and its description stand in the options class;
the signature and the docstring that Python shows are made from it.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from pydantic.fields import FieldInfo

P = ParamSpec("P")
R = TypeVar("R")

_WIDTH = 96
_HERE = "    **choices\n"
"""Line of a docstring that gives way to the options, each with its description."""


def takes_options(
    kind: type[Any], *, without: tuple[str, ...]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate ``fit(shards, *, further, **choices)``: `choices` are the fields of its options.

    Parameters
    ----------
    kind
        The options class, a pydantic dataclass.
    without
        Fields that are no keywords: the name of the method, URLs where arrays are taken instead.

    Returns
    -------
    decorate
        The decorated fit refuses other keywords as any function does, by TypeError.
    """
    about: dict[str, FieldInfo] = {
        name: field for name, field in kind.__pydantic_fields__.items() if name not in without
    }

    def decorate(fit: Callable[P, R]) -> Callable[P, R]:
        signature = _sign(inspect.signature(fit), about)

        @wraps(fit)
        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            given = signature.bind(*args, **kwargs)
            return fit(*given.args, **given.kwargs)

        bound.__signature__ = signature  # type: ignore[attr-defined]
        bound.__doc__ = (fit.__doc__ or "").replace(_HERE, "".join(_describe(about)))
        return bound

    return decorate


def _sign(own: inspect.Signature, about: dict[str, FieldInfo]) -> inspect.Signature:
    kinds = inspect.Parameter
    first = [p for p in own.parameters.values() if p.kind is kinds.POSITIONAL_OR_KEYWORD]
    further = [p for p in own.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    options = [
        kinds(
            name,
            kinds.KEYWORD_ONLY,
            default=kinds.empty if field.is_required() else field.get_default(),
            annotation=field.annotation,
        )
        for name, field in about.items()
    ]
    return own.replace(parameters=[*first, *options, *further])


def _describe(about: dict[str, FieldInfo]) -> Iterator[str]:
    for name, field in about.items():
        yield f"    {name}\n"
        yield textwrap.indent(textwrap.fill(field.description or "", _WIDTH - 8), " " * 8) + "\n"
