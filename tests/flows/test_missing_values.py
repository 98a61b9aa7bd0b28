"""Whose values are missing may be what is confidential: fits, forecasts and audits see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import open_release
from tests.commands.conftest import Command
from tests.flows.test_command import call

N = 4_000


@pytest.fixture
def command(
    prefect_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """The command in this process, with the server of this room."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code, found = call(monkeypatch, *map(str, arguments)), capsys.readouterr()
        return code, found.out, found.err

    return run


def ingest(folder: Path, command: Command, name: str, seed: int, *, labels: bool = True) -> str:
    """A test that women alone miss, a column that says who missed it, and gaps in every record."""
    rng = np.random.default_rng(seed)
    sex, y = rng.integers(0, 2, (2, N))
    x = rng.normal(size=(N, 6))
    x[:, 0] += 2 * y
    missed = (sex == 1) & (rng.random(N) < 0.6)
    x[missed, 1], x[:, 2] = np.nan, missed
    x[np.arange(N), rng.integers(3, 6, N)] = np.nan
    more: dict[str, Any] = {"y": y, "sex": sex} if labels else {}
    np.savez(folder / f"{name}.npz", X=x, **more)
    options = ("--labels", "y,sex", "--categorical", "y,sex") if labels else ()
    path = folder / f"{name}.zarr"
    code, _, error = command("ingest", folder / f"{name}.npz", path, "--features", "X", *options)
    assert not code, error
    return str(path)


def configure(folder: Path, source: str, method: str, more: str = "") -> str:
    (folder / "run.toml").write_text(
        f'[collection]\npath = "{source}"\ndesired = ["y"]\nconfidential = ["sex"]\n'
        f'[method]\n{method}\n[release]\npath = "{folder}/release.zarr"\nnonfinite = "impute"\n'
        f'[audit]\nholdout = 0.5\nadversaries = ["logistic", "quadratic"]\n[gate]\n'
        f"exposed_max = 0.3\nconfidential_advantage_max = 0.3\n{more}"
    )
    return str(folder / "run.toml")


NULL_SPACE = 'name = "null_space"\nutility_budget = 0.05'
ALL = 'name = "pca"\nn_filtered = 6'


def test_fit__cleans_what_missing_values_reveal(tmp_path: Path, command: Command) -> None:
    """No record is complete: each is learned from as it will be released, with means."""
    config = configure(tmp_path, ingest(tmp_path, command, "own", 1), NULL_SPACE)
    code, out, error = command("check", config, "--json")
    assert not code, error
    found = json.loads(out)
    assert not found["constant_features"]
    code, _, error = command("run", config)
    assert not code, error
    x = open_release(str(tmp_path / "release.zarr")).features.values
    sex = np.load(tmp_path / "own.npz")["sex"]
    assert np.isfinite(x).all()
    assert max(abs(np.corrcoef(column, sex)[0, 1]) for column in x.T) < 0.1


def test_audit__of_records_elsewhere_judges_imputed_ones(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the records to release have no labels, those that judge are imputed as these are."""
    source = ingest(tmp_path, command, "new", 2, labels=False)
    training = ingest(tmp_path, command, "known", 3)
    more = f'[training]\npath = "{training}"\n'
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    code, _, error = command("run", configure(tmp_path, source, ALL, more))
    assert code
    assert "'sex' leaks" in error


def test_compare__of_records_with_gaps_judges_them(tmp_path: Path, command: Command) -> None:
    entries = (NULL_SPACE, ALL)
    more = "".join(f"[[compare]]\n[compare.method]\n{entry}\n" for entry in entries)
    source = ingest(tmp_path, command, "own", 4)
    code, _, error = command("compare", configure(tmp_path, source, NULL_SPACE, more))
    assert not code, error
    found = json.loads((tmp_path / "release.compare" / "compare.json").read_text())
    first, second = (one["verdict"] for one in found["entries"])
    assert first in ("safe", "unproven")  # few adversaries find few planted leaks
    assert second == "leaks"
