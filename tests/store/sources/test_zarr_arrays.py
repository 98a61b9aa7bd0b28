"""Arrays: .npz and Zarr give what numpy reads, whatever the order of their bytes."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from privpipe.errors import FormatError, InputError, OptionError, StoreError
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.store.tables import read_collection

pytestmark = pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")  # unrelated


def make_arrays(order="C"):
    rng = np.random.default_rng(3)
    return {
        "X": np.asarray(rng.normal(size=(23, 4)), order=order),
        "Y": np.asarray(rng.integers(0, 2, (23, 2)), order=order),
        "age": np.where(np.arange(23) == 2, np.nan, rng.normal(size=23)),
        "town": rng.choice(["Ulm", "Köln", ""], 23),
        "flag": rng.integers(0, 2, 23).astype(bool),
        "target_names": np.array(["left", "right"]),
        "feature_names": np.array(["a", "b", "c", "d"]),
        "unrelated": np.zeros(5),
    }


def write_arrays(tmp_path, arrays, kind):
    if kind == "zarr":
        path = tmp_path / "source.zarr"
        group = zarr.open_group(str(path), mode="w")
        for name, array in arrays.items():
            if array.dtype.kind != "U":
                group.create_array(name, data=array, chunks=tuple(min(5, n) for n in array.shape))
        return str(path)
    path = tmp_path / "source.npz"
    (np.savez_compressed if kind == "compressed" else np.savez)(path, **arrays)
    return str(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["plain", "compressed", "zarr"])
def test_ingest__arrays_are_read_as_numpy_does(tmp_path, kind, order):
    arrays = make_arrays(order)
    url = write_arrays(tmp_path, arrays, kind)
    dest = tmp_path / "c.zarr"
    names = ("Y_0", "Y_1") if kind == "zarr" else ("left", "right")
    schema = ingest(url, str(dest), IngestOptions(chunk_bytes=5 * 4 * 8))
    found = read_collection(dest)
    np.testing.assert_array_equal(found["features"], arrays["X"])
    np.testing.assert_array_equal(found["age"], arrays["age"])
    assert found["flag"] == [str(value).lower() for value in arrays["flag"]]
    for j, name in enumerate(names):
        assert found[name] == [str(value) for value in arrays["Y"][:, j]]
    if kind != "zarr":
        assert found["town"] == [town or None for town in arrays["town"].tolist()]
        assert schema.feature_names == ("a", "b", "c", "d")
    assert len(schema.partitions) == 1


@pytest.mark.parametrize(
    ("layout", "kind", "message"),
    [
        ({"features": ("Z",)}, InputError, "no array 'Z'"),
        ({"features": ("X", "Y")}, OptionError, "names 2 arrays"),
        ({"features": ("town",)}, InputError, r"'town' have shape \(23,\)"),
        ({"labels": ("agee",)}, InputError, "no array of 23 rows 'agee', did you mean 'age'"),
        ({"categorical": ("lft",)}, OptionError, "no variable 'lft', did you mean 'left'"),
        ({"numeric": ("town",)}, InputError, "'town' holds text and cannot be numeric"),
    ],
)
def test_ingest__arrays_that_do_not_fit_are_told(tmp_path, layout, kind, message):
    url = write_arrays(tmp_path, make_arrays(), "plain")
    with pytest.raises(kind, match=message) as caught:
        ingest(url, str(tmp_path / "c.zarr"), IngestOptions(layout=SourceLayout(**layout)))
    assert "Ulm" not in str(caught.value)


def test_ingest__dropped_variables_are_left_out(tmp_path):
    url = write_arrays(tmp_path, make_arrays(), "plain")
    options = IngestOptions(layout=SourceLayout(drop=("left",)), drop=("town",))
    schema = ingest(url, str(tmp_path / "c.zarr"), options)
    assert [v.name for v in schema.variables] == ["right", "age", "flag"]


def test_ingest__damaged_arrays_are_told(tmp_path):
    x = np.random.default_rng(0).normal(size=(3000, 4))
    np.savez(tmp_path / "whole.npz", X=x)
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "short.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(StoreError, match=r"short\.npz cannot be read as \.npz"):
        ingest(str(tmp_path / "short.npz"), str(tmp_path / "c.zarr"))
    at = content.index(x.tobytes()) + 50_000
    (tmp_path / "bent.npz").write_bytes(content[:at] + b"\xff\xfe" + content[at + 2 :])
    with pytest.raises(StoreError, match=r"array 'X' of .* cannot be read"):
        ingest(str(tmp_path / "bent.npz"), str(tmp_path / "c.zarr"))
    assert not (tmp_path / "c.zarr").exists()


def test_ingest__objects_are_never_loaded(tmp_path):
    np.savez(tmp_path / "o.npz", X=np.zeros((2, 2)), y=np.array([object(), None]))
    with pytest.raises(InputError, match=r"'y' of .* holds Python objects"):
        ingest(str(tmp_path / "o.npz"), str(tmp_path / "c.zarr"))


@pytest.mark.parametrize(
    ("extra", "kind", "message"),
    [
        ({"a/b": np.arange(4)}, InputError, "cannot be named 'a/b'"),
        ({".b": np.arange(4)}, InputError, r"cannot be named '\.b'"),
        ({"feature_names": np.array(["u", "u"])}, InputError, "columns named u"),
        ({"feature_names": np.array(["u", "v"]), "v": np.arange(4)}, InputError, "columns named v"),
        ({"day": np.arange(4).astype("M8[D]")}, InputError, r"'day' .*no numbers or text"),
        ({"cube": np.zeros((4, 2, 2))}, InputError, r"'cube' .*float64"),
        ({"b": np.array([b"a", b"b", b"c", b"\xff"])}, FormatError, "not text in UTF-8"),
    ],
)
def test_ingest__arrays_that_cannot_be_stored_are_not_left_out_unseen(
    tmp_path, extra, kind, message
):
    np.savez(tmp_path / "s.npz", X=np.zeros((4, 2)), **extra)
    with pytest.raises(kind, match=message):
        ingest(str(tmp_path / "s.npz"), str(tmp_path / "c.zarr"))
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]
    names = [name for name in extra if name != "feature_names"]
    if names:
        options = IngestOptions(drop=tuple(names))
        assert ingest(str(tmp_path / "s.npz"), str(tmp_path / "c.zarr"), options).variables == ()


def test_ingest__foreign_byte_orders_and_bytes_are_read(tmp_path):
    x, y = np.arange(8.0).reshape(4, 2), np.array([3, 1, 2, 1])
    town = np.array(["Ulm", "Köln", "Ulm", ""])
    encoded = np.char.encode(town, "utf-8")
    np.savez(tmp_path / "s.npz", X=x.astype(">f8"), y=y.astype(">i4"), town=encoded)
    ingest(str(tmp_path / "s.npz"), str(tmp_path / "c.zarr"), IngestOptions(numeric=("y",)))
    found = read_collection(tmp_path / "c.zarr")
    np.testing.assert_array_equal(found["features"], x)
    np.testing.assert_array_equal(found["y"], y)
    assert found["town"] == [name or None for name in town.tolist()]


def test_ingest__a_collection_is_not_taken_for_a_foreign_group(tmp_path):
    np.savez(tmp_path / "s.npz", X=np.zeros((4, 2)))
    ingest(str(tmp_path / "s.npz"), str(tmp_path / "c.zarr"))
    with pytest.raises(InputError, match="is a privpipe collection already"):
        ingest(str(tmp_path / "c.zarr"), str(tmp_path / "d.zarr"))
    zarr.save_array(str(tmp_path / "a.zarr"), np.zeros((3, 2)))
    with pytest.raises(StoreError, match="not an array alone"):
        ingest(str(tmp_path / "a.zarr"), str(tmp_path / "d.zarr"))
