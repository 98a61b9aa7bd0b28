"""The library alone: installed by pip from the wheel, without what clusters, flows and pages need.

Downloads packages, so it belongs to ``make test-setup``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially, serial_flows

REPOSITORY = Path(__file__).parents[1]
UV = REPOSITORY / ".venv/bin/uv"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

MOST_PACKAGES, MOST_BYTES = 30, 335e6
"""numpy, scipy, pandas, scikit-learn and Zarr's codecs are 290e6 of them."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        not os.environ.get("PRIVPIPE_TEST_SETUP"), reason="downloads packages: make test-setup"
    ),
]

SNIPPET = """
import sys, numpy as np, privpipe
from privpipe.sklearn import RecordSanitizer

x = np.random.default_rng(0).normal(size=(200, 4))
y = x[:, :1] - x[:, 1:2]
records = privpipe.Records(x, desired=y, confidential=x[:, 2:3])
cleaner = privpipe.fit_null_space_cleaner(records, utility_budget=0.01)
assert (((cleaner.apply(x) - x) @ cleaner.predictor) ** 2).sum(axis=1).max() <= 0.01
sanitizer = RecordSanitizer(options={"utility_budget": 0.01}).fit(x, y)
assert sanitizer.transform(x).shape == x.shape
classes = privpipe.Records(x, desired=x[:, 0] > 0, confidential=x[:, 2] > 0)
assert privpipe.fit_minimax_filter(classes).apply(x).shape[0] == 200
assert privpipe.fit_leace_eraser(classes).apply(x).shape == x.shape
privpipe.write_model(cleaner, sys.argv[1] + "/model")
again = privpipe.open_model(sys.argv[1] + "/model").apply(x)
np.testing.assert_array_equal(again, cleaner.apply(x))
released = privpipe.open_release(sys.argv[2])
raw = np.load(sys.argv[3])
np.testing.assert_array_equal(privpipe.open_model(sys.argv[4]).apply(raw), released.features.values)
"""

MISSING = {
    "privpipe.ingest('people.csv', 'people.zarr')": "pip install 'privpipe[cluster]'",
    "privpipe.export_release": "pip install 'privpipe[cluster]'",
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel and what it requires, at the versions of constraints.txt."""
    if not UV.exists():
        pytest.skip("no uv to build with here")
    folder = tmp_path_factory.mktemp("bare")
    trust = ["--system-certs"] if CERTIFICATES.exists() else []
    for words in (
        ["build", "--quiet", "--wheel", "--out-dir", str(folder), str(REPOSITORY)],
        ["venv", "--quiet", "--python", sys.executable, str(folder / "venv")],
    ):
        subprocess.run([str(UV), *trust, *words], check=True)
    [wheel] = folder.glob("*.whl")
    install = ["pip", "install", "--quiet", "--python", str(folder / "venv/bin/python")]
    pinned = ["--constraints", str(REPOSITORY / "constraints.txt"), str(wheel)]
    subprocess.run([str(UV), *trust, *install, *pinned], check=True)
    return folder / "venv"


def run(bare: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """In that environment, where nothing of this checkout is found."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    return subprocess.run(
        [str(bare / "bin" / words[0]), *words[1:]],
        cwd=bare,
        env=kept,
        capture_output=True,
        text=True,
        check=False,
    )


def test_library__is_small(bare: Path) -> None:
    [site] = bare.glob("lib/python3*/site-packages")
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert len(list(site.glob("*.dist-info"))) <= MOST_PACKAGES + 1  # and privpipe
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


def test_library__fits_applies_and_opens_what_a_cluster_released(
    bare: Path, tmp_path: Path
) -> None:
    records = make_records(1200)
    write_records(str(tmp_path / "records.zarr"), records)
    np.save(tmp_path / "raw.npy", records["features"])
    ungated = {"gate": {"enforce": False}, "audit": {"adversaries": []}}
    with serial_flows():
        run_serially(make_leaky_options(tmp_path, **ungated))
    released = [str(tmp_path / name) for name in ("release.zarr", "raw.npy", "release.model.zarr")]
    ran = run(bare, "python", "-W", "error", "-c", SNIPPET, str(tmp_path), *released)
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.parametrize("name", MISSING)
def test_library__says_what_to_install(bare: Path, name: str) -> None:
    ran = run(bare, "python", "-c", f"import privpipe; {name}")
    assert ran.returncode == 1
    assert MISSING[name] in ran.stderr.splitlines()[-1]


def test_command__says_what_to_install(bare: Path) -> None:
    ran = run(bare, "privpipe", "run", "my.toml")
    assert ran.returncode == 1
    assert ran.stderr.strip().endswith("pip install 'privpipe[flows]'")
