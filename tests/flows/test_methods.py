"""Methods of every kind through the whole pipeline: filters, and mappings that draw."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from privpipe import list_keys
from privpipe.command.key_commands import forget_key_command
from privpipe.flows.release_flow import run_pipeline
from privpipe.protocols import IntArray
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.writing import write_collection
from privpipe.store.releases.lazy_release import open_release
from tests.flows.test_pipeline import WORKERS, configure, read_findings
from tests.standard import write_standard

pytestmark = pytest.mark.slow

SIZES = (4, 3, 5)


def write_profiles(
    url: str, n_records: int, chunk_rows: int = 128, *, turned: float = 0.0
) -> IntArray:
    """Categorical records: three attributes, the second of which tells the private answer.

    Of the later half so many answers are turned.
    """
    rng = np.random.default_rng(3)
    codes = np.column_stack([rng.integers(0, k, n_records) for k in SIZES])
    private = (codes[:, 1] + (rng.random(n_records) < 0.1)) % 3 == 0
    private[n_records // 2 :] ^= rng.random(n_records - n_records // 2) < turned
    schema = CollectionSchema(
        n_records=n_records,
        n_features=0,
        dtype="float32",
        chunk_rows=chunk_rows,
        variables=(
            *(
                Variable(f"a{j}", "int8", tuple(f"c{k}" for k in range(size)))
                for j, size in enumerate(SIZES)
            ),
            Variable("private", "int8", ("no", "yes")),
        ),
    )

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, n_records, chunk_rows):
            rows = slice(start, start + chunk_rows)
            block = {f"a{j}": codes[rows, j].astype(np.int8) for j in range(len(SIZES))}
            empty = np.empty((len(block["a0"]), 0), np.float32)
            yield block | {"private": private[rows].astype(np.int8), "features": empty}

    write_collection(url, schema, blocks())
    return codes


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def configure_mapping(folder: Path, budget: float, cluster: str = "workers = 0") -> str:
    method = (
        'name = "privacy_mapping"\nattributes = ["a0", "a1", "a2"]\nprivate = ["private"]\n'
        f'distortion_budget = {budget}\npricing = "cluster"'
    )
    return configure(
        folder,
        desired="[]",
        confidential="[]",
        include="[]",
        method=method,
        cluster=cluster,
        audit='holdout = 0.4\nadversaries = ["logistic", "naive_bayes", "boosting"]',
    )


def test_privacy_mapping__releases_codes_that_tell_less(tmp_path: Path, keys: Path) -> None:
    codes = write_profiles(str(tmp_path / "records.zarr"), 2000)
    run_pipeline(configure_mapping(tmp_path, 0.5, WORKERS))
    release = open_release(str(tmp_path / "release.zarr"), verify=True)
    assert set(release.data_vars) == {"a0", "a1", "a2"}
    released = np.column_stack([release[f"a{j}"].values for j in range(3)])
    assert 0 < (released != codes).sum(axis=1).mean() < 0.6
    assert ((released >= 0) & (released < SIZES)).all()
    found = read_findings(tmp_path)
    strongest = found["adversaries"]["strongest"]["private"]
    assert strongest["released"]["estimate"] < strongest["raw"]["estimate"] - 0.05
    (entry,) = list_keys()
    assert entry.binding.model == release.attrs["privpipe"]["model_digest"]
    assert forget_key_command(str(tmp_path / "release.zarr")) == {"forgotten": [entry.key_id]}
    assert list_keys()[0].forgotten
    guarantee = release.attrs["privpipe"]["guarantee"]
    assert guarantee["kind"] == "information_bound"
    promise = release.attrs["privpipe"]["promise"]
    assert promise.startswith("at most ")
    assert "nats with confidence .95 about the law of these records" in promise
    told = (tmp_path / "release.report" / "audit.md").read_text()
    assert promise in re.sub(r"\\(.)", r"\1", told)  # names of variables are escaped in markdown


def test_minimax__releases_filtered_coordinates(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 800, chunk_rows=100)
    config = configure(
        tmp_path,
        desired='["late"]',
        confidential='["party"]',
        method='name = "minimax"',
        include="[]",
        audit='holdout = 0.4\nadversaries = ["logistic"]',
    )
    run_pipeline(config)
    release = open_release(str(tmp_path / "release.zarr"))
    assert release.features.shape == (800, 1)
    found = read_findings(tmp_path)
    assert found["desired"]["late"]["released, attack retrained"]["accuracy"] > 0.75
    strongest = found["adversaries"]["strongest"]["party"]
    assert strongest["released"]["estimate"] < strongest["raw"]["estimate"] - 0.2
