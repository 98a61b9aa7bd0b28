"""CONTRIBUTING's own example of each addition, made in a copy of the house and used.

A method, an adversary, a source format, an attack and a stage: each is a module and a row. Another
audit than the one that names the new adversary is what it was.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc

from privpipe.store.access.workspace import workspace_url
from tests.flows.digits_runs import own_prefect
from tests.standard import make_standard, write_standard

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MOST_LINES = 30
"""Of code in a module of the examples; imports are not counted, nor the row of a method."""

N_RECORDS = 1_500
ADVERSARIES = "privpipe/attacks/adversaries/__init__.py"
TABLES = {
    "A method": ("privpipe/sanitizers/null_space/__init__.py", "METHODS"),
    "An adversary": (ADVERSARIES, "ADVERSARIES"),
    "A source format": ("privpipe/store/sources/formats.py", "FORMATS"),
    "An attack": ("privpipe/attacks/threats/attack_table.toml", ""),
}
COMMAND = ("../privpipe",)
"""A script beside the copy, named as the command is: completion goes by its name."""

FLOW, TASKS = "privpipe/flows/release_flow.py", "privpipe/pipeline/stage_tasks.py"


def read_part(part: str) -> tuple[list[str], list[str]]:
    """Files that an example names, in order, and its blocks of Python."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    found = re.search(rf"^### {part}\n(.*?)(?=^##)", text, re.M | re.S)
    assert found, f"CONTRIBUTING has no example of {part}"
    return re.findall(r"`([\w/]+\.py)`", found[1]), re.findall(
        r"```(?:python|toml)\n(.*?)```", found[1], re.S
    )


def add_row(text: str, table: str, row: str) -> str:
    """A file whose table has one row more, and the imports that stand above the row."""
    if not table:  # the file itself is the table
        return f"{text}\n{row}"
    *imports, row = filter(None, row.split("\n"))
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == table for one in targets):
            lines = text.split("\n")
            end = sum(len(line) + 1 for line in lines[: node.end_lineno - 1]) + node.end_col_offset
            head = text[: end - 1].rstrip().removesuffix(",")
            text = f"{head}, {row},{text[end - 1 :]}"
            return "\n".join([text, ""]) if not imports else _import(text, imports)
    raise AssertionError(f"there is no table {table}")


def _import(text: str, imports: list[str]) -> str:
    first = re.search(r"^(from|import) ", text, re.M)
    assert first
    return text[: first.start()] + "\n".join(imports) + "\n" + text[first.start() :]


def count_code(text: str) -> int:
    """Statements' lines without imports, docstrings and the row of a method."""
    tree, lines = ast.parse(text), set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in ast.walk(tree):
        prose = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        row = isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "METHOD"
        if prose or row:
            lines -= set(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(lines & {n for n, line in enumerate(text.split("\n"), 1) if line.strip()})


@dataclass(frozen=True)
class House:
    """The copy, and where a run of it finds everything."""

    folder: Path
    environment: dict[str, str]

    def run(self, *command: str, code: int = 0) -> str:
        """Run Python in the copy; what it said."""
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=self.folder / "house",
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def configure(self, records: Path, name: str, *, adversaries: str = "", steps: int = 2) -> Path:
        """A configuration of the new method; its release is beside it."""
        release = self.folder / f"{name}.zarr"
        config = release.with_suffix(".toml")
        config.write_text(
            f'[collection]\npath = "{records}"\nconfidential = ["party"]\ndesired = ["late"]\n'
            f'[method]\nname = "coarse"\nn_steps = {steps}\n'
            f'[release]\npath = "{release}"\n[audit]\nholdout = 0.4\n'
            f"{adversaries}\n[gate]\nenforce = false\n[cluster]\nworkers = 0\n"
        )
        return config

    def kill_at_first_chunks(self, config: Path) -> None:
        """Run it, and kill it when some chunks are written."""
        release = config.with_suffix(".zarr")
        ledger = Path(workspace_url(str(release)))
        command = [sys.executable, *COMMAND, "run", str(config)]
        process = subprocess.Popen(
            command, env=self.environment, cwd=self.folder / "house", stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 200
        while not any(ledger.glob("ledger/*.json")):
            assert process.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=30)
        assert not release.exists()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, prefect_url: str) -> House:
    folder = tmp_path_factory.mktemp("contributing")
    for name in ("privpipe", "tests", "flows"):
        shutil.copytree(ROOT / name, folder / "house" / name)
    for name in ("pyproject.toml", "conftest.py"):
        shutil.copy(ROOT / name, folder / "house" / name)
    script = "from privpipe.command import main\n\nmain()\n"
    (folder / "privpipe").write_text(script)
    own = own_prefect(str(folder / "prefect"), url=prefect_url)
    path = os.pathsep.join([str(folder / "house"), own["PYTHONPATH"]])
    more = {"PYTHONPATH": path, "PRIVPIPE_KEYS": str(folder / "keys")}
    made = House(folder, own | more | {"PRIVPIPE_ACCOUNT": str(folder / "account")})
    make_additions(folder / "house")
    return made


def make_additions(house: Path) -> None:
    """All five."""
    for part, (place, table) in TABLES.items():
        (module, *_), (code, row, *example) = read_part(part)
        write_new(house / module, code)
        known = house / place
        known.write_text(add_row(known.read_text(), table, row))
        if example:
            write_new(house / "tests/methods/coarse.py", example[0])
    (module, *_), (code, task, call) = read_part("A stage")
    write_new(house / module, code)
    imported, row = filter(None, task.split("\n"))
    tasks, flow = house / TASKS, house / FLOW
    tasks.write_text(_import(tasks.read_text() + row + "\n", [imported]))
    before = call.strip("\n").split("\n")[-1]
    assert flow.read_text().count(before) == 1, "the stage before which the new one stands"
    flow.write_text(flow.read_text().replace(before, call.rstrip("\n")))


