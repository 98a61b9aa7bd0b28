"""The command in this process; nothing here starts Prefect or a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.command import main


@pytest.fixture(scope="package", autouse=True)
def ungated() -> Iterator[None]:
    """Collections of forty records, which no gate lets pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVPIPE_GATE__ENFORCE", "false")
        yield


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command with arguments; returns exit code, output, errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["privpipe", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as ended:
            main()
        found = capsys.readouterr()
        return int(ended.value.code or 0), found.out, found.err

    return run


@pytest.fixture
def configure(tmp_path: Path, command: Command) -> Callable[..., Path]:
    """Write a collection of 40 records, once, and a configuration with lines of one's own."""

    def write(budget: object = 0.1, **sections: str) -> Path:
        if not (tmp_path / "r.zarr").exists():
            generator = np.random.default_rng(1)
            arrays: dict[str, Any] = {"X": generator.normal(size=(40, 3))}
            arrays |= {"y": np.arange(40.0), "town": np.arange(40) % 3 == 0}
            np.savez(tmp_path / "s.npz", **arrays)
            assert command("ingest", tmp_path / "s.npz", tmp_path / "r.zarr")[0] == 0
        lines = {
            "collection": f'path = "{tmp_path}/r.zarr"\ndesired = ["y"]\nconfidential = ["town"]',
            "method": f'name = "null_space"\nutility_budget = {budget}',
            "release": f'path = "{tmp_path}/o.zarr"',
        }
        for name, more in sections.items():
            lines[name] = f"{lines.get(name, '')}\n{more}"
        path = tmp_path / "run.toml"
        path.write_text("".join(f"[{name}]\n{text}\n" for name, text in lines.items()))
        return path

    return write
