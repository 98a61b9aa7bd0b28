"""A pass that was interrupted goes on where it was; another question gets no old answer."""

from __future__ import annotations

import itertools
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from privpipe.attacks.evidence import prepare_evidence
from privpipe.attacks.options import AttackOptions
from privpipe.dist.attacks import distribute_attacks
from privpipe.dist.kept import FEWEST_KEPT, Keeper
from privpipe.dist.reduce import ShardedCollection, summarise_chunks
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.splits import make_split
from privpipe.store.collection import Collection, open_collection
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
def keeper(tmp_path: Path) -> Keeper:
    return Keeper(str(tmp_path / "kept"))


def test_sum__goes_on_within_a_task_and_ends_with_the_same_bits(
    collection: Collection, keeper: Keeper
) -> None:
    undisturbed = summarise_chunks(collection, moments_of, CHUNKS)
    for dies_at in (0, 3, 2):
        with pytest.raises(KeyboardInterrupt):
            summarise_chunks(collection, DyingSummary(dies_at), CHUNKS, keeper)
    rest = DyingSummary()
    resumed = summarise_chunks(collection, rest, CHUNKS, keeper)
    assert rest.seen == len(CHUNKS) - 5
    assert np.array_equal(resumed.scatter, undisturbed.scatter)
    assert np.array_equal(resumed.mean, undisturbed.mean)
    again = DyingSummary(dies_at=0)
    assert np.array_equal(
        summarise_chunks(collection, again, CHUNKS, keeper).mean, undisturbed.mean
    )


def test_sum__of_few_records_is_not_kept(tmp_path: Path, keeper: Keeper) -> None:
    url = str(tmp_path / "few.zarr")
    write_standard(url, FEWEST_KEPT - 1, chunk_rows=100)
    summarise_chunks(open_collection(url), moments_of, range(10), keeper)
    assert not Path(keeper.url).exists()


def test_sum__is_not_kept_when_it_is_no_smaller_than_what_it_sums(
    tmp_path: Path, keeper: Keeper
) -> None:
    url = str(tmp_path / "short.zarr")
    write_standard(url, 1200, chunk_rows=100)  # 9 features: a chunk has hardly more bytes
    opened = open_collection(url)
    summarise_chunks(opened, moments_of, range(12), keeper)
    kept = sum(file.stat().st_size for file in Path(keeper.url).glob("*"))
    assert kept <= 1200 * 9 * 8 / 16


def test_sum__larger_than_its_share_is_not_kept(collection: Collection, keeper: Keeper) -> None:
    # 110 kB of the 1152 that it sums up: more than a sixteenth.
    summarise_chunks(collection, wide_moments_of, CHUNKS, keeper)
    assert not Path(keeper.url).exists()


def test_sum__of_short_chunks_is_kept_once_they_are_many(tmp_path: Path, keeper: Keeper) -> None:
    url = str(tmp_path / "short.zarr")
    write_standard(url, 2000, chunk_rows=100)
    summarise_chunks(open_collection(url), narrow_moments_of, range(20), keeper)
    kept = keeper.read("000000-20")
    assert FEWEST_KEPT <= kept.n_records == 100 * kept.n_chunks == kept.statistic.count


def test_sum__counts_all_records_after_it_went_on(collection: Collection, keeper: Keeper) -> None:
    for dies_at in (3, 2):
        with pytest.raises(KeyboardInterrupt):
            summarise_chunks(collection, DyingSummary(dies_at), CHUNKS, keeper)
    kept = keeper.read("000000-08")
    assert kept.n_records == 2000 * kept.n_chunks == kept.statistic.count == 10_000


def test_sum__of_fewer_chunks_is_not_taken_from_that_of_more(
    collection: Collection, keeper: Keeper
) -> None:
    for chunks in (range(8), range(4), range(4, 8)):
        found = summarise_chunks(collection, moments_of, chunks, keeper)
        assert found.count == 2000 * len(chunks)
        expected = summarise_chunks(collection, moments_of, chunks)
        assert np.array_equal(found.mean, expected.mean)


