"""What every row of `METHODS` must do from records to artifact; examples are in `tests/methods`.

`test_contract` holds maps of every kind to the same; here each method is fitted on a collection,
with checkpoints, as a run fits it.
"""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.pass_checkpoints import Checkpoints
from privpipe.cluster.passes.reduce import ShardedCollection
from privpipe.errors import InputError
from privpipe.numerics import moments
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import Guarantee, RecordMap
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.options import make_options
from privpipe.store.collections.collection import Collection, open_collection
from privpipe.store.models import digest_map, open_model, write_model
from tests.methods import EXAMPLES
from tests.methods.example import N_RECORDS, PROFILES, name_codes
from tests.standard import make_standard, write_standard


class Counting(Executor):
    """Counts passes and rounds that read records."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    def oracle(self, *arguments: Any, **options: Any) -> Any:
        ask = super().oracle(*arguments, **options)

        def counted(parameters: Any, /) -> Any:
            self.read += 1
            return ask(parameters)

        return counted


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The same records in chunks of 100 and of 350."""
    folder = tmp_path_factory.mktemp("rows")
    found = tuple(str(folder / f"{rows}.zarr") for rows in (100, 350))
    for url, rows in zip(found, (100, 350), strict=True):
        write_standard(url, N_RECORDS, chunk_rows=rows)
    return found[0], found[1]


def open_for(url: str) -> Collection:
    return open_collection(
        url, desired=["late"], confidential=["party"], attributes=PROFILES, public=True
    )


def fit(
    name: str, url: str, checkpoints: Checkpoints | None = None, executor: Any = None
) -> RecordMap:
    """As the training stage does."""
    method, row = METHODS[name], EXAMPLES[name]
    options = make_options(method.options, {"name": name, **row.options}, name)
    shards = ShardedCollection(open_for(url), executor or Executor(), checkpoints=checkpoints)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return (row.fit or method.fit)(shards, options)


Fits = Callable[[str], RecordMap]


@pytest.fixture(scope="module")
def fits(urls: tuple[str, str]) -> Fits:
    """Each row fitted once."""
    return cache(lambda name: fit(name, urls[0]))


@pytest.fixture(scope="module", params=sorted(METHODS))
def fitted(request: pytest.FixtureRequest, fits: Fits) -> tuple[str, RecordMap]:
    return request.param, fits(request.param)


@pytest.fixture(
    scope="module", params=sorted(name for name in METHODS if METHODS[name].releases == "rows")
)
def mapped(request: pytest.FixtureRequest, fits: Fits) -> tuple[str, RecordMap]:
    """Of those that map records; `tests/sanitizers/masking` draws surrogates in any chunks."""
    return request.param, fits(request.param)


def draw_inputs(fitted: RecordMap) -> Any:
    x, labels = make_standard(N_RECORDS)
    if fitted.reads == "features":
        return x
    return np.column_stack([labels[name] for name in PROFILES]).astype(np.int8)


