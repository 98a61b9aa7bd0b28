"""After a noisy release nothing holds its key, its noise or a record before the noise.

A real run with Prefect's database; every file it leaves is searched, but for the collections and
the folder of keys. It takes a minute: with PRIVPIPE_FULL_PROOFS alone. `test_noisy_run` asks the
same of stages called in this process, always.
"""

from __future__ import annotations

import base64
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring.account import Account
from privpipe.store.keyring.keyfiles import decode_key
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.flows.canaries import HEAD, Canaries, search_tree

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("PRIVPIPE_FULL_PROOFS"), reason="a minute"),
]

N = 400

CONFIGURATION = """
[collection]
path = "{folder}/input/records.zarr"
desired = ["wanted"]
confidential = ["hidden"]

[training]
path = "{folder}/input/public.zarr"
public = true

[method]
name = "noisy"
epsilon = 2.0
[method.filter]
name = "pca"
n_filtered = 3

[release]
path = "{folder}/release.zarr"

[privacy]
account = "{folder}/account"
ephemeral = "accept"
limit = 5.0

[audit]
holdout = 0.3
adversaries = []

[gate]
enforce = false

[cluster]
workers = 0
dashboard = "127.0.0.1:0"
"""


def write_input(folder: Path, name: str, seed: int) -> np.ndarray:
    """A collection of records whose numbers have digits of their own; its features."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(N, 4)) * 7.3 + 61
    lines = ["a,b,c,d,wanted,hidden"] + [
        ",".join(f"{value:.17g}" for value in row)
        + f",{'yes' if row[0] > 61 else 'no'},SECRET{'ill' if row[1] > 61 else 'well'}"
        for row in x
    ]
    (folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
    layout = SourceLayout(labels=("wanted", "hidden"))
    options = IngestOptions(layout=layout, chunk_bytes=100 * 4 * 8)
    ingest(str(folder / f"{name}.csv"), str(folder / f"{name}.zarr"), options)
    return x


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that a run leaves."""
    folder = tmp_path_factory.mktemp("noisy-canary")
    for name in ("input", "tmp"):
        (folder / name).mkdir()
    write_input(folder / "input", "records", 3)
    write_input(folder / "input", "public", 4)
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(folder=folder))
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = subprocess.run(
        [sys.executable, "-c", "from privpipe.command import main; main()", "run", config],
        capture_output=True,
        env={
            **kept,
            "PREFECT_HOME": str(folder / "prefect"),
            "PRIVPIPE_KEYS": str(folder / "keys"),
            "TMPDIR": str(folder / "tmp"),
        },
        timeout=400,
        check=False,
    )
    (folder / "run.log").write_bytes(done.stdout + done.stderr)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


class Secrets(Canaries):
    """What must not be found: numbers in any disguise, and patterns of bytes."""

    def __init__(self, numbers: dict[str, np.ndarray], patterns: dict[bytes, str]) -> None:
        super().__init__(numbers, {})
        for pattern, name in patterns.items():
            self.patterns[pattern] = name
            self._heads.setdefault(pattern[:HEAD], []).append(pattern)
        self._sorted = np.sort(np.frombuffer(b"".join(self._heads), np.uint64))


def list_secrets(folder: Path) -> Secrets:
    """Keys, noise by runs of whole numbers and as numbers, records before and after bounding."""
    fitted = open_model(str(folder / "release.model.zarr"))
    x = np.loadtxt(folder / "input" / "records.csv", delimiter=",", skiprows=1, usecols=range(4))
    bounded, _ = fitted.bound_features(x)
    steps = fitted.mechanism.lattice.place(bounded)
    with open_release(str(folder / "release.zarr")) as release:
        released = np.rint(release["features"].values / fitted.grid).astype(np.int64)
    assert np.ptp(released - steps) > 1000  # it is noise
    patterns = {
        row[:2].astype(kind).tobytes(): name
        for name, values in (("noise", released - steps), ("lattice", steps))
        for row in values
        for kind in ("<i8", ">i8")
    }
    patterns |= {(row[:2] * fitted.grid).tobytes(): "noise" for row in released - steps}
    for file in (folder / "keys").glob("*.key"):
        _, secret = decode_key(file.read_bytes(), file)
        for form in (secret, secret.hex().encode(), base64.b64encode(secret)[:40]):
            patterns[form] = "key"
    assert "key" in patterns.values()
    return Secrets({"record": x, "bounded": bounded}, patterns)


def search(folder: Path, secrets: Secrets) -> dict[str, set[str]]:
    """What was found outside of collections and keys."""
    return {
        name: found
        for name, found in search_tree(secrets, folder).items()
        if not name.removeprefix("array ").startswith(("input/", "keys/"))
    }


def test_noisy_run__no_key_noise_or_unbounded_record_is_found(folder: Path) -> None:
    secrets = list_secrets(folder)
    assert search(folder, secrets) == {}
    database = next((folder / "prefect").glob("*.db"))
    with sqlite3.connect(database) as connection:
        (runs,) = connection.execute("select count(*) from flow_run").fetchone()
    assert runs == 1
    (loss,) = Account(str(folder / "account")).read_all()
    assert (loss.epsilon, loss.n_open) == (2.0, 0)


def test_noisy_run__what_is_told_would_be_found(folder: Path, tmp_path: Path) -> None:
    """The control: one secret of each kind, told in turn."""
    secrets, tried = list_secrets(folder), set[str]()
    for pattern, name in secrets.patterns.items():
        if name not in tried:
            tried.add(name)
            told = base64.b64encode(b"told " + pattern + b" to nobody") + b" "
            (tmp_path / "run.log").write_bytes(b"run " + told)
            assert search(tmp_path, secrets) == {"run.log": {name}}
    assert tried == {"record", "bounded", "noise", "lattice", "key"}
