"""Whoever tries until it passes is counted, and wrong labels do not pass: whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from privpipe.errors import GateError
from privpipe.pipeline.runs.run_options import AuditSection
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

pytestmark = pytest.mark.usefixtures("serially")


def _read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "release.report" / "audit.json").read_text())
    return found


@pytest.mark.slow
def test_attempts__are_counted_printed_and_share_the_level(tmp_path: Path) -> None:
    write_records(str(tmp_path / "records.zarr"), make_records(2400))
    closed = {"confidential_advantage_max": 0.2, "exposed_max": 0.2, "utility_loss_max": 0.0}
    quick: dict[str, Any] = {"adversaries": ("naive_bayes",)}

    def attempt(**audit: Any) -> dict[str, Any]:
        gate = closed | audit.pop("gate", {})
        with pytest.raises(GateError):
            run_serially(make_leaky_options(tmp_path, gate=gate, audit=quick | audit))
        return _read(tmp_path)

    first = attempt()
    again = attempt(gate={"exposed_max": 0.3})  # another limit draws nothing anew
    second = attempt(max_records=9_000)
    assert [one["attempt"] for one in (first, again, second)] == [1, 1, 2]
    options = [one["adversaries"]["options"] for one in (first, again, second)]
    assert options[0]["seed"] == options[1]["seed"] == options[2]["seed"] > 0
    alphas = [1 - one["level"] for one in options]
    assert alphas == pytest.approx([0.0304, 0.0304, 0.0076], abs=1e-4)
    for name in ("report.html", "public.html", "audit.md"):
        said = (tmp_path / "release.report" / name).read_text()
        assert "Attempt 2 at a release of these records" in said
    with pytest.raises(ValidationError, match="seed"):
        AuditSection(**{"seed": 3})


@pytest.mark.slow
def test_gate__labels_joined_to_the_wrong_records_keep_it_closed(tmp_path: Path) -> None:
    """The whole records are released, turned: whoever has the true labels knows the secret."""
    records = make_records()
    bare = {name: values for name, values in records.items() if name != "secret"}
    write_records(str(tmp_path / "records.zarr"), bare)  # else its own labels would judge it
    shuffled = np.random.default_rng(3).permutation(records["secret"])
    write_records(str(tmp_path / "training.zarr"), records | {"secret": shuffled})

    def make(**audit: Any) -> Any:
        return make_leaky_options(
            tmp_path,
            training={"path": str(tmp_path / "training.zarr")},
            method={"name": "rand", "n_filtered": 4},
            audit={"vouched": ("order",)} | audit,
            gate={"must_find": 0.6},
        )

    with pytest.raises(GateError, match="labels that mean nothing make everything safe") as caught:
        run_serially(make())
    assert caught.value.code == "unproven"
    run_serially(make(uninformative=("secret",)))
    gate = _read(tmp_path)["gate"]
    assert gate["state"] == "passed"
    assert "uninformative secret (usually none)" in gate["weaker"]
    assert "uninformative secret" in (tmp_path / "release.report" / "public.html").read_text()
