"""A new method is one module and one row: a copy of the house with a toy in it does everything.

The copy gets the module, and the row among those of its wing; no other line differs. Everything
runs by the command, as a process of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from privpipe.store.access.workspace import workspace_url
from tests.flows.digits_runs import own_prefect
from tests.standard import write_standard

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
WING = "privpipe/sanitizers/null_space"

TOY = '''
"""A toy: features are rounded to a share of their range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.errors import OptionError
from privpipe.option_values import FORBID
from privpipe.protocols import FloatArray, Guarantee, Method, RecordStream, Role, Shard, Shards
from privpipe.protocols import ShardSchema
from privpipe.sanitizers.arrays import as_records, check_finite_records
from privpipe.sanitizers.options import MethodOptions


@options_dataclass(frozen=True, config=FORBID)
class ToyOptions(MethodOptions):
    """Options of the toy."""

    name: Literal["toy"]
    n_steps: Annotated[int, Field(ge=1, description="Steps in the range of a toy's feature.")] = 8


@dataclass(frozen=True, eq=False)
class ToyRange:
    """Least and largest of each feature."""

    least: FloatArray
    most: FloatArray

    @classmethod
    def of(cls, shard: Shard) -> ToyRange:
        return cls(shard.features.min(axis=0), shard.features.max(axis=0))

    def merge(self, other: ToyRange) -> ToyRange:
        return ToyRange(np.minimum(self.least, other.least), np.maximum(self.most, other.most))


@dataclass(frozen=True, eq=False)
class ToyRounding:
    """Rounds each feature to its step."""

    kind: ClassVar[str] = "toy_rounding"
    reads: ClassVar[Role] = "features"
    draws: ClassVar[bool] = False
    keeps_features: ClassVar[bool] = True

    step: FloatArray

    @property
    def n_features_in(self) -> int:
        return len(self.step)

    @property
    def n_features_out(self) -> int:
        return len(self.step)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee("none", None, "", "every record", "none: a toy")

    def apply(self, x: FloatArray, stream: RecordStream | None = None) -> FloatArray:
        records, dtype = as_records(x, self.n_features_in)
        check_finite_records(records)
        return (np.round(records / self.step) * self.step).astype(dtype)


def fit_toy(shards: Shards, options: ToyOptions) -> ToyRounding:
    check_toy(options, shards.schema)
    found = shards.reduce(ToyRange.of)
    return ToyRounding(np.maximum(found.most - found.least, 1e-9) / options.n_steps)


def check_toy(options: ToyOptions, schema: ShardSchema) -> None:
    if options.n_steps > 100 * schema.n_features:
        raise OptionError("n_steps of the toy are too many.", remedy="Use fewer.")


