"""A pass that was interrupted goes on where it was; another question gets no old answer."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Event, Executor
from privpipe.cluster.pass_checkpoints import FEWEST_CHECKPOINTED, Checkpoints, read_checkpoint
from privpipe.cluster.passes.attack_tasks import distribute_attacks
from privpipe.cluster.passes.reduce import ShardedCollection, summarise_chunks
from privpipe.errors import PrivpipeError
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.sampling import make_split
from privpipe.store.collections.collection import Collection, open_collection
from tests.standard import write_standard

CHUNKS = list(range(8))


def moments_of(shard: Shard) -> CoMoments:
    return CoMoments.of(shard.features)


def scaled_moments_of(shard: Shard, *, scale: float) -> CoMoments:
    return CoMoments.of(shard.features * scale)


def narrow_moments_of(shard: Shard) -> CoMoments:
    return CoMoments.of(shard.features[:, :1])


def wide_moments_of(shard: Shard) -> CoMoments:
    return CoMoments.of(np.tile(shard.features, 13))


def tiled_moments_of(shard: Shard, *, copies: int) -> CoMoments:
    return CoMoments.of(np.tile(shard.features, copies))


def fails(*_: object) -> Shard:
    raise AssertionError("nobody was to read records")


class DyingSummary:
    """Counts the shards it sees, and dies at one of them."""

    def __init__(self, dies_at: int = -1) -> None:
        self.dies_at, self.seen = dies_at, 0

    def __call__(self, shard: Shard) -> CoMoments:
        if self.seen == self.dies_at:
            raise KeyboardInterrupt
        self.seen += 1
        return moments_of(shard)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    url = str(tmp_path_factory.mktemp("kept") / "standard.zarr")
    write_standard(url, 16_000, chunk_rows=2000)
    return open_collection(url)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(str(tmp_path / "kept"))


def test_sum__of_a_finished_task_is_not_made_again(
    collection: Collection, checkpoints: Checkpoints
) -> None:
    undisturbed = summarise_chunks(collection, moments_of, None, CHUNKS).statistic
    with pytest.raises(KeyboardInterrupt):
        summarise_chunks(collection, DyingSummary(3), checkpoints, CHUNKS)
    whole = DyingSummary()
    for summary in (whole, DyingSummary(dies_at=0)):
        found = summarise_chunks(collection, summary, checkpoints, CHUNKS).statistic
        assert np.array_equal(found.scatter, undisturbed.scatter)
        assert np.array_equal(found.mean, undisturbed.mean)
    assert whole.seen == len(CHUNKS)


def test_sum__of_few_records_is_not_kept(tmp_path: Path, checkpoints: Checkpoints) -> None:
    url = str(tmp_path / "few.zarr")
    write_standard(url, FEWEST_CHECKPOINTED - 1, chunk_rows=100)
    summarise_chunks(open_collection(url), moments_of, checkpoints, range(10))
    assert not Path(checkpoints.url).exists()


def test_sum__is_not_kept_when_it_is_no_smaller_than_what_it_sums(
    tmp_path: Path, checkpoints: Checkpoints
) -> None:
    url = str(tmp_path / "short.zarr")
    write_standard(url, 1200, chunk_rows=100)  # 9 features: a chunk has hardly more bytes
    opened = open_collection(url)
    summarise_chunks(opened, moments_of, checkpoints, range(12))
    kept = sum(file.stat().st_size for file in Path(checkpoints.url).glob("*"))
    assert kept <= 1200 * 9 * 8 / 16


def test_sum__larger_than_its_share_is_not_kept(
    collection: Collection, checkpoints: Checkpoints
) -> None:
    # 110 kB of the 1152 that it sums up: more than a sixteenth.
    summarise_chunks(collection, wide_moments_of, checkpoints, CHUNKS)
    assert not Path(checkpoints.url).exists()


def test_sum__of_short_chunks_is_kept_once_they_are_many(
    tmp_path: Path, checkpoints: Checkpoints
) -> None:
    url = str(tmp_path / "short.zarr")
    write_standard(url, 2000, chunk_rows=100)
    summarise_chunks(open_collection(url), narrow_moments_of, checkpoints, range(20))
    kept = read_checkpoint(checkpoints.url, f"{checkpoints.question}-000000-20")
    assert kept.n_records == kept.statistic.count == 2000


def test_sum__of_fewer_chunks_is_not_taken_from_that_of_more(
    collection: Collection, checkpoints: Checkpoints
) -> None:
    for chunks in (range(8), range(4), range(4, 8)):
        found = summarise_chunks(collection, moments_of, checkpoints, chunks).statistic
        assert found.count == 2000 * len(chunks)
        expected = summarise_chunks(collection, moments_of, None, chunks).statistic
        assert np.array_equal(found.mean, expected.mean)


def test_reduce__answers_no_other_question_on_workers(
    client: Client, collection: Collection, checkpoints: Checkpoints
) -> None:
    runs = itertools.count(0xAAAC)

    def ask(asked: Collection, scale: float) -> CoMoments:
        sharded = ShardedCollection(
            asked, DaskExecutor(client, f"{next(runs):08x}"), checkpoints=checkpoints
        )
        return sharded.reduce(partial(scaled_moments_of, scale=scale))

    one, two = ask(collection, 1.0), ask(collection, 2.0)
    np.testing.assert_allclose(two.mean, 2 * one.mean, rtol=1e-12)
    assert ask(collection.keeping(make_split(0.5), "fit"), 1.0).count < one.count


def test_reduce__finds_kept_sums_on_workers(
    client: Client, collection: Collection, checkpoints: Checkpoints
) -> None:
    first = ShardedCollection(
        collection, DaskExecutor(client, "0000aaaa"), checkpoints=checkpoints
    ).reduce(moments_of)
    files = {file: file.stat().st_mtime_ns for file in Path(checkpoints.url).iterdir()}
    assert files
    again = ShardedCollection(
        collection, DaskExecutor(client, "0000aaab"), checkpoints=checkpoints
    ).reduce(moments_of)
    assert {file: file.stat().st_mtime_ns for file in Path(checkpoints.url).iterdir()} == files
    assert np.array_equal(first.scatter, again.scatter)


def test_question__differs_with_all_that_an_answer_depends_on(
    collection: Collection, checkpoints: Checkpoints
) -> None:
    split = make_split(0.5)
    questions = [
        checkpoints.about(collection, moments_of),
        checkpoints.about(collection.keeping(split, "fit"), moments_of),
        checkpoints.about(collection.keeping(split, "test"), moments_of),
        checkpoints.about(collection, partial(scaled_moments_of, scale=1.0)),
        checkpoints.about(collection, partial(scaled_moments_of, scale=2.0)),
        checkpoints.about(collection, partial(scaled_moments_of, scale=np.float64(2.0) + 1e-15)),
    ]
    assert len(set(questions)) == len(questions)


def test_question__within_another_is_another(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = checkpoints.about("one"), checkpoints.about("two")
    assert one is not None
    assert two is not None
    questions = [one.about("part"), two.about("part"), checkpoints.about("part")]
    assert len(set(questions)) == 3
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.version", lambda name: f"another {name}")
    assert checkpoints.about("one") != one


def test_question__without_a_name_is_not_kept(checkpoints: Checkpoints) -> None:
    assert checkpoints.about(object()) is None


@pytest.mark.slow
def test_question__has_the_same_name_in_every_process(
    collection: Collection, checkpoints: Checkpoints
) -> None:
    asked = "about(open_collection(sys.argv[1]), partial(scaled_moments_of, scale=np.ones(3)))"
    code = (
        "import sys; import numpy as np; from functools import partial;"
        "from privpipe.cluster.pass_checkpoints import Checkpoints;"
        "from privpipe.store.collections.collection import open_collection;"
        "from tests.cluster.test_pass_checkpoints import scaled_moments_of;"
        f"print(Checkpoints(sys.argv[2]).{asked}.question)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, collection.url, checkpoints.url],
        capture_output=True,
        text=True,
        check=True,
        # Clusters of other tests may have left Python safe from the folder it is started in.
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    ours = checkpoints.about(collection, partial(scaled_moments_of, scale=np.ones(3)))
    assert ours is not None
    assert other.stdout.strip() == ours.question


def test_attacks__are_not_repeated(client: Client, checkpoints: Checkpoints) -> None:
    random = np.random.default_rng(0)
    secret = random.integers(0, 2, 300)
    options = AttackOptions(adversaries=("least_squares", "naive_bayes"))
    evidence = partial(
        prepare_evidence, random.normal(size=(300, 3)) + secret[:, None], secret, options=options
    )
    first = distribute_attacks(
        DaskExecutor(client), evidence, options=options, checkpoints=checkpoints
    )
    again = distribute_attacks(
        DaskExecutor(client), evidence, options=options, checkpoints=checkpoints
    )
    alone = distribute_attacks(DaskExecutor(client), evidence, options=options)
    # An attack that was run again took another time.
    assert [o.seconds for o in again.outcomes] == [o.seconds for o in first.outcomes]
    assert [o.seconds for o in alone.outcomes] != [o.seconds for o in first.outcomes]
    assert [o.scores for o in again.outcomes] == [o.scores for o in alone.outcomes]


def test_reduce__keeps_the_whole_of_what_is_too_large_beside_a_task(
    collection: Collection, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """41 kB beside the 1152 of all records, and beside the 288 of a task."""
    heard: list[Event] = []
    wide = partial(tiled_moments_of, copies=8)
    shards = ShardedCollection(collection, Executor(heard.append), checkpoints=checkpoints)
    whole = shards.reduce(wide)
    assert len(list(Path(checkpoints.url).iterdir())) == 1
    told = count_chunks(heard)
    heard.clear()
    monkeypatch.setattr(Collection, "shard", fails)
    assert np.array_equal(shards.reduce(wide).scatter, whole.scatter)
    assert count_chunks(heard) == told == len(CHUNKS)
    with pytest.raises(PrivpipeError, match="AssertionError"):
        shards.reduce(partial(tiled_moments_of, copies=7))


def count_chunks(heard: list[Event]) -> float:
    """Chunks by which a pass advanced."""
    return sum(event.amount for event in heard if event.what == "advances")


def test_reduce__keeps_no_whole_of_few_records(tmp_path: Path, checkpoints: Checkpoints) -> None:
    """What a split leaves counts, not what the collection holds."""
    url = str(tmp_path / "few.zarr")
    write_standard(url, 4000, chunk_rows=100)
    opened = open_collection(url)
    few = opened.keeping(make_split(0.9), "fit")
    for asked, n_kept in ((few, 0), (opened, 1)):
        shards = ShardedCollection(asked, Executor(), checkpoints=checkpoints)
        count = shards.reduce(narrow_moments_of).count
        assert (count < FEWEST_CHECKPOINTED) == (n_kept == 0)
        wholes = list(Path(checkpoints.url).glob("*-whole")) if n_kept else []
        assert len(list(Path(checkpoints.url).glob("*whole*"))) == len(wholes) == n_kept
