"""Whether the released features vary at all: a constant hides everything, and is no release."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.pipeline.runs.run import Run
from privpipe.store.arrays.blocks import read_block
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.release import ReleasePlan


def is_constant(run: Run, plan: ReleasePlan) -> bool:
    """Whether no released feature or attribute has two values; reads until one has.

    A single record, which cannot vary, is not called constant.
    """
    names = {FEATURES, *run.collection.attributes} - set(run.options.release.include)
    arrays = [array for array in plan.arrays if array.name in names and 0 not in array.shape]
    if plan.chunks.n_records < 2 or not arrays:
        return False
    low: dict[str, npt.NDArray[Any]] = {}
    high = dict(low)
    for chunk in range(plan.chunks.n_chunks):
        for array in arrays:
            name, rows = array.name, plan.chunks.rows(chunk)
            block = read_block(plan.data_url, name, *rows, plan.run)
            ends = np.fmin.reduce(np.asarray(block)), np.fmax.reduce(np.asarray(block))
            low[name] = np.fmin(low[name], ends[0]) if name in low else ends[0]
            high[name] = np.fmax(high[name], ends[1]) if name in high else ends[1]
            if (high[name] > low[name]).any():  # NaN of withheld rows is no value
                return False
    return True
