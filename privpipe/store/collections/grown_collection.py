"""A growing collection read as one: its partitions one after the other, on one grid of chunks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.errors import FormatError
from privpipe.store.access.generation_log import is_generational
from privpipe.store.access.location import Place, as_url, shown
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.collections.growing_collection import read_partitions


@dataclass(frozen=True)
class GrownCollection(Collection):
    """The partitions of a generation, in the order in which they came; see `Collection`.

    Parameters
    ----------
    parts
        Each as a collection of its own.
    """

    parts: tuple[Collection, ...] = ()

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        """Rows of one array, in its stored dtype, across partitions."""
        found, first = [self.parts[0].read(name, 0, 0)], 0  # the dtype, where no row is read
        for part in self.parts:
            low, high = max(start - first, 0), min(stop - first, part.n_records)
            if low < high:
                found.append(part.read(name, low, high))
            first += part.n_records
        return np.concatenate(found)


def open_whole_collection(url: Place, **roles: Any) -> Collection:
    """Open a collection made in one piece, or all partitions of one that grows.

    Parameters, errors: as `open_collection`.
    """
    url = as_url(url)
    if not is_generational(url):
        return open_collection(url, **roles)
    parts = tuple(open_collection(one.url(url), **roles) for one in read_partitions(url))
    if not parts or any(part.sealed.proof is None for part in parts):
        raise FormatError(
            f"{shown(url)} has no partition, or one without receipts.",
            remedy="Append its sources to a new place: privpipe append SOURCE COLLECTION.",
        )
    firsts = accumulate((part.n_records for part in parts), initial=0)
    schema = replace(
        parts[0].schema_of_records,
        n_records=sum(part.n_records for part in parts),
        partitions=tuple(
            replace(one, name=f"{number}/{one.name}", first_record=first + one.first_record)
            for number, (part, first) in enumerate(zip(parts, firsts, strict=False))
            for one in part.schema_of_records.partitions
        ),
    )
    digest = hashlib.sha256("".join(part.digest for part in parts).encode()).hexdigest()
    opened = {name: getattr(parts[0], name) for name in Collection.__dataclass_fields__}
    about = {"url": url, "schema_of_records": schema, "digest": digest, "parts": parts}
    return GrownCollection(**{**opened, **about})
