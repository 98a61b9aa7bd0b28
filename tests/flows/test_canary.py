"""Nothing of a record is found anywhere but in the collection, whatever fails on the way."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
import sqlite3
import stat
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import zarr

from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.lazy_release import open_release
from tests.flows.canaries import Canaries, search_bytes, search_tree
from tests.flows.canary_run import CONTROL
from tests.flows.digits_runs import own_prefect

N_RECORDS, N_FEATURES = 600, 6
SECRETS = ("SECRETmalaria", "SECRETcholera", "SECRETnothing")
WANTED = ("WANTEDyes", "WANTEDno")
TOWNS = tuple(f"TOWNname{i:02d}" for i in range(12))
SITES = ("SITEnorth", "SITEsouth")

CONFIGURATION = """
[collection]
path = "{source}"
desired = ["wanted"]
confidential = ["disease", "income"]
subject = "serial"

[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01

[release]
path = "{folder}/release.zarr"
include = ["site"]

[audit]
holdout = 0.4
adversaries = ["least_squares", "logistic", "rbf", "boosting", "network"]

[cluster]
workers = 2
dashboard = "127.0.0.1:0"
"""


def make_records() -> dict[str, np.ndarray]:
    """Every number has digits of its own; every name begins in a way nothing else does."""
    random = np.random.default_rng(11)
    features = 6151.0 + random.normal(size=(N_RECORDS, N_FEATURES)) * 173.0
    spread = (features - 6151.0) / 173.0
    disease = np.array(SECRETS)[np.digitize(spread[:, 0] + spread[:, 1], [-0.7, 0.7])]
    wanted = np.array(WANTED)[(spread @ [1, 0, 1, -1, 0, 0.5] > 0).astype(int)]
    return {
        "features": features,
        "disease": disease,
        "wanted": wanted,
        "income": 48611.0 + random.normal(size=N_RECORDS) * 977.0,
        "serial": random.integers(4 * 10**15, 5 * 10**15, N_RECORDS),
        "town": random.choice(TOWNS, N_RECORDS),
        "site": random.choice(SITES, N_RECORDS),
    }


def make_canaries(records: dict[str, np.ndarray]) -> Canaries:
    numbers = {name: records[name].astype(float) for name in ("features", "income", "serial")}
    return Canaries(numbers, {"disease": SECRETS, "wanted": WANTED, "town": TOWNS})


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, prefect_home: Path) -> Path:
    """All that is left after the scenarios: good, map, statistics, nan, corrupt."""
    folder = tmp_path_factory.mktemp("canary")
    source = folder / "input"
    source.mkdir()
    records = make_records()
    np.savez(source / "records.npz", **records)
    options = IngestOptions(numeric=("serial",), chunk_bytes=100 * N_FEATURES * 8)
    ingest(str(source / "records.npz"), str(source / "records.zarr"), options)
    shutil.copytree(source / "records.zarr", source / "corrupt.zarr")
    flip(source / "corrupt.zarr" / "features" / "c" / "4" / "0")
    records["features"][250, 2] = np.nan
    np.savez(source / "nan.npz", **records)
    ingest(str(source / "nan.npz"), str(source / "nan.zarr"), options)
    for scenario in ("good", "map", "statistics", "nan", "corrupt"):
        name = scenario if scenario in ("nan", "corrupt") else "records"
        text = CONFIGURATION.format(source=source / f"{name}.zarr", folder=folder / scenario)
        (folder / f"{scenario}.toml").write_text(text)
        (folder / scenario).mkdir()
    home = own_prefect(str(folder / "prefect"), prefect_home)
    environment = home | {"TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    with (folder / "stdout.txt").open("wb") as out, (folder / "stderr.txt").open("wb") as err:
        subprocess.run(
            [sys.executable, "-m", "tests.flows.canary_run", str(folder)],
            stdout=out,
            stderr=err,
            env=environment,
            check=True,
            timeout=400,
        )
    return folder


@pytest.mark.slow
def test_run__scenarios_end_as_they_should(folder: Path):
    codes = json.loads((folder / "codes.json").read_text())
    assert codes["good"] == 0
    assert codes["map"] == codes["statistics"] == 7
    assert codes["nan"] == 3
    assert codes["corrupt"] == 4
    assert [s for s in codes if (folder / s / "release.zarr").exists()] == ["good"]


@pytest.mark.slow
def test_run__no_value_of_a_record_is_found_anywhere(folder: Path):
    canaries = make_canaries(make_records())
    kept = folder / "input"
    found = {
        name: columns
        for name, columns in search_tree(canaries, folder).items()
        if not name.removeprefix("array ").startswith(f"{kept.name}/")
        # What a run that was stopped drew for its audit waits in its private workspace.
        and ".privpipe/sample/" not in name
    }
    assert found == {}
    with open_release(str(folder / "good" / "release.zarr")) as release:
        assert set(release.variables) == {"features", "site"}
        assert release.sizes["record"] == N_RECORDS


@pytest.mark.slow
def test_run__search_sees_logs_pages_database_and_collection(folder: Path):
    """The control: what a task without a boundary tells is found, so silence means silence."""
    control = Canaries({}, {"control": (CONTROL,)})
    seen = folder / "seen" / "map"
    hits = search_tree(control, seen)
    assert "logs.txt" in hits
    assert any(name.startswith("page-") for name in hits)
    assert json.loads((seen / "workers.json").read_text())["pages"] > 10
    canaries = make_canaries(make_records())
    inside = search_tree(canaries, folder / "input")
    assert inside["array records.zarr/features"] == {"features"}
    assert inside["records.zarr/zarr.json"] >= {"disease", "town"}
    database = next((folder / "prefect").glob("*.db"))
    with sqlite3.connect(database) as connection:
        (runs,) = connection.execute("select count(*) from flow_run").fetchone()
    assert runs == 5
    for name in ("stdout.txt", "stderr.txt"):
        assert (folder / name).stat().st_size > 100


@pytest.mark.slow
def test_run__files_are_private_and_scratch_is_gone(folder: Path):
    for scenario in ("good", "map", "corrupt"):
        workers = json.loads((folder / "seen" / scenario / "workers.json").read_text())
        assert workers["umasks"] == [0o077, 0o077]
        assert not list((folder / scenario).rglob("dask"))
        for path in (folder / scenario).rglob("*"):
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path
    left = [path.name for path in (folder / "tmp").rglob("*") if path.is_file()]
    assert set(left) <= {"purge.lock", "global.lock"}  # Dask's own, empty


@pytest.mark.parametrize(
    "disguise",
    [
        lambda raw: raw,
        base64.b64encode,
        lambda raw: b"xy" + base64.urlsafe_b64encode(raw),
        zlib.compress,
        lambda raw: b"head" + gzip.compress(raw) + b"tail",
        lambda raw: base64.b64encode(zlib.compress(raw)),
    ],
    ids=["raw", "base64", "base64 shifted", "zlib", "gzip", "zlib in base64"],
)
@pytest.mark.parametrize(
    "leak", [b"record 6151.23456789 failed", np.array([1.0, 6151.23456789]).tobytes()]
)
def test_search_bytes__finds_a_number_in_every_disguise(disguise, leak: bytes):
    canaries = Canaries({"x": np.array([6151.23456789])}, {})
    assert search_bytes(canaries, disguise(b"some" * 9 + leak + b"thing" * 9)) == {"x"}
    assert search_bytes(canaries, disguise(b"some" * 9 + leak[:6] + b"thing" * 9)) == set()


def test_search_tree__reads_compressed_arrays(tmp_path: Path):
    values = np.linspace(0, 1, 1000)
    values[77] = 6151.23456789
    zarr.create_array(tmp_path / "a.zarr", data=values)
    found = search_tree(Canaries({"x": values[77:78]}, {}), tmp_path)
    assert found["array a.zarr"] == {"x"}
