"""Questions asked together: the answers of single passes, from chunks that are read once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.passes.reduce import JointQuery, ShardedCollection, reduce_jointly
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.sampling import make_split
from privpipe.store.arrays import blocks, sealed_arrays
from privpipe.store.collections.collection import open_collection
from tests.standard import CONFIDENTIAL, DESIRED, write_standard


def moments_of(shard: Shard, *, labels: bool) -> CoMoments:
    return CoMoments.of(np.hstack([shard.features, shard.desired]) if labels else shard.features)


def test_ask_together__answers_as_single_passes_do(client: Client, tmp_path: Path) -> None:
    questions = []
    for name in ("one", "other"):
        write_standard(str(tmp_path / name), 700, chunk_rows=64, seed=len(name))
        whole = open_collection(
            str(tmp_path / name), desired=DESIRED[:1], confidential=CONFIDENTIAL[:1]
        )
        for part in ("fit", "attack", "all"):
            shards = ShardedCollection(
                whole.keeping(make_split(0.5), part), DaskExecutor(client, "00000011")
            )
            questions.append(JointQuery(shards, partial(moments_of, labels=part == "fit")))
    mixed = questions[::2] + questions[1::2]
    for question, answer in zip(mixed, reduce_jointly(mixed, "test"), strict=True):
        alone = question.shards.reduce(question.summarise)
        assert answer.count == alone.count
        np.testing.assert_array_equal(answer.scatter, alone.scatter)
        np.testing.assert_array_equal(answer.mean, alone.mean)


def test_reading_once__reads_a_chunk_once_and_lets_nobody_write_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_standard(str(tmp_path / "records"), 200, chunk_rows=64)
    collection = replace(open_collection(str(tmp_path / "records")), desired=("height",))
    opened = []
    plain = sealed_arrays.read_columns

    def counting(
        sealed: sealed_arrays.SealedArrays, names: tuple[str, ...], start: int, stop: int
    ) -> object:
        opened.extend(names)
        return plain(sealed, names, start, stop)

    monkeypatch.setattr(sealed_arrays, "read_columns", counting)
    with blocks.reading_once():
        first, second = collection.shard(1), collection.shard(1)
    assert sorted(opened) == ["features", "height"]
    np.testing.assert_array_equal(first.features, second.features)
    with pytest.raises(ValueError, match="read-only"):
        first.features[0] = 1.0
    collection.shard(1).features[0] = 1.0
    assert len(opened) == 4
