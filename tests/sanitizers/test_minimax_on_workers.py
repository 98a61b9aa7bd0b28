"""Minimax filters trained by real workers: the same Phi for one, two and none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe import Records
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.cluster.workers.connection import ClusterOptions, connect
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.writing import write_collection
from tests.sanitizers.labelled_data import draw_labelled


@pytest.mark.slow
def test_fit_minimax_filter__is_the_same_on_one_worker_and_two(tmp_path: Path) -> None:
    x, target, private = draw_labelled(2000)
    schema = CollectionSchema(
        n_records=2000,
        n_features=9,
        dtype="float64",
        chunk_rows=300,
        variables=(
            Variable("wanted", "int8", ("no", "yes")),
            Variable("hidden", "int8", tuple("abc")),
        ),
    )
    codes = {"wanted": target.astype(np.int8), "hidden": private.astype(np.int8)}
    url = str(tmp_path / "records.zarr")
    write_collection(
        url,
        schema,
        (
            {"features": x[i : i + 300]} | {name: v[i : i + 300] for name, v in codes.items()}
            for i in range(0, 2000, 300)
        ),
    )
    collection = open_collection(url, desired=["wanted"], confidential=["hidden"])
    linear, neural = MinimaxOptions(), MinimaxNeuralOptions(n_hidden=(4, 2), max_iterations=3)
    here = Records(x, desired=target, confidential=private)
    histories = [[fit_minimax_filter(here, linear).history]]
    histories[0].append(fit_minimax_neural_filter(here, neural).history)
    for workers in (1, 2):
        with connect(ClusterOptions(workers=workers, dashboard="127.0.0.1:0")) as client:
            shards = ShardedCollection(collection, DaskExecutor(client, f"run-{workers}"))
            histories.append(
                [
                    fit_minimax_filter(shards, linear).history,
                    fit_minimax_neural_filter(shards, neural).history,
                ]
            )
    for found in histories[1:]:
        for ours, theirs in zip(histories[0], found, strict=True):
            np.testing.assert_allclose(theirs[:, 1], ours[:, 1], atol=1e-9)
    for one, two in zip(histories[1], histories[2], strict=True):
        np.testing.assert_array_equal(one[:, :-3], two[:, :-3])
