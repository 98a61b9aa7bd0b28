"""Folders: one partition per file or Hive folder, whatever the chunks; drift is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from privpipe.errors import GuessWarning, InputError, StoreError
from privpipe.records.schema import cut_by_partition
from privpipe.store.collections.collection import open_collection
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import make_frame, read_collection

LAYOUT = SourceLayout(labels=("smoker", "town"), drop=("id", "score"))


def write_folder(folder, frames, end="parquet"):
    for name, frame in frames.items():
        path = folder / f"{name}.{end}"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path) if end == "parquet" else frame.to_csv(path, index=False)
    return str(folder)


def three_frames():
    return {f"part-{i}": make_frame(n, seed=i) for i, n in enumerate((30, 7, 23))}


@pytest.mark.parametrize("end", ["parquet", "csv", "csv.gz"])
def test_ingest__each_file_of_a_folder_is_a_partition(tmp_path, end):
    frames = three_frames()
    folder = write_folder(tmp_path / "in", frames, end)
    (tmp_path / "in" / "_SUCCESS").touch()
    (tmp_path / "in" / ".part-0.crc").write_bytes(b"x")
    options = IngestOptions(layout=LAYOUT, chunk_bytes=13 * 3 * 8)
    schema = ingest(folder, str(tmp_path / "c.zarr"), options)
    assert schema.chunk_rows == 13
    assert [(p.name, p.first_record, p.n_records) for p in schema.partitions] == [
        (f"part-0.{end}", 0, 30),
        (f"part-1.{end}", 30, 7),
        (f"part-2.{end}", 37, 23),
    ]
    whole = pd.concat(frames.values())
    found = read_collection(tmp_path / "c.zarr")
    np.testing.assert_array_equal(found["features"], whole[["height", "weight", "steps"]])
    assert found["smoker"] == [str(value) for value in whole["smoker"]]
    # A chunk crosses partitions, and still every record is known by its partition.
    runs = cut_by_partition(schema.partitions, 26, 39)
    assert [(r.partition.name, r.first_record, r.n_records) for r in runs] == [
        (f"part-0.{end}", 26, 4),
        (f"part-1.{end}", 0, 7),
        (f"part-2.{end}", 0, 2),
    ]


def digests(url, tmp_path, name, **options):
    layout = options.pop("layout", LAYOUT)
    schema = ingest(url, str(tmp_path / name), IngestOptions(layout=layout, **options))
    return {partition.name: partition.digest for partition in schema.partitions}


def test_ingest__digest_of_a_partition_is_of_its_content_alone(tmp_path):
    frames = three_frames()
    first = digests(write_folder(tmp_path / "a", frames), tmp_path, "a.zarr")
    chunked = digests(str(tmp_path / "a"), tmp_path, "b.zarr", chunk_bytes=100)
    assert first == chunked
    assert len(set(first.values())) == 3
    frames["part-1"].loc[2, "height"] += 1e-9
    del frames["part-0"]
    second = digests(write_folder(tmp_path / "c", frames), tmp_path, "c.zarr")
    assert second["part-2.parquet"] == first["part-2.parquet"]
    assert second["part-1.parquet"] != first["part-1.parquet"]
    other = digests(str(tmp_path / "a"), tmp_path, "d.zarr", dtype="float32")
    assert not set(other.values()) & set(first.values())


def test_ingest__equal_partitions_have_different_digests(tmp_path):
    frame = make_frame(9)
    empty = frame.iloc[:0].astype({"town": "str"})
    frames = {"a": frame, "b": frame, "c": empty, "d": empty}
    found = digests(write_folder(tmp_path / "a", frames), tmp_path, "a.zarr")
    assert len(set(found.values())) == 4
    assert all(len(digest) == 64 for digest in found.values())


def test_ingest__hive_folders_are_partitions_and_their_keys_columns_on_request(tmp_path):
    frames = {
        "year=2023/town=Ulm/a": make_frame(9, 1).drop(columns="town"),
        "year=2023/town=Ulm/b": make_frame(10, 2).drop(columns="town"),
        "year=2024/town=a%20b/a": make_frame(7, 3).drop(columns="town"),
        "year=2024/town=__HIVE_DEFAULT_PARTITION__/a": make_frame(8, 4).drop(columns="town"),
    }
    folder = write_folder(tmp_path / "in", frames)
    drop = ("id", "score", "smoker")
    plain = SourceLayout(drop=drop)
    schema = ingest(folder, str(tmp_path / "p.zarr"), IngestOptions(layout=plain))
    assert schema.variables == ()
    sizes = {partition.name: partition.n_records for partition in schema.partitions}
    assert sizes == {
        "year=2023/town=Ulm": 19,
        "year=2024/town=__HIVE_DEFAULT_PARTITION__": 8,
        "year=2024/town=a%20b": 7,
    }
    keyed = SourceLayout(drop=drop, labels=("town", "year"))
    with pytest.warns(GuessWarning, match="^year: whole numbers, which are stored as classes"):
        ingest(folder, str(tmp_path / "k.zarr"), IngestOptions(layout=keyed))
    found = read_collection(tmp_path / "k.zarr")
    assert found["town"] == ["Ulm"] * 19 + [None] * 8 + ["a b"] * 7
    assert found["year"] == ["2023"] * 19 + ["2024"] * 15


def test_ingest__types_may_widen_as_integers_do_and_columns_may_change_places(tmp_path):
    frames = three_frames()
    frames["part-1"] = frames["part-1"][frames["part-1"].columns[::-1]].astype({"steps": "int8"})
    folder = write_folder(tmp_path / "in", frames)
    ingest(folder, str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))
    whole = pd.concat(three_frames().values())
    found = read_collection(tmp_path / "c.zarr")
    np.testing.assert_array_equal(found["features"], whole[["height", "weight", "steps"]])


@pytest.mark.parametrize("end", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="steps"), "lacks steps"),
        (lambda f: f.assign(extra=1), "adds extra"),
        (lambda f: f.rename(columns={"height": "Height"}), "lacks height; adds Height"),
    ],
)
def test_ingest__columns_that_drift_are_refused(tmp_path, end, change, message):
    frames = three_frames()
    frames["part-2"] = change(frames["part-2"])
    folder = write_folder(tmp_path / "in", frames, end)
    with pytest.raises(InputError, match=rf"part-2.*partition 2.*{message}") as caught:
        ingest(folder, str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))
    assert caught.value.code == "schema-drift"
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__types_that_drift_are_refused(tmp_path):
    frames = three_frames()
    frames["part-1"] = frames["part-1"].astype({"steps": "str"})
    folder = write_folder(tmp_path / "in", frames)
    with pytest.raises(InputError, match=r"has other types in steps \(.*string here, int64 there"):
        ingest(folder, str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))


def test_ingest__messages_leave_out_the_values_of_hive_keys(tmp_path):
    frames = {"ill=yes/a": make_frame(8), "ill=secret/a": make_frame(8).drop(columns="steps")}
    folder = write_folder(tmp_path / "in", frames)
    with pytest.raises(InputError, match=r"ill=\*/a.parquet \(partition 1\)") as caught:
        ingest(folder, str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))
    assert "secret" not in str(caught.value)
    assert "yes" not in str(caught.value)


def test_ingest__mixed_formats_and_uneven_keys_are_refused(tmp_path):
    folder = write_folder(tmp_path / "in", three_frames())
    write_folder(tmp_path / "in", {"extra": make_frame(8)}, "csv")
    with pytest.raises(InputError, match="several formats: csv, parquet"):
        ingest(folder, str(tmp_path / "c.zarr"))
    uneven = write_folder(tmp_path / "uneven", {"a=1/x": make_frame(8), "b=1/x": make_frame(8)})
    with pytest.raises(InputError, match="differ in their Hive keys"):
        ingest(uneven, str(tmp_path / "c.zarr"))


def test_ingest__what_is_no_source_is_told(tmp_path):
    (tmp_path / "t.docx").write_bytes(b"")
    (tmp_path / "t.xls").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"before 2007.* Save it as \.xlsx"):
        ingest(str(tmp_path / "t.xls"), str(tmp_path / "c.zarr"))
    for name in ("t.docx", "empty"):
        with pytest.raises(InputError, match=r"format of .* is not known"):
            ingest(str(tmp_path / name), str(tmp_path / "c.zarr"))
    with pytest.raises(StoreError, match="nothing at"):
        ingest(str(tmp_path / "gone.csv"), str(tmp_path / "c.zarr"))
    with pytest.raises(StoreError, match="the scheme 'nosuchscheme', which is not known"):
        ingest("nosuchscheme://x/t.csv", str(tmp_path / "c.zarr"))


def test_ingest__a_source_that_grows_meanwhile_is_refused(tmp_path, monkeypatch):
    folder = write_folder(tmp_path / "in", three_frames())
    from privpipe.store.collections import ingest as module

    real = module.survey_source

    def survey_then_grow(*args, **kwargs):
        found = real(*args, **kwargs)
        make_frame(8).to_parquet(tmp_path / "in" / "part-1.parquet")
        return found

    monkeypatch.setattr(module, "survey_source", survey_then_grow)
    with pytest.raises(StoreError, match="another number of records"):
        ingest(folder, str(tmp_path / "c.zarr"), IngestOptions(layout=LAYOUT))
    assert not (tmp_path / "c.zarr").exists()
    with pytest.raises(StoreError, match="No collection"):
        open_collection(str(tmp_path / "c.zarr"))
