"""The header of an ARFF file: attributes and where the data begin.

Format: Weka's description of ARFF (dense and sparse). scipy's reader loads whole files and
refuses text attributes and sparse data, so that only the header is read here and the data are
streamed; the tests hold this header against scipy's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from privpipe.errors import FormatError, InputError
from privpipe.store.sources.reading.lines import not_utf8

_WORD = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s,{}'"]+"""
_ATTRIBUTE = re.compile(rf"@attribute\s+({_WORD})\s*(\{{.*\}}|\S.*)$", re.IGNORECASE)
_VALUE = re.compile(rf"\s*({_WORD}|[^,]*?)\s*(?:,|$)")

MOST_HEADER_LINES = 2_000_000


@dataclass(frozen=True)
class ArffAttribute:
    """One attribute.

    Parameters
    ----------
    name
        Its name, quotes removed.
    kind
        "numeric", "nominal", "string" or "date".
    values
        Declared values of a nominal attribute.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArffHeader:
    """What comes before the data.

    Parameters
    ----------
    attributes
        In the order of the columns.
    n_lines
        Lines up to and with ``@data``.
    n_bytes
        Bytes up to and with that line.
    """

    attributes: tuple[ArffAttribute, ...]
    n_lines: int
    n_bytes: int


def read_arff_header(lines: Iterable[bytes], where: str) -> ArffHeader:
    """Read attributes up to the line ``@data``.

    Parameters
    ----------
    lines
        Lines of the file, with their ends.
    where
        The file, for messages.

    Raises
    ------
    FormatError
        If a line is not of the format, or there is no ``@data``; the line is named by number.
    """
    found: list[ArffAttribute] = []
    size = 0
    for number, raw in enumerate(lines, start=1):
        size += len(raw)
        line = raw.decode("utf-8", errors="replace").lstrip("\ufeff").strip()
        if line[:5].lower() == "@data":
            return ArffHeader(tuple(found), number, size)
        if line[:10].lower() == "@attribute":
            if "\ufffd" in line:  # comments and the relation's name may be in any encoding
                raise not_utf8(f"{where}: line {number}")
            found.append(_read_attribute(line, f"{where}: line {number}"))
        elif (line and not line.startswith(("%", "@"))) or number > MOST_HEADER_LINES:
            break
    raise FormatError(
        f"{where} has no @data line after its attributes.", remedy="Check that it is an ARFF file."
    )


def _read_attribute(line: str, where: str) -> ArffAttribute:
    match = _ATTRIBUTE.match(line)
    if match is None:
        raise FormatError(
            f"{where} is not a complete @attribute.", remedy="Write @attribute NAME TYPE."
        )
    name, type_ = unquote(match.group(1)), match.group(2).strip()
    if type_.startswith("{"):
        if "}" not in type_:
            raise FormatError(
                f"{where} opens a list of values with a brace and does not close it.",
                remedy="Write all values of the attribute on one line: {a,b,c}.",
            )
        inner = type_[1 : type_.rindex("}")]
        return ArffAttribute(name, "nominal", _read_values(inner))
    word = type_.split()[0].lower()
    kinds = {"numeric": "numeric", "real": "numeric", "integer": "numeric"}
    kinds |= {"string": "string", "date": "date"}
    if word not in kinds:
        raise FormatError(
            f"{where} declares an attribute of a type that is not known.",
            remedy="Use numeric, real, integer, string, date or a list of values in braces.",
        )
    return ArffAttribute(name, kinds[word])


def _read_values(inner: str) -> tuple[str, ...]:
    found: list[str] = []
    at = 0
    while at < len(inner):
        match = _VALUE.match(inner, at)
        assert match is not None, "an empty value matches"
        found.append(unquote(match.group(1)))
        at = match.end()
    return tuple(found)


def unquote(text: str) -> str:
    r"""Remove the quotes around a word, and the backslashes inside.

    >>> unquote("'it\\'s'"), unquote("plain")
    ("it's", 'plain')
    """
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text


def undeclared(count: int, name: str, where: str) -> InputError:
    """The error for values that a nominal attribute does not declare."""
    return InputError(
        f"{where}: {count} records hold a value of {name!r} that the header does not declare.",
        remedy="Declare it in the attribute's list of values.",
        code="undeclared-value",
    )