METHOD = Method(
    name="toy",
    options=ToyOptions,
    releases="rows",
    fit=fit_toy,
    source="A toy of this test",
    maps=(ToyRounding,),
    promise="none",
    statistics=(ToyRange,),
    check=check_toy,
)
'''

IN_TURN = """
import contextlib, io, json, sys
from privpipe.command import main
answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["privpipe", *arguments]
    out, error, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main()
        except SystemExit as ended:
            code = ended.code or 0
    answers.append((code, out.getvalue(), error.getvalue()))
print(json.dumps(answers))
"""
"""Commands one after the other: a process takes longer to start than any of them."""

AUDIT = """[audit]
holdout = 0.3
adversaries = ["least_squares", "logistic"]
"""
N_RECORDS, CHUNK_ROWS = 1_500, 25


class House:
    """A copy of the house with the toy, its command, and a collection of standard records."""

    def __init__(self, folder: Path, prefect_url: str) -> None:
        self.folder = folder
        # With what was compiled: each of the processes would compile the whole house again.
        shutil.copytree(ROOT / "privpipe", folder / "house" / "privpipe")
        (folder / "house" / WING / "toy.py").write_text(TOY.lstrip())
        rows = folder / "house" / WING / "__init__.py"
        row = "\nfrom privpipe.sanitizers.null_space import toy\nMETHODS += (toy.METHOD,)\n"
        rows.write_text(rows.read_text() + row)
        command = folder / "privpipe"
        command.write_text("from privpipe.command import main\n\nmain()\n")
        self.command = (sys.executable, str(command))
        (folder / "in_turn").write_text(IN_TURN)
        self.in_turn = (sys.executable, str(folder / "in_turn"))
        own = own_prefect(str(folder / "prefect"), url=prefect_url)
        path = os.pathsep.join([str(folder / "house"), own["PYTHONPATH"]])
        self.environment = own | {"PYTHONPATH": path, "PRIVPIPE_KEYS": str(folder / "keys")}
        self.records = str(folder / "records.zarr")
        write_standard(self.records, N_RECORDS, chunk_rows=CHUNK_ROWS)

    def configure(self, release: str, n_steps: int = 8) -> tuple[Path, Path]:
        """A configuration of the toy in this process, and where its release goes."""
        config, place = self.folder / f"{release}.toml", self.folder / f"{release}.zarr"
        config.write_text(
            f'[collection]\npath = "{self.records}"\nconfidential = ["party"]\n'
            f'desired = ["late"]\n[method]\nname = "toy"\nn_steps = {n_steps}\n'
            f'[release]\npath = "{place}"\n{AUDIT}[cluster]\nworkers = 0\n'
        )
        return config, place

    def ask(
        self, *arguments: str, code: int = 0, environment: dict[str, str] | None = None
    ) -> tuple[str, str]:
        """Run the command to its end: what it printed, and what it said."""
        done = subprocess.run(
            [*self.command, *arguments],
            env=self.environment | (environment or {}),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    def ask_in_turn(self, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
        """The same of several commands in one process: code, output, errors of each."""
        done = subprocess.run(
            [*self.in_turn, json.dumps(commands)],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return [(code, out, error) for code, out, error in json.loads(done.stdout)]

    def kill_at_first_chunks(self, config: Path, release: Path) -> None:
        """Run it, and kill it when some chunks are written."""
        ledger = Path(workspace_url(str(release)))
        process = subprocess.Popen(
            [*self.command, "run", str(config)], env=self.environment, stderr=subprocess.DEVNULL
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
    return House(tmp_path_factory.mktemp("toy"), prefect_url)


def test_toy__is_checked_described_and_completed(house: House) -> None:
    cases = {"checked": 8, "wrong": 901, "below": 0}
    checks = [("check", str(house.configure(name, steps)[0])) for name, steps in cases.items()]
    init = ("init", house.records, "-", "--method", "toy")
    checked, wrong, below, described, begun = house.ask_in_turn(*checks, ("schema", "--json"), init)
    assert checked[0] == described[0] == begun[0] == 0
    assert wrong[0] == below[0] == 2
    assert "too many" in wrong[2]
    assert "n_steps" in below[2]
    schema = json.loads(described[1])
    about = schema["$defs"]["ToyOptions"]["properties"]["n_steps"]
    assert about["description"].startswith("Steps in the range of a toy")
    assert schema["properties"]["method"]["discriminator"]["mapping"]["toy"]
    assert "# Steps in the range of a toy's feature." in begun[1]
    assert "# n_steps = 8" in begun[1]
    words = {
        "_PRIVPIPE_COMPLETE": "complete_bash",
        "COMP_WORDS": "privpipe init a.zarr b.toml --method to",
        "COMP_CWORD": "5",
    }
    assert house.ask(environment=words)[0].split() == ["toy"]


def test_toy__runs_is_killed_goes_on_and_is_inspected(house: House) -> None:
    config, release = house.configure("whole")
    again, resumed = house.configure("killed")
    for code, _, error in house.ask_in_turn(("run", str(config)), ("train", str(again))):
        assert code == 0, error
    house.kill_at_first_chunks(again, resumed)
    assert "resume" in house.ask("resume", str(again))[1]
    places = (release, resumed)
    for code, answer, _ in house.ask_in_turn(*(("inspect", str(p), "--json") for p in places)):
        assert code == 0
        assert json.loads(answer)
        assert "toy" in answer
        assert "none: a toy" in answer
    chunks = [read_chunks(place / "features") for place in places]
    assert chunks[0]
    assert chunks[0] == chunks[1]


def read_chunks(array: Path) -> dict[str, bytes]:
    files = (path for path in array.rglob("*") if path.is_file() and "c" in path.parts[-3:])
    return {str(path.relative_to(array)): path.read_bytes() for path in files}
