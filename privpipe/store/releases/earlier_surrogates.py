"""An earlier release of surrogates, opened to be held against a later one.

No row of either belongs to a record; but both carry exact coefficients, whose difference is made
by the records in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from privpipe.errors import OptionError, StoreError
from privpipe.protocols import FloatArray
from privpipe.store.access.location import shown
from privpipe.store.arrays.blocks import read_block
from privpipe.store.arrays.headers import exists
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.published import check_release


@dataclass(frozen=True)
class EarlierSurrogates:
    """What readers see of an earlier release of surrogates; small and picklable.

    Parameters
    ----------
    url, run
        Where it is, and the run that made it.
    name
        What reports call it: its method and run, no path.
    response_names
        Its arrays beside the features.
    n_records
    """

    url: str
    run: str
    name: str
    response_names: tuple[str, ...]
    n_records: int

    def read(self, most: int) -> tuple[FloatArray, FloatArray]:
        """The first surrogates: features with the bias, and responses."""
        n = min(most, self.n_records)
        features, *responses = (
            np.asarray(read_block(self.url, name, 0, n, self.run), np.float64)
            for name in (FEATURES, *self.response_names)
        )
        return features, np.column_stack(responses)


def open_earlier_surrogates(
    url: str, *, feature_names: Sequence[str], response_names: Sequence[str]
) -> EarlierSurrogates:
    """Open an earlier release of surrogates; of which records it was made does not matter.

    Parameters
    ----------
    url
        The release.
    feature_names, response_names
        Of the release that is to be judged, with the bias.

    Raises
    ------
    StoreError
        If it is not there.
    FormatError, IncompleteReleaseError
        If it is no whole release.
    OptionError
        If it is none of surrogates with these columns.
    """
    if not exists(url):
        raise StoreError(
            f"[audit] earlier names {shown(url)}, where there is no release.",
            remedy="Name a published release, or leave it out.",
            code="missing",
        )
    header = check_release(url)
    same = (
        list(header.get("feature_names") or ()) == list(feature_names)
        and list(header["arrays"]) == [FEATURES, *response_names]
        and not header.get("partitions")
    )
    if not same:
        raise OptionError(
            f"[audit] earlier names {shown(url)}, which is no release of surrogates with the same "
            "features and responses.",
            remedy="Name earlier releases of surrogates of these variables: only those are held "
            "against this one.",
            code="other-records",
        )
    name = f"{header['method']} {header['run']}"
    n = int(header["n_records"])
    return EarlierSurrogates(url, str(header["run"]), name, tuple(response_names), n)
