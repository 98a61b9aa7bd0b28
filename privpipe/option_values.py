"""How values of options are read, whoever the options are for, and which code they may name.

One rule for every door (TOML, environment, Python, scikit-learn): a flag is true or false, a number
is a number, and a text is neither. ``"false"`` is a text, and as a truth value it is true. Code of
users runs in this process only by the SHA-256 of its file. Options that are made in Python trust
the file that they name. Those of a configuration, which may be a stranger's, do not.
"""

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import numpy as np
from pydantic import ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.dataclasses import dataclass as options_dataclass
from pydantic_core import ArgsKwargs, InitErrorDetails, PydanticCustomError

FORBID = ConfigDict(extra="forbid", hide_input_in_errors=True)
"""Unknown options are refused, and messages do not quote what was given."""


def admits(annotation: Any, kind: type) -> bool:
    """Whether an annotation takes values of exactly this type; an int is no bool, nor a float.

    >>> admits(bool | None, bool), admits(tuple[str, ...], str), admits(float, int)
    (True, False, False)
    """
    if get_origin(annotation) in (Union, UnionType):
        return any(admits(part, kind) for part in get_args(annotation))
    if get_origin(annotation) is Annotated:
        return admits(get_args(annotation)[0], kind)
    return annotation is kind


def take_plain(annotation: Any, value: Any) -> Any:
    """A value for a flag or a number, as it is; what pydantic would turn into one is refused.

    Raises
    ------
    ValueError
        If a text is given for a flag or a number, or a truth value for a number, or a number for
        a flag.
    """
    # np.True_ is no bool of Python's.
    value = value.item() if isinstance(value, np.generic) else value
    flag = admits(annotation, bool)
    number = admits(annotation, int) or admits(annotation, float)
    if isinstance(value, str):
        wrong = flag or number
    elif isinstance(value, bool):
        wrong = number and not flag
    else:
        wrong = flag and not number and value is not None
    if not wrong:
        return value
    raise ValueError(
        "give true or false, without quotes" if flag else "give a number, without quotes"
    )


@cache  # parsing a class takes longer than all else of a template
def read_docstrings(kind: type) -> dict[str, str]:
    """What is said below the fields of a class, by their names; nothing of one without a source."""
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):
        return {}
    assert isinstance(found, ast.ClassDef)
    return {
        one.target.id: inspect.cleandoc(str(said.value.value))
        for one, said in itertools.pairwise(found.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(said, ast.Expr) and isinstance(said.value, ast.Constant)
    }


class DescribedBelow:
    """Options whose docstrings describe them in a JSON schema."""

    # Only here: pydantic reads them when a class is made, .13 s of every command, and not those
    # of the bases of a dataclass.
    @classmethod
    def __get_pydantic_json_schema__(cls, core: Any, handler: GetJsonSchemaHandler) -> Any:
        found = handler(core)
        fields = handler.resolve_ref_schema(found)["properties"]
        for base in cls.__mro__[:-1]:
            for name, text in read_docstrings(base).items():
                if name in fields:
                    fields[name].setdefault("description", text)
        return found


@options_dataclass(frozen=True, config=FORBID)
class Options(DescribedBelow):
    """What all options share: how their values are read."""

    # Of the whole, since no validator may come before `name`, which distinguishes the methods.
    @model_validator(mode="before")
    @classmethod
    def _take_plain(cls, given: Any) -> Any:
        keywords = given.kwargs if isinstance(given, ArgsKwargs) else given
        if not isinstance(keywords, Mapping):
            return given
        known = cls.__pydantic_fields__  # type: ignore[attr-defined]
        taken, problems = dict(keywords), list[InitErrorDetails]()
        for name in keywords.keys() & known.keys():
            try:
                taken[name] = take_plain(known[name].annotation, keywords[name])
            except ValueError as error:
                about = PydanticCustomError("plain", "{what}", {"what": str(error)})
                problems.append(InitErrorDetails(type=about, loc=(name,), input=None))
        if problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return ArgsKwargs(given.args, taken) if isinstance(given, ArgsKwargs) else taken


_TRUSTED: set[str] = set()
# Of this context: another thread may make options in Python meanwhile.
_CONFIGURED: ContextVar[bool] = ContextVar("options are read from a configuration", default=False)


@contextmanager
def reading_only() -> Iterator[None]:
    """While options are made of a configuration: the files that it names are read, not trusted."""
    token = _CONFIGURED.set(True)
    try:
        yield
    finally:
        _CONFIGURED.reset(token)


def trust(sha256: str) -> None:
    """Let code of this content run in this process."""
    _TRUSTED.add(sha256)


def is_trusted(sha256: str) -> bool:
    """Whether code of this content may run in this process."""
    return sha256 in _TRUSTED


def say_trusted() -> str:
    """What else is trusted, for the refusal of something that is not."""
    if not _TRUSTED:
        return ""
    return (
        f" Trusted is other code, as of a file that has changed: {', '.join(sorted(_TRUSTED)[:3])}."
    )


def trust_named(sha256: str) -> None:
    """Trust a file that options name, unless a configuration does."""
    # Looking must not run code: check, a dry run and doctor only read.
    if not _CONFIGURED.get():
        trust(sha256)
