"""Mulan's list of labels: an XML file that names the columns of a table that are labels."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import fsspec

from privpipe.errors import FormatError
from privpipe.store.access.location import shown

MOST_BYTES = 2**24
"""Read of a list: far more than any has."""


def read_label_file(url: str | None) -> tuple[str, ...]:
    """Names in a list of labels; none where no list is given. See `read_labels`."""
    return () if url is None else read_labels(*fsspec.core.url_to_fs(url))


def read_labels(system: Any, path: str) -> tuple[str, ...]:
    """Names in a list of labels on a file system.

    Raises
    ------
    FormatError
        If it cannot be read, or is not such a list.
    """
    try:
        with system.open(path, "rb") as file:
            content = file.read(MOST_BYTES)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    else:
        return read_label_list(content, shown(path))
    raise FormatError(
        f"The list of labels {shown(path)} cannot be read ({problem}).",
        remedy="Check the path given with --label-file.",
    )


def read_label_list(content: bytes, where: str) -> tuple[str, ...]:
    """Names in a Mulan list of labels, the nested ones of a hierarchy included.

    Raises
    ------
    FormatError
        If it is not such a list.
    """
    names: tuple[str, ...] = ()
    try:
        root = ElementTree.fromstring(content)
        names = tuple(
            item.attrib["name"]
            for item in root.iter()
            if item.tag.rpartition("}")[2] == "label" and "name" in item.attrib
        )
    except ElementTree.ParseError:
        names = ()
    if not names:
        raise FormatError(
            f"{where} is not a list of labels.",
            remedy='Give Mulan\'s XML: <labels><label name="..."/></labels>.',
        )
    return names
