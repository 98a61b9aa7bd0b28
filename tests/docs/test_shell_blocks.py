"""Shell blocks of pages are run, in order, in an empty folder with the files that it names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.bench.bad_releases import BAD, draw_people

DOCS = Path(__file__).parents[2] / "docs"

PAGES = ("quickstart.md", "howto/own_records.md", "howto/audit_others.md")
"""Pages whose commands need nothing but tables."""

ELSEWHERE = ("git", "make", ".")
"""Begin what `make test-setup` and `make demo` try."""

DEMO = "privpipe-demo"
"""The folder that `make demo` makes."""

LOOK = "privpipe ingest people.csv people.zarr"

COMMAND = "from privpipe.command import main; main()"


def list_shell_lines(page: str) -> list[str]:
    """Commands of the console blocks of a page, without comments."""
    blocks = re.findall(r"```console\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    lines = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    mine = [line for line in lines if not line.startswith(ELSEWHERE) and DEMO not in line]
    # Without its extra a table is not looked at first, and needs options.
    return mine if find_spec("clevercsv") else [line for line in mine if line != LOOK]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_shell_blocks__of_a_page_run_in_order_in_an_empty_folder(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = draw_people(3000, 0).drop(columns="city")
    people.assign(name=[f"person {k}" for k in range(len(people))]).to_csv(
        tmp_path / "people.csv", index=False
    )
    people.to_csv(tmp_path / "raw.csv", index=False)
    people.assign(name="new").to_csv(tmp_path / "next.csv", index=False)
    half = [k // 2 for k in range(len(people))]
    people.assign(patient=half).to_csv(tmp_path / "visits.csv", index=False)
    others = draw_people(3000, 1).drop(columns="city")
    others.assign(patient=[10_000 + k for k in half]).to_csv(tmp_path / "others.csv", index=False)
    BAD["rounded"][0](people).to_csv(tmp_path / "released.csv", index=False)
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    # What the gate says of these people is no matter of the page.
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "false")
    monkeypatch.setenv("PRIVPIPE_CLUSTER__WORKERS", "0")
    lines = list_shell_lines(page)
    assert lines
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "privpipe", line
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        # The page says so of a release that is not safe.
        right = (6,) if words[0] == "audit" else (0,)
        assert done.returncode in right, f"{line}\n{done.stdout}\n{done.stderr}"


def test_shell_blocks__are_found() -> None:
    for page in PAGES:
        assert all(line.startswith("privpipe ") for line in list_shell_lines(page)), page