def test_reduce__answers_no_other_question_on_workers(
    client: Client, collection: Collection, keeper: Keeper
) -> None:
    runs = itertools.count(0xAAAC)

    def ask(asked: Collection, scale: float) -> CoMoments:
        sharded = ShardedCollection(asked, client, f"{next(runs):08x}", keeper=keeper)
        return sharded.reduce(partial(scaled_moments_of, scale=scale))

    one, two = ask(collection, 1.0), ask(collection, 2.0)
    np.testing.assert_allclose(two.mean, 2 * one.mean, rtol=1e-12)
    assert ask(collection.keeping(make_split(0.5), "fit"), 1.0).count < one.count


def test_reduce__finds_kept_sums_on_workers(
    client: Client, collection: Collection, keeper: Keeper
) -> None:
    first = ShardedCollection(collection, client, "0000aaaa", keeper=keeper).reduce(moments_of)
    files = {file: file.stat().st_mtime_ns for file in Path(keeper.url).iterdir()}
    assert files
    again = ShardedCollection(collection, client, "0000aaab", keeper=keeper).reduce(moments_of)
    assert {file: file.stat().st_mtime_ns for file in Path(keeper.url).iterdir()} == files
    assert np.array_equal(first.scatter, again.scatter)


def test_question__differs_with_all_that_an_answer_depends_on(
    collection: Collection, keeper: Keeper
) -> None:
    split = make_split(0.5)
    questions = [
        keeper.about(collection, moments_of),
        keeper.about(collection.keeping(split, "fit"), moments_of),
        keeper.about(collection.keeping(split, "test"), moments_of),
        keeper.about(collection, partial(scaled_moments_of, scale=1.0)),
        keeper.about(collection, partial(scaled_moments_of, scale=2.0)),
        keeper.about(collection, partial(scaled_moments_of, scale=np.float64(2.0) + 1e-15)),
    ]
    assert len(set(questions)) == len(questions)


def test_question__within_another_is_another(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = keeper.about("one"), keeper.about("two")
    assert one is not None
    assert two is not None
    questions = [one.about("part"), two.about("part"), keeper.about("part")]
    assert len(set(questions)) == 3
    monkeypatch.setattr("privpipe.dist.kept.version", lambda name: f"another {name}")
    assert keeper.about("one") != one


def test_question__without_a_name_is_not_kept(keeper: Keeper) -> None:
    assert keeper.about(object()) is None


def test_question__has_the_same_name_in_every_process(
    collection: Collection, keeper: Keeper
) -> None:
    asked = "about(open_collection(sys.argv[1]), partial(scaled_moments_of, scale=np.ones(3)))"
    code = (
        "import sys; import numpy as np; from functools import partial;"
        "from privpipe.dist.kept import Keeper;"
        "from privpipe.store.collection import open_collection;"
        "from tests.dist.test_kept import scaled_moments_of;"
        f"print(Keeper(sys.argv[2]).{asked}.question)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, collection.url, keeper.url],
        capture_output=True,
        text=True,
        check=True,
    )
    ours = keeper.about(collection, partial(scaled_moments_of, scale=np.ones(3)))
    assert ours is not None
    assert other.stdout.strip() == ours.question


def test_attacks__are_not_repeated(client: Client, keeper: Keeper) -> None:
    random = np.random.default_rng(0)
    secret = random.integers(0, 2, 300)
    options = AttackOptions(adversaries=("least_squares", "naive_bayes"), n_replicates=60)
    evidence = prepare_evidence(
        random.normal(size=(300, 3)) + secret[:, None], secret, options=options
    )
    first = distribute_attacks(client, evidence, options=options, keeper=keeper)
    again = distribute_attacks(client, evidence, options=options, keeper=keeper)
    alone = distribute_attacks(client, evidence, options=options)
    # An attack that was run again took another time.
    assert [o.seconds for o in again.outcomes] == [o.seconds for o in first.outcomes]
    assert [o.seconds for o in alone.outcomes] != [o.seconds for o in first.outcomes]
    assert [o.scores for o in again.outcomes] == [o.scores for o in alone.outcomes]
