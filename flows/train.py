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
from privpipe.protocols import Guarantee
from privpipe.store.artifacts import write_model
from privpipe.store.predictors import read_predictor

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
    """Fit on the training records that are not held out."""
    shards = ShardedCollection(run.training.keeping(run.split, "fit"), client, run.run_id)
    fitted = run.method.fit(shards, run.options.method, **_read_files(run))
    digest = write_model(
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
    return Trained(digest, fitted.n_features_in, fitted.n_features_out, fitted.guarantee)


def _read_files(run: Run) -> Mapping[str, Mapping[str, npt.NDArray[np.floating[Any]]]]:
    files = run.method.files(run.options.method)
    return {name: read_predictor(url) for name, url in files.items()}
