"""Stores of an earlier privpipe open, verify and export as they did; see tests/data/format_1."""

from __future__ import annotations

import hashlib
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import flows.reproduce.laplace
import flows.reproduce.printed_cleaner  # noqa: F401  (two of the old models are of their kinds)
from privpipe import list_keys, open_model, open_release
from privpipe.command.inspect_command import inspect_command
from privpipe.errors import PrivacyWarning
from privpipe.numerics.random.streams import KeyedStream
from privpipe.store.collections.collection import open_collection
from privpipe.store.keyring.keyfiles import KeyBinding
from privpipe.store.keyring.keys import read_key
from privpipe.store.models import digest_map
from privpipe.store.releases.export import export_release

DATA = Path(__file__).parents[1] / "data" / "format_1"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
ROUNDED = {"features", "x0", "x1", "x2", "x3", "x4"}
"""Columns of the factored release that readers compute, so that their last bit is the machine's."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("format_1")
    with tarfile.open(DATA / "stores.tar.xz") as archive:
        # Without a filter in Python 3.11.2; the archive is our own.
        keeping = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        archive.extractall(folder, **keeping)
    (folder / "keys").chmod(0o700)
    for path in (folder / "keys").iterdir():
        path.chmod(0o600)
    return folder / "stores"


def digest_array(values: Any) -> str:
    found = np.ascontiguousarray(values)
    little = found.astype(found.dtype.newbyteorder("<"), copy=False)
    about = f"{little.dtype.str} {little.shape}\n".encode()
    return hashlib.sha256(about + little.tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["rows", "codes"])
def test_open_collection__reads_an_old_one(stores: Path, name: str) -> None:
    collection = open_collection(str(stores / f"{name}.zarr"))
    schema = collection.schema_of_records
    assert collection.digest == EXPECTED[name]["digest"]
    assert [part.digest for part in schema.partitions] == EXPECTED[name]["partitions"]
    found = {
        key: digest_array(collection.read(key, 0, schema.n_records))
        for key in EXPECTED[name]["arrays"]
    }
    assert found == EXPECTED[name]["arrays"]


def open_old(stores: Path, name: str) -> Any:
    """An old model; one of categories says that it does not know their names."""
    url = stores / f"{name}.model.zarr"
    if EXPECTED["models"][name]["kind"] != "sparse_mapping":
        return open_model(url)
    with pytest.warns(PrivacyWarning, match="does not know the names of the categories"):
        return open_model(url)


@pytest.mark.parametrize("name", sorted(EXPECTED["models"]))
def test_open_model__reads_an_old_one(stores: Path, name: str) -> None:
    fitted, expected = open_old(stores, name), EXPECTED["models"][name]
    assert fitted.kind == expected["kind"]
    assert fitted.n_features_out == expected["n_features_out"]
    assert digest_map(fitted) == expected["digest"]
    assert fitted.guarantee.kind == expected["guarantee"]


@pytest.mark.parametrize("name", sorted(EXPECTED["models"]))
def test_apply__of_an_old_model_releases_what_it_did(stores: Path, name: str) -> None:
    """Close, not equal: how a processor sums is its own affair, and arithmetic becomes better."""
    fitted, expected = (open_old(stores, name), np.load(DATA / "expected.npz")[name])
    if fitted.reads == "features":
        rng = np.random.default_rng(0)
        x: Any = rng.normal(size=(120, 5)) * [1, 5, 0.1, 1, 30] + [0, 3, -2, 0, 10]
        x = x[:20]
    else:
        roles = ("town", "smoker", "job")
        x = open_collection(str(stores / "codes.zarr"), attributes=roles).codes(0, 20)
    stream = KeyedStream(bytes(32), partition="p", first_record=0, n_records=20)
    applied = fitted.apply(x, stream)
    if fitted.reads == "attributes":  # what is drawn of the same law may be drawn in another way
        assert applied.shape == expected.shape
        assert ((applied >= 0) & (applied <= x.max(axis=0))).all()
        return
    np.testing.assert_allclose(applied, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", sorted(EXPECTED["releases"]))
def test_open_release__reads_an_old_one_byte_for_byte(stores: Path, name: str) -> None:
    url, expected = stores / f"{name}.zarr", EXPECTED["releases"][name]
    assert inspect_command(str(url), verify=True)["verified"] is True
    release = open_release(url, verify=True)
    rounded = ROUNDED if name == "factored" else set()
    arrays = {str(key): digest_array(value.values) for key, value in release.data_vars.items()}
    assert arrays.keys() == expected["arrays"].keys()
    for key in arrays.keys() - rounded:
        assert arrays[key] == expected["arrays"][key]
    files = {
        str(path.relative_to(url)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(url.rglob("*"))
        if path.is_file()
    }
    assert files == expected["files"]  # reading changes nothing


@pytest.mark.parametrize("name", sorted(EXPECTED["releases"]))
def test_export_release__of_an_old_one_is_byte_for_byte_the_same(
    stores: Path, name: str, tmp_path: Path
) -> None:
    target, expected = tmp_path / "out.parquet", EXPECTED["releases"][name]
    assert export_release(stores / f"{name}.zarr", target, verify=True) == 120
    table = pd.read_parquet(target)
    found = {
        str(key): digest_array(table[key].cat.codes if hasattr(table[key], "cat") else table[key])
        for key in table
    }
    rounded = ROUNDED if name == "factored" else set()
    assert found.keys() == expected["columns"].keys()
    for key in found.keys() - rounded:
        assert found[key] == expected["columns"][key]
    if pa.__version__ == EXPECTED["pyarrow"] and not rounded:  # it writes its version into the file
        assert hashlib.sha256(target.read_bytes()).hexdigest() == expected["parquet_sha256"]


def test_open_release__makes_of_old_factors_the_records_of_the_dense_release(stores: Path) -> None:
    dense, factored = (open_release(stores / f"{name}.zarr") for name in ("dense", "factored"))
    np.testing.assert_allclose(
        factored.features.values, dense.features.values, rtol=1e-12, atol=1e-12
    )


def test_keys__of_an_old_release_are_read(
    stores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(stores.parent / "keys", tmp_path / "keys"))
    monkeypatch.setenv("PRIVPIPE_KEYS", str(folder))
    expected = EXPECTED["key"]
    (entry,) = list_keys()
    assert (entry.key_id, entry.created) == (expected["key_id"], expected["created"])
    assert entry.forgotten is None
    key = read_key(expected["key_id"], KeyBinding(*expected["binding"]))
    words = key.stream(EXPECTED["codes"]["partitions"][1], 10, 5).words("noise", 3)
    assert digest_array(words) == expected["words_sha256"]
    header = open_release(stores / "mapped.zarr").attrs["privpipe"]
    assert entry.binding.model == header["model_digest"]
    assert entry.binding.source == header["source_digest"]
