"""Two neighbouring records, released many times and told apart: the promise from below."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import Any

import numpy as np

from privpipe.attacks.threats.attack_table import Sample, run_kind
from privpipe.errors import GuaranteeError
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.pipeline.runs.run import Run, Trained, find_attack_options
from privpipe.protocols import FloatArray, RecordMap
from privpipe.store.models import open_model

N_RELEASES = 20_000
"""Of either record: a floor within a tenth of a promise of 1."""

MOST_VALUES = 2**22
"""Of all releases of a record: 32 MiB."""

LEVEL = 1 - 1e-6
"""Confidence of a floor above the promise: one sound run of a million is stopped."""

FARTHEST = 1e6
"""Size of the chosen records, beyond any threshold."""


def audit_neighbours(run: Run, trained: Trained) -> dict[str, Any] | None:
    """Floor of epsilon beside the promise; None where no record is promised one.

    The records are nobody's: both are far beyond every bound, in opposite directions, which no
    two records exceed. Keys are fresh and nothing of it is kept.

    Raises
    ------
    GuaranteeError
        If the floor is above the promise, so that it is broken: nothing is published.
    """
    fitted = open_model(run.stored_model_url)
    promise = fitted.guarantee
    if promise.kind != "local_dp" or promise.number is None or fitted.reads != "features":
        return None
    rows = _choose_neighbours(fitted)
    sample = Sample(neighbours=(_release(fitted, rows[0]), _release(fitted, rows[1])))
    options = replace(find_attack_options(run.options, run.attempt), level=LEVEL)
    report = json.loads(run_kind("neighbours", sample, options).to_json())
    if report["epsilon_floor"] > promise.number:
        raise GuaranteeError(
            f"Two chosen records are told apart as only a mechanism of epsilon "
            f"{report['epsilon_floor']:.3g} or more allows; promised is {promise.number:g}.",
            remedy="Nothing was published. This is a fault of privpipe: report it.",
            code="promise-broken",
        )
    return {"promised": promise.number, **report}


def _choose_neighbours(fitted: RecordMap) -> tuple[FloatArray, FloatArray]:
    """Two opposite records that the map, if it is linear, does not send to one place."""
    direction = np.random.default_rng(0).standard_normal(fitted.n_features_in)
    direction *= FARTHEST / np.linalg.norm(direction)
    return direction, -direction


def _release(fitted: RecordMap, row: FloatArray) -> FloatArray:
    """Many releases of one record, under a key of their own."""
    key = secrets.token_bytes(KEY_BYTES)
    n = min(N_RELEASES, MOST_VALUES // len(row))
    stream = KeyedStream(key, partition="neighbours", first_record=0, n_records=n)
    released: FloatArray = fitted.apply(np.tile(row, (n, 1)), stream)
    return released
