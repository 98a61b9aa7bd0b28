"""Small arrays of ours, read whole: as much as is stored of them, whatever they declare.

An array says its shape in a few bytes, and its missing chunks are made up of fill values: a model
of kilobytes could ask for gigabytes. Zarr leaves out chunks of zeros alone, so a little is allowed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr
from zarr.abc.store import Store
from zarr.core.sync import sync

from privpipe.errors import FormatError
from privpipe.store.access.objects import list_keys

MOST_TO_ONE = 1000
"""Decoded bytes for each that is stored: Zstandard makes some 300 of counts that repeat."""

SLACK = 2**20


def read_whole(store: Store, name: str, *, most: float = math.inf) -> npt.NDArray[Any]:
    """Read an array of a store whole.

    Parameters
    ----------
    store, name
        Where it is.
    most
        Numbers that it may have, where something else that is stored tells.

    Raises
    ------
    FormatError
        If it declares more than is stored of it.
    """
    array = zarr.open_array(store, path=name, mode="r")
    n_stored = sum(sync(store.getsize(key)) for key in list_keys(store, f"{name}/c"))
    if array.nbytes > MOST_TO_ONE * n_stored + SLACK:
        raise _unbounded(name, f"declares {array.nbytes:,} bytes and stores {n_stored:,}")
    if array.size > most:
        raise _unbounded(name, f"declares {array.size:,} numbers, of which {most:,} can be meant")
    return np.asarray(array[...])


def _unbounded(name: str, problem: str) -> FormatError:
    return FormatError(
        f"The array {name!r} {problem}.",
        remedy="It is damaged, or made to fill the memory: get it again from where it came.",
        code="unbounded",
    )
