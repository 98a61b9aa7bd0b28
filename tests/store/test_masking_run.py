"""Surrogates from an ingested table to a published release: bytes, keys, crashes, refusals."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe.flows.release_flow
import privpipe.pipeline.stages.clean
import privpipe.pipeline.stages.publish
import privpipe.store.keyring.keys
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.verdicts.detectable_effect import plan_guess_limit
from privpipe.command.init_command import init_command
from privpipe.errors import GateError, OptionError, PrivpipeError, StoreError
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.gate_forecast import GateNeeds, plan_limits
from privpipe.store.access.workspace import has_workspace
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring.keys import find_keys, list_keys
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.flows.canaries import Canaries, search_tree
from tests.store.serial_run import read_tree, run_serially, serial_flows
from tests.store.test_crash_points import CrashingStorage, KilledError

N = 700


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV with four features, a response, a class to keep and one to hide."""
    random = np.random.default_rng(5)
    x = random.normal(size=(N, 4)) * [1, 10, 1, 0.1]
    score = x @ [1.0, 0.2, 0.0, 3.0] + 0.2 * random.normal(size=N)
    kept, hidden = score > 0.3, x[:, 0] + x[:, 2] > 0
    lines = ["a,b,c,d,score,kept,hidden"] + [
        ",".join(f"{value:.17g}" for value in row) + f",{s:.17g},{'yes' if k else 'no'},"
        f"{'ill' if h else 'well'}"
        for row, s, k, h in zip(x, score, kept, hidden, strict=True)
    ]
    path = tmp_path_factory.mktemp("table") / "records.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def source(table: Path) -> Path:
    return ingest_table(table, 64)


def ingest_table(table: Path, chunk_rows: int) -> Path:
    place = table.with_name(f"records{chunk_rows}.zarr")
    names = ("score", "kept", "hidden")
    options = IngestOptions(layout=SourceLayout(labels=names), chunk_bytes=chunk_rows * 4 * 8)
    ingest(str(table), str(place), options)
    return place


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def make_options(source: Path, folder: Path, **more: Any) -> RunOptions:
    method = {"name": "masking", "n_surrogates": 150} | more.pop("method", {})
    release = {"path": str(folder / "release.zarr")} | more.pop("release", {})
    return RunOptions(
        collection={"path": str(source)}
        | more.pop("collection", {"desired": ["score", "kept"], "confidential": ["hidden"]}),
        method=method,
        release=release,
        audit={"holdout": more.pop("holdout", 0.3)}
        | more.pop("audit", {"adversaries": ["least_squares"]}),
        gate=more.pop("gate", {"enforce": False}),  # 700 records are too few to prove anything
        **more,
    )


def run(source: Path, folder: Path, **more: Any) -> Path:
    with serial_flows():
        run_serially(make_options(source, folder, **more))
    return folder / "release.zarr"


def read_chunks(release: Path) -> dict[str, bytes]:
    found = read_tree(release)
    return {
        name: content for name, content in found.items() if "/c/" in name and "receipts" not in name
    }


def test_run__releases_surrogates_that_keep_the_model(source: Path, tmp_path: Path) -> None:
    release = run(source, tmp_path)
    found = open_release(str(release), verify=True)
    header = found.attrs["privpipe"]
    assert header["n_records"] == 150
    assert header["partitions"] == []
    assert header["feature_names"] == ["a", "b", "c", "d", "bias"]
    assert header["guarantee"]["kind"] == "none"
    assert "second moments" in header["guarantee"]["assumptions"].lower()
    features = found["features"].to_numpy()
    model = np.linalg.lstsq(features, found["score"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(model[[0, 1, 3]], [1.0, 0.2, 3.0], atol=0.15)
    assert set(found.data_vars) == {"features", "score", "kept"}
    report = (tmp_path / "release.report" / "audit.md").read_text()
    assert "not protected" in report
    assert "Coefficients" not in report  # on request only
    out = tmp_path / "release.parquet"
    assert export_release(str(release), str(out)) == 150


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough records for a gate with wide limits; `hidden` is whether the answer exceeds the model.

    Nobody who knows features and answer can tell that without the model that is released.
    """
    random = np.random.default_rng(6)
    x = random.normal(size=(9000, 4))
    excess = 0.2 * random.normal(size=9000)
    score = x @ [1.0, 0.5, 0.0, 2.0] + excess
    hidden = excess > 0
    apart = random.random(9000) < 0.5
    lines = ["a,b,c,d,score,hidden,apart"] + [
        ",".join(f"{value:.17g}" for value in (*row, s)) + f",h{int(h)},p{int(p)}"
        for row, s, h, p in zip(x, score, hidden, apart, strict=True)
    ]
    path = tmp_path_factory.mktemp("many") / "records.csv"
    path.write_text("\n".join(lines) + "\n")
    place = path.with_name("records.zarr")
    layout = SourceLayout(labels=("score", "hidden", "apart"))
    ingest(str(path), str(place), IngestOptions(layout=layout))
    return place


def gate(hidden: str | None, **limits: Any) -> dict[str, Any]:
    named = {"confidential": [hidden]} if hidden else {}
    return {
        "collection": {"desired": ["score"], **named},
        "gate": {
            "confidential_advantage_max": 0.2,
            "exposed_max": 0.15,
            "must_find": 0.9,
            "single_records": "unprotected",
            **limits,
        },
        "audit": {
            "holdout": 0.4,
