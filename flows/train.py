"""The train stage: learn the map from shards on the workers, store it in the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client

from flows.run import Run, list_versions, now
from privpipe.dist.reduce import ShardedCollection
from privpipe.errors import StoreError
from privpipe.protocols import Guarantee, RecordMap
from privpipe.store.artifacts import digest_map, open_model, write_model
from privpipe.store.predictors import read_predictor
from privpipe.store.release import check_output_free, exists

__all__ = ["Trained", "train_stage"]


@dataclass(frozen=True)
class Trained:
    """Receipt of the train stage: where the model is and what it promises.

    Parameters
    ----------
    model_digest
        SHA-256 of the fitted map.
    n_features_in, n_features_out
        Its shape.
    guarantee
        Its promise.
    """

    model_digest: str
    n_features_in: int
    n_features_out: int
    guarantee: Guarantee


def train_stage(run: Run, client: Client) -> Trained:
    """Fit on the training records that are not held out; a stored model is never fitted again."""
    if exists(run.stored_model_url):
        return _describe(open_model(run.stored_model_url), run)
    check_output_free(run.model_url)
    shards = ShardedCollection(run.training.keeping(run.split, "fit"), client, run.run_id)
    fitted = run.method.fit(shards, run.options.method, **_read_files(run))
    write_model(
        fitted,
        run.work_model_url,
        {
            "method": run.method.name,
            "options": run.method_options(),
            "source": run.method.source,
            "training_digest": run.training.digest,
            "holdout": run.options.audit.holdout,
            "versions": list_versions(),
            "trained": now(),
        },
    )
    return _describe(fitted, run)


def _describe(fitted: RecordMap, run: Run) -> Trained:
    digest = digest_map(fitted)
    if run.state.model_digest not in (None, digest):
        raise StoreError(
            "The stored model is not the one of the interrupted run.",
            remedy="`privpipe purge`, then run again.",
            code="other-model",
        )
    return Trained(digest, fitted.n_features_in, fitted.n_features_out, fitted.guarantee)


def _read_files(run: Run) -> Mapping[str, Mapping[str, npt.NDArray[np.floating[Any]]]]:
    files = run.method.files(run.options.method)
    return {name: read_predictor(url) for name, url in files.items()}