def write_new(place: Path, code: str) -> None:
    assert not place.exists(), f"{place} is no new module"
    place.write_text(code)


def test_additions__change_a_module_and_a_row_each(house: House) -> None:
    changed = {
        str(path.relative_to(house.folder / "house"))
        for kind in ("py", "toml")
        for path in (house.folder / "house").rglob(f"*.{kind}")
        if not (ROOT / path.relative_to(house.folder / "house")).exists()
        or path.read_text() != (ROOT / path.relative_to(house.folder / "house")).read_text()
    }
    modules = {read_part(part)[0][0] for part in (*TABLES, "A stage")}
    tables = {place for place, _ in TABLES.values()} | {TASKS, FLOW}
    assert changed == modules | tables | {"tests/methods/coarse.py"}
    for module in modules:
        assert count_code((house.folder / "house" / module).read_text()) <= MOST_LINES, module


def test_method__is_held_to_the_contract_with_no_test_of_its_own(house: House) -> None:
    chosen = "coarse"
    said = house.run(
        "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", chosen,
        "tests/sanitizers/test_contract.py", "tests/sanitizers/test_contract_rows.py",
        "tests/flows/test_check_methods.py",
    )  # fmt: skip
    passed = re.search(r"(\d+) passed", said)
    assert passed
    assert int(passed[1]) >= 20


@pytest.fixture(scope="module")
def people(house: House) -> pa.Table:
    """Standard records as a table, which an Arrow file holds."""
    x, labels = make_standard(N_RECORDS)
    columns = {f"x{i}": x[:, i] for i in range(x.shape[1])} | {
        name: [f"no {int(v)}" for v in values] if name in ("late", "party") else values
        for name, values in labels.items()
    }
    return pa.table(columns)


def ingest_table(house: House, table: pa.Table, name: str) -> Path:
    """The table as an Arrow file, ingested."""
    stripes, records = house.folder / f"{name}.orc", house.folder / f"{name}.zarr"
    orc.write_table(table, str(stripes))
    labels = ("--labels", "height,late,income,party")
    house.run(*COMMAND, "ingest", str(stripes), str(records), *labels)
    return records


@pytest.fixture(scope="module")
def records(house: House) -> Path:
    """Standard records in chunks that are small enough to be killed between."""
    write_standard(str(house.folder / "records.zarr"), N_RECORDS, chunk_rows=25)
    return house.folder / "records.zarr"


def read_audit(config: Path) -> str:
    return (config.with_suffix(".report") / "audit.json").read_text()


def test_additions__are_used_by_a_run(house: House, people: pa.Table) -> None:
    records = ingest_table(house, people, "people")
    named = house.configure(records, "named", adversaries='adversaries = ["nearest_mean"]')
    house.run(*COMMAND, "run", str(named))
    found = json.loads(read_audit(named))
    assert found["attacks"]["unchanged"]["report"]["n_records"] > 100
    assert "nearest_mean" in read_audit(named)
    few = house.configure(ingest_table(house, people.slice(0, 60), "few"), "too_few")
    assert "at least 100 are released" in house.run(*COMMAND, "run", str(few), code=6)


def test_adversary__attacks_nobody_who_did_not_name_it(house: House, records: Path) -> None:
    others = house.configure(records, "others", adversaries="max_records = 1000")
    house.run(*COMMAND, "run", str(others))
    assert "logistic" in read_audit(others)
    assert "nearest_mean" not in read_audit(others)


def test_method__is_checked_described_and_completed(house: House, records: Path) -> None:
    below = house.run(*COMMAND, "check", str(house.configure(records, "below", steps=0)), code=2)
    assert "n_steps" in below
    schema = json.loads(house.run(*COMMAND, "schema", "--json"))
    about = schema["$defs"]["CoarseOptions"]["properties"]["n_steps"]
    assert about["description"] == "Steps within a deviation."
    begun = house.run(*COMMAND, "init", str(records), "-", "--method", "coarse")
    assert "# Steps within a deviation." in begun
    assert "# n_steps = 2" in begun
    words = "privpipe init a.zarr b.toml --method coa"
    asked = {"_PRIVPIPE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": "5"}
    completed = House(house.folder, house.environment | asked).run(*COMMAND)
    assert completed.split() == ["coarse"]


def test_method__is_killed_resumes_and_is_inspected(house: House, records: Path) -> None:
    light = 'adversaries = ["least_squares", "logistic"]'
    whole = house.configure(records, "whole", adversaries=light)
    again = house.configure(records, "again", adversaries=light)
    house.run(*COMMAND, "run", str(whole))
    house.run(*COMMAND, "train", str(again))
    house.kill_at_first_chunks(again)
    assert "resume" in house.run(*COMMAND, "resume", str(again))
    places = [config.with_suffix(".zarr") for config in (whole, again)]
    for place in places:
        assert "coarse" in house.run(*COMMAND, "inspect", str(place), "--json")
    chunks = [read_chunks(place / "features") for place in places]
    assert chunks[0]
    assert chunks[0] == chunks[1]


def read_chunks(array: Path) -> dict[str, bytes]:
    files = (path for path in array.rglob("*") if path.is_file() and "c" in path.parts[-3:])
    return {str(path.relative_to(array)): path.read_bytes() for path in files}