def release(fitted: RecordMap, x: Any, first: int = 0) -> Any:
    stream = KeyedStream(bytes(32), partition="p", first_record=first, n_records=len(x))
    return fitted.apply(name_codes(fitted, x), stream)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_row__multiplies_features_where_it_says_so(
    name: str, urls: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of too many features `check` refuses those methods whose fit would, and no other."""
    monkeypatch.setattr(moments, "MOST_FEATURES", 5)
    refused = False
    try:
        fit(name, urls[1])
    except InputError as error:
        refused = error.code == "too_many_features"
    options = METHODS[name].options(**{"name": name, **EXAMPLES[name].options})
    learned = options.filter if name == "noisy" else options
    assert refused == learned.multiplies


def test_row__makes_one_of_its_maps(fitted: tuple[str, RecordMap]) -> None:
    name, found = fitted
    assert type(found) in METHODS[name].maps
    assert found.draws == EXAMPLES[name].draws


def test_row__has_a_digest_of_all_that_it_holds_and_nothing_else(
    fitted: tuple[str, RecordMap], urls: tuple[str, str]
) -> None:
    name, found = fitted
    assert digest_map(fit(name, urls[0])) == digest_map(found)
    for item in fields(found):  # type: ignore[arg-type]
        value = getattr(found, item.name)
        other = alter(value)
        if other is not value:
            changed = copy.copy(found)
            object.__setattr__(changed, item.name, other)  # no matter if it is allowed
            assert digest_map(changed) != digest_map(found), item.name


def alter(value: Any) -> Any:
    """The same with one thing changed as little as can be; itself where there is nothing in it."""
    if isinstance(value, np.ndarray) and value.size:
        changed = value.copy()
        place = np.unravel_index(value.size - 1, value.shape)
        if value.dtype.kind == "f":
            was = changed[place] if np.isfinite(changed[place]) else 0.0
            changed[place] = np.nextafter(was, np.inf)
        else:
            changed[place] = not changed[place] if value.dtype.kind == "b" else changed[place] + 1
        return changed
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + " "
    if isinstance(value, tuple) and value:
        return (*value[:-1], alter(value[-1]))
    if isinstance(value, Guarantee):
        return replace(value, assumptions=value.assumptions + " ")
    return value


def test_row__travels_whole(fitted: tuple[str, RecordMap], tmp_path: Path) -> None:
    name, found = fitted
    sent = pickle.loads(pickle.dumps(found))
    digest = write_model(found, str(tmp_path / "map.zarr"))
    again = open_model(str(tmp_path / "map.zarr"))
    assert digest == digest_map(again) == digest_map(sent) == digest_map(found)
    assert again.guarantee == found.guarantee
    if METHODS[name].releases == "rows":
        x = draw_inputs(found)
        expected = release(found, x)
        np.testing.assert_array_equal(release(sent, x), expected)
        np.testing.assert_array_equal(release(again, x), expected)


def test_row__releases_the_same_in_any_chunks(mapped: tuple[str, RecordMap]) -> None:
    name, found = mapped
    x = draw_inputs(found)
    whole = release(found, x)
    for rows in (1, 37, 500):
        starts = range(0, len(x) if rows > 1 else 40, rows)
        parts = np.concatenate([release(found, x[at : at + rows], at) for at in starts])
        if found.draws:
            np.testing.assert_array_equal(parts, whole[: len(parts)])
        else:
            np.testing.assert_allclose(parts, whole[: len(parts)], rtol=1e-6, atol=1e-9)
    if found.draws:
        assert (release(found, x, 1) != whole).any(), name


def test_row__learns_the_same_from_other_chunks(
    mapped: tuple[str, RecordMap], urls: tuple[str, str]
) -> None:
    """To rounding: sums are added in another order. What stops early may differ by a step."""
    name, found = mapped
    other = fit(name, urls[1])
    x = draw_inputs(found)
    scale = np.abs(release(found, x)).max()
    np.testing.assert_allclose(release(other, x), release(found, x), atol=1e-4 * scale)


def test_row__has_a_guarantee_that_is_true(fitted: tuple[str, RecordMap]) -> None:
    name, found = fitted
    promise = found.guarantee
    assert promise.theorem
    assert promise.unit or promise.number is None
    json.dumps(asdict(promise), allow_nan=False)
    assert METHODS[name].promise
    EXAMPLES[name].promise(found)


def test_row__reads_nothing_again_of_what_is_checkpointed(
    fitted: tuple[str, RecordMap],
    urls: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name, found = fitted
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.CHECKPOINTED_SHARE", 100.0)
    monkeypatch.setattr("privpipe.cluster.pass_checkpoints.FEWEST_CHECKPOINTED", 1)
    n_read, shard = [0], Collection.shard

    def counted(collection: Collection, chunk: int) -> Any:
        n_read[0] += 1
        return shard(collection, chunk)

    monkeypatch.setattr(Collection, "shard", counted)
    checkpoints, first, second = Checkpoints(str(tmp_path / "kept")), Counting(), Counting()
    assert digest_map(fit(name, urls[0], checkpoints, first)) == digest_map(found)
    assert (n_read[0] >= 12) == (name != "rand")  # which is drawn, not learned
    n_read[0] = 0
    assert digest_map(fit(name, urls[0], checkpoints, second)) == digest_map(found)
    assert second.read == 0
    assert n_read[0] == 0
