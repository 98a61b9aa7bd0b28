"""Proof in place of attack: released rows that are a function of target prediction and model.

A theorem says what a map does; this holds every record that is attacked to it, bit by bit. The
prediction then stands for the features in all attacks: whoever has the model makes the one of the
other. What the prediction itself reveals is measured, and held against the limits as ever.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from privpipe.capabilities import FollowsTarget
from privpipe.cluster.passes.cleaning_pass import load_map
from privpipe.errors import GuaranteeError
from privpipe.numerics.finite import find_empty_rows, find_finite_rows
from privpipe.protocols import FloatArray, Shard


@dataclass(frozen=True)
class TargetModel:
    """The stored map whose target predictions stand for released features.

    Parameters
    ----------
    url, digest
        Of its artifact.
    """

    url: str
    digest: str


def read_targets(shard: Shard, model: TargetModel) -> FloatArray:
    """Worker side: the target prediction of every record, once its released row is made of it.

    Parameters
    ----------
    shard
        Raw records with their released rows; NaN where withheld.
    model
        See `TargetModel`.

    Returns
    -------
    targets : (n_records, n_predictions)
        NaN where the row is withheld.

    Raises
    ------
    GuaranteeError
        If a released row differs in a bit from what the model makes of its target prediction.
    """
    fitted = load_map(model.url, model.digest)
    assert isinstance(fitted, FollowsTarget), "only asked of such maps"
    held = ~find_empty_rows(shard.released)
    known = held & find_finite_rows(shard.features)
    values = fitted.predict_target(shard.features[known])
    made = fitted.release_target(values, shard.released.dtype)
    n_apart = int((held & ~known).sum())
    if made.shape == shard.released[known].shape:
        n_apart += int((_as_bytes(made) != _as_bytes(shard.released[known])).any(axis=1).sum())
    else:
        n_apart += len(made)
    if n_apart:
        raise GuaranteeError(
            f"{n_apart} of {int(held.sum())} released rows are not what the model makes of their "
            "target prediction.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="not-of-target",
        )
    found = np.full((len(held), values.shape[1]), np.nan)
    found[known] = values
    return found


def _as_bytes(rows: FloatArray) -> np.ndarray:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(len(rows), -1)
