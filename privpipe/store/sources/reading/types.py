"""What Arrow types mean for a table's columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from privpipe.store.sources.reading.roles import ColumnKind


def kind_of(type_: Any) -> ColumnKind:
    """What a column of an Arrow type holds.

    >>> kind_of(pa.int8()), kind_of(pa.dictionary(pa.int32(), pa.string())), kind_of(pa.date32())
    ('integer', 'text', 'other')
    """
    t = pa.types
    if t.is_dictionary(type_):
        return "text"
    if t.is_boolean(type_):
        return "boolean"
    if t.is_integer(type_):
        return "integer"
    if t.is_floating(type_) or t.is_decimal(type_) or t.is_null(type_):
        return "number"
    is_text = t.is_string(type_) or t.is_large_string(type_) or t.is_string_view(type_)
    return "text" if is_text else "other"


def is_narrow(type_: Any) -> bool:
    """Whether float32 holds each number of an Arrow type exactly."""
    t = pa.types
    if t.is_floating(type_):
        return int(type_.bit_width) <= 32
    return bool(t.is_boolean(type_) or (t.is_integer(type_) and type_.bit_width <= 16))
