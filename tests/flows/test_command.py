"""The command: exit codes, messages without tracebacks, what inspect shows and withholds."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.command import main
from privpipe import NullSpaceCleaner, write_model
from tests.flows.test_pipeline import configure
from tests.standard import write_standard


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["privpipe", *arguments])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def test_ingest_then_inspect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "s.npz", X=np.eye(7), secret=np.arange(7) == 3)
    assert call(monkeypatch, "ingest", str(tmp_path / "s.npz"), str(tmp_path / "r.zarr")) == 0
    assert call(monkeypatch, "inspect", str(tmp_path / "r.zarr"), "--json") == 0
    content = capsys.readouterr().out
    described = json.loads(content[content.index("\n{") :])
    assert described["n_records"] == 7
    (secret,) = described["variables"]
    assert (secret["name"], secret["dtype"], secret["n_categories"]) == ("secret", "int8", 2)


def test_inspect__describes_a_model_without_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cleaner = NullSpaceCleaner.from_predictor(np.array([[0.123456], [7.0]]), utility_budget=0.5)
    write_model(cleaner, str(tmp_path / "model.zarr"))
    assert call(monkeypatch, "inspect", str(tmp_path / "model.zarr")) == 0
    output = capsys.readouterr().out
    assert "utility_bound" in output
    assert "0.123456" not in output


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (("run", "missing.toml"), 2, "error[config-file]"),
        (("inspect", "missing.zarr"), 4, "error[not-found]"),
        (("ingest", "missing.npz", "out.zarr"), 4, "cannot be read as .npz"),
        (("ingest", "records.docx", "out.zarr"), 3, "error[source-format]"),
        (("demo", "--records", "1000"), 2, "not whole repeats of 1797"),
    ],
)
def test_failures__have_a_code_and_no_traceback(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "records.docx").write_bytes(b"not a source")
    assert call(monkeypatch, *arguments) == code
    errors = capsys.readouterr().err
    assert expected in errors
    assert "Traceback" not in errors


def test_run__refuses_a_bad_configuration_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 50)
    assert call(monkeypatch, "run", configure(tmp_path, include='["party"]')) == 2
    assert "A confidential variable is never released" in capsys.readouterr().err


def test_internal_error__is_sealed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a value of a record")

    monkeypatch.setattr("flows.command.inspect.inspect_command", fail)
    assert call(monkeypatch, "inspect", "x.zarr") == 7
    errors = capsys.readouterr().err
    assert "RuntimeError at test_command.py" in errors
    assert "a value of a record" not in errors
