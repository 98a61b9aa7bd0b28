"""Releases judged with what else is known: earlier releases, and other training records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.errors import GateError, OptionError, StoreError
from privpipe.store.keyring.keyformat import KeyBinding, KeyEntry
from privpipe_flows.runs.stages import audit_attacks
from privpipe_flows.runs.stages.check import check_stage
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.gate.test_broken_releases import break_map
from tests.store.serial_run import run_serially, serial_flows


@pytest.fixture(autouse=True)
def serially() -> Iterator[None]:
    with serial_flows():
        yield


def mask(raw: np.ndarray) -> np.ndarray:
    """The same mask for a record in every release, which looks like noise."""
    return 30 * np.sin(1e6 * raw[:, 3])


def show_mask(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    return np.column_stack([raw[:, 0], mask(raw), np.zeros((len(raw), 2))])


def mask_secret(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    return np.column_stack([raw[:, 0], mask(raw) + (raw[:, 1] > 3), np.zeros((len(raw), 2))])


def read_audit(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"{name}.report" / "audit.json").read_text())
    return content


def test_gate__keeps_back_what_an_earlier_release_unmasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records())
    given: dict[str, Any] = {"method": {"name": "leace"}}
    with monkeypatch.context() as patch:
        break_map(patch, show_mask)
        run_serially(make_leaky_options(tmp_path, **given, release={"path": f"{tmp_path}/a.zarr"}))
    assert read_audit(tmp_path, "a")["gate"]["state"] == "passed"
    break_map(monkeypatch, mask_secret)
    place = {"path": f"{tmp_path}/b.zarr"}
    known = {"earlier": [f"{tmp_path}/a.zarr"]}
    with pytest.raises(GateError, match="together with the earlier one 'leace ") as caught:
        run_serially(make_leaky_options(tmp_path, **given, release=place, audit=known))
    assert (caught.value.exit_code, caught.value.code) == (6, "leaks")
    (decision,) = read_audit(tmp_path, "b")["adversaries"]["decisions"]
    assert decision["source"].startswith("together: leace ")
    # Of all else that was read of it the release tells nothing.
    rows = [r for r in read_audit(tmp_path, "b")["adversaries"]["table"] if r["score"] == "auc"]
    others = [r for r in rows if r["source"] in ("released", "everything", "bits")]
    assert max(r["gain_lower"] for r in others) < 0.1
    assert not (tmp_path / "b.zarr").exists()


def test_earlier__other_records_and_missing_places_are_refused(tmp_path: Path) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records())
    options = make_leaky_options(tmp_path, audit={"earlier": [f"{tmp_path}/none.zarr"]})
    with pytest.raises(StoreError, match="no release"):
        check_stage(options)
    ungated = {"method": {"name": "leace"}, "gate": {"enforce": False}, "audit": {"holdout": 0.5}}
    write_records(str(tmp_path / "other" / "records.zarr"), make_records(2000, seed=9))
    ungated["audit"] = {"adversaries": []}
    run_serially(make_leaky_options(tmp_path / "other", **ungated))
    options = make_leaky_options(tmp_path, audit={"earlier": [f"{tmp_path}/other/release.zarr"]})
    with pytest.raises(OptionError, match="other records"):
        check_stage(options)


def test_training__of_another_population_is_a_warning(tmp_path: Path) -> None:
    """The judged records are training records cleaned alike; the release holds others."""
    write_records(str(tmp_path / "training.zarr"), make_records(3000))
    shifted = make_records(2000, seed=8)
    shifted["features"][:, 2] += 3.0
    write_records(str(tmp_path / "records.zarr"), shifted)
    run_serially(
        make_leaky_options(
            tmp_path,
            method={"name": "leace"},
            training={"path": f"{tmp_path}/training.zarr"},
            gate={"enforce": False},
        )
    )
    audit = read_audit(tmp_path, "release")
    assert audit["attacks"]["drift"]["report"]["strongest"]["advantage_lower"] > 0.3
    (warning,) = audit["warnings"]
    assert warning.startswith("Drift: ")
    assert "Drift" in (tmp_path / "release.report" / "report.html").read_text()


def test_key_folder__other_draws_for_these_records_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(400))
    run = check_stage(make_leaky_options(tmp_path, gate={"enforce": False}))
    content = run.collection.schema_of_records.partitions[0].digest
    mine, others = (
        KeyEntry("key", KeyBinding(digest, "a" * 64, "b" * 64), "", runs=("01234567", run.run_id))
        for digest in (content, "c" * 64)
    )
    monkeypatch.setattr(audit_attacks, "list_keys", lambda: (mine, others))
    assert audit_attacks.find_other_draws(run, ()) == ("01234567",)
    monkeypatch.setattr(audit_attacks, "list_keys", lambda: (others,))
    assert audit_attacks.find_other_draws(run, ()) == ()
