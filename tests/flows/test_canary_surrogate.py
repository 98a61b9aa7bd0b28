"""After publication nothing holds P, its key or a record: a real run, with Prefect's database."""

from __future__ import annotations

import base64
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring.keyfiles import decode_key
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.flows.canaries import Canaries, search_tree
from tests.flows.digits_runs import own_prefect

pytestmark = pytest.mark.slow

CONFIGURATION = """
[collection]
path = "{input}/records.zarr"
desired = ["score"]
confidential = ["hidden"]

[method]
name = "masking"
n_surrogates = 90

[release]
path = "{folder}/release.zarr"

[audit]
holdout = 0.3
adversaries = ["least_squares"]

[gate]
enforce = false

[cluster]
workers = 1
dashboard = "127.0.0.1:0"
"""


def write_input(folder: Path) -> np.ndarray:
    """A collection of 500 records, whose numbers have digits of their own."""
    random = np.random.default_rng(17)
    rows = np.column_stack([random.normal(size=(500, 4)) + 6000, random.normal(size=500)])
    lines = ["a,b,c,d,score,hidden"] + [
        ",".join(f"{value:.17g}" for value in row) + f",SECRET{'ill' if row[0] > 6000 else 'well'}"
        for row in rows
    ]
    (folder / "records.csv").write_text("\n".join(lines) + "\n")
    layout = SourceLayout(labels=("score", "hidden"))
    ingest(str(folder / "records.csv"), str(folder / "records.zarr"), IngestOptions(layout=layout))
    return rows


IN_TURN = """
import shutil, sys
from privpipe.command import main

config, keys, kept = sys.argv[1:]
for command in ("clean", "run"):
    sys.argv[:] = ["privpipe", command, config]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    if command == "clean":
        shutil.copytree(keys, kept)
"""
"""Cleans, keeps what there is of keys, and publishes: one start of all processes for both."""


def clean_and_run(folder: Path, prefect: dict[str, str], config: Path, kept: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN, config, folder / "keys", kept],
        capture_output=True,
        env={**prefect, "PRIVPIPE_KEYS": str(folder / "keys"), "TMPDIR": str(folder / "tmp")},
        timeout=400,
        check=False,
    )
    (folder / "run.log").write_bytes(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-2000:]


def find(folder: Path, patterns: list[bytes]) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(one in path.read_bytes() for one in patterns)]


def test_run__leaves_nothing(tmp_path: Path, prefect_home: Path) -> None:
    source, folder = tmp_path / "input", tmp_path / "all"
    for place in (source, folder, folder / "tmp"):
        place.mkdir()
    rows = write_input(source)
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(input=source, folder=folder))
    prefect, kept = own_prefect(str(folder / "prefect"), prefect_home), tmp_path / "kept"
    clean_and_run(folder, prefect, config, kept)
    paths = list(kept.rglob("*.key"))
    secrets = [decode_key(path.read_bytes(), path)[1] for path in paths]
    assert secrets
    assert all(len(secret) >= 16 for secret in secrets)
    patterns = [
        form(secret)
        for secret in secrets
        for form in (bytes, base64.b64encode, lambda raw: raw.hex().encode())
    ]
    assert find(kept, patterns), "until publication the key is in its folder, and is found"
    check_release(str(folder / "release.zarr"), verify=True)
    assert list((folder / "prefect").rglob("*.db"))
    assert find(folder, patterns) == []
    canaries = Canaries({"records": rows}, {"hidden": ("SECRETill", "SECRETwell")})
    assert search_tree(canaries, source), "the control: the collection holds them"
    assert search_tree(canaries, folder) == {}
