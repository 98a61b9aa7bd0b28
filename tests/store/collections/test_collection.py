"""Collections: ingest from arrays, open, read in parts, notice what is missing or damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr

from privpipe.errors import FormatError, GuessWarning, InputError, StoreError
from privpipe.numerics.moments import CoMoments
from privpipe.protocols import Shard
from privpipe.records.sampling import make_split
from privpipe.records.schema import CollectionSchema
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.growing_collection import append_partition, count_gaps
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.collections.writing import write_collection
from privpipe.store.sources.reading.source import SourceLayout
from tests.standard import make_standard, write_standard


def moments_of(shard: Shard) -> CoMoments:
    return CoMoments.of(np.hstack([shard.features, shard.desired, shard.confidential]))


def write_npz(path: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    arrays = {
        "X": np.asfortranarray(rng.normal(size=(101, 5))),
        "Y": rng.integers(0, 2, size=(101, 2)),
        "colour": rng.choice(["red", "green", "blue"], size=101),
        "age": rng.permutation(101),  # too many values for classes
        "target_names": np.array(["beach", "urban"]),
    }
    np.savez_compressed(path, **arrays)
    return arrays


def test_digest__tells_values_apart_whose_chunks_have_one_length(tmp_path: Path) -> None:
    digests = set()
    for seed in (0, 0, 1, 2):
        url = str(tmp_path / f"{seed}-{len(list(tmp_path.iterdir()))}.zarr")
        x = np.random.default_rng(seed).normal(size=(60, 3))  # does not compress
        schema = CollectionSchema(
            n_records=60, n_features=3, dtype="float64", chunk_rows=20, variables=()
        )
        write_collection(url, schema, ({"features": x[i : i + 20]} for i in (0, 20, 40)))
        digests.add(open_collection(url).digest)
    assert len(digests) == 3


def test_ingest__keeps_values_names_and_kinds(tmp_path: Path) -> None:
    arrays = write_npz(tmp_path / "source.npz")
    with pytest.warns(GuessWarning, match=r"^age: whole numbers, which are stored as numbers"):
        schema = ingest(
            str(tmp_path / "source.npz"), str(tmp_path / "r.zarr"), IngestOptions(chunk_bytes=800)
        )
    assert schema.chunk_rows == 20
    group = zarr.open_group(str(tmp_path / "r.zarr"), mode="r")
    assert np.array_equal(np.asarray(group["features"][...]), arrays["X"])  # type: ignore[index]
    assert schema.variable("beach").categories == ("0", "1")
    assert schema.variable("age").categories is None
    assert schema.variable("colour").categories == ("blue", "green", "red")
    codes = np.asarray(group["colour"][...])  # type: ignore[index]
    assert np.array_equal(np.array(["blue", "green", "red"])[codes], arrays["colour"])


def test_ingest__reads_zarr_and_leaves_nothing_when_it_fails(tmp_path: Path) -> None:
    group = zarr.create_group(str(tmp_path / "foreign.zarr"))
    group.create_array("features", data=np.full((50, 3), 1e300))
    with pytest.raises(InputError, match="overflow float32"):
        ingest(
            str(tmp_path / "foreign.zarr"), str(tmp_path / "r.zarr"), IngestOptions(dtype="float32")
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["foreign.zarr"]
    ingest(str(tmp_path / "foreign.zarr"), str(tmp_path / "r.zarr"))
    with pytest.raises(StoreError, match="exists"):
        ingest(str(tmp_path / "foreign.zarr"), str(tmp_path / "r.zarr"))


def test_parts__add_up_to_the_whole(tmp_path: Path) -> None:
    url = str(tmp_path / "r.zarr")
    write_standard(url, 500, chunk_rows=37)
    opened = open_collection(url, desired=["height"], confidential=["party"])
    split = make_split(0.4, "person")
    fit, held_out = (opened.keeping(split, part).reduce(moments_of) for part in ("fit", "held_out"))
    whole, x = opened.reduce(moments_of), make_standard(500)[0]
    assert fit.count + held_out.count == whole.count == 500
    np.testing.assert_allclose(fit.merge(held_out).scatter, whole.scatter, rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(whole.mean[:9], x.mean(axis=0), rtol=1e-12)
    some, rest = opened.count_parts(split, ("held_out", "fit"))
    assert some.n_records == some.n_groups == held_out.count
    assert rest.n_records == fit.count


def test_open_collection__suggests_names(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "r.zarr"), 20)
    with pytest.raises(InputError, match="did you mean 'income'"):
        open_collection(str(tmp_path / "r.zarr"), confidential=["incme"])


def test_open_collection__notices_missing_chunks(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "r.zarr"), 100, chunk_rows=10)
    (tmp_path / "r.zarr" / "features" / "c" / "3" / "0").unlink()
    with pytest.raises(StoreError, match="9 of 10 chunks of 'features'"):
        open_collection(str(tmp_path / "r.zarr"))


def test_read__notices_flipped_bits(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "r.zarr"), 100, chunk_rows=10)
    chunk = tmp_path / "r.zarr" / "features" / "c" / "3" / "0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    opened = open_collection(str(tmp_path / "r.zarr"))
    with pytest.raises(StoreError, match=r"Chunk 3 of 'features' in .* is not the one that"):
        opened.reduce(moments_of)


def test_open_collection__tells_what_else_it_is(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "foreign.zarr"))
    with pytest.raises(FormatError, match="not a privpipe collection"):
        open_collection(str(tmp_path / "foreign.zarr"))
    with pytest.raises(StoreError, match="privpipe ingest SOURCE DEST"):
        open_collection(str(tmp_path / "nothing.zarr"))


def test_count_gaps__of_a_growing_collection_are_those_of_its_partitions(tmp_path: Path) -> None:
    for number, lacking in enumerate((1, 2)):
        table = pd.DataFrame({"x": np.arange(20.0), "y": np.arange(20) % 2})
        table.loc[: lacking - 1, "x"] = np.nan
        table.to_csv(tmp_path / f"{number}.csv", index=False)
        time = f"2026-01-0{number + 1}T00:00:00+00:00"
        options = IngestOptions(layout=SourceLayout(labels=("y",)))
        place = str(tmp_path / f"{number}.csv")
        append_partition(place, str(tmp_path / "grown.zarr"), str(number), time, options)
    assert count_gaps(str(tmp_path / "grown.zarr")) == (3, 3)
    ingest(place, str(tmp_path / "whole.zarr"), options)
    assert count_gaps(str(tmp_path / "whole.zarr")) == (2, 2)
