"""A toy surrogate method, one row in a test, goes through the whole pipeline by its row alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe.store.releases.lazy_release import open_release
from tests.flows.digits_runs import own_prefect
from tests.standard import write_standard

pytestmark = pytest.mark.slow

TOY = """
import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass as options_dataclass

from privpipe.option_values import FORBID
from privpipe.numerics.regression.moments import CoMoments
from privpipe.protocols import Guarantee, Method
from privpipe.sanitizers import METHODS, RECORD_MAPS
from privpipe.sanitizers.options import MethodOptions

@options_dataclass(frozen=True, config=FORBID)
class ToyOptions(MethodOptions):
    name: Literal["toy"]
    n_records: int
    copies: bool = False

@dataclass(frozen=True, eq=False)
class Toy:
    kind: ClassVar[str] = "toy"
    reads: ClassVar[str] = "features"
    draws: ClassVar[bool] = True
    keeps_features: ClassVar[bool] = True
    mean: np.ndarray
    spread: np.ndarray
    source: np.ndarray
    n_records: int
    guarantee: Guarantee

    @property
    def n_features_in(self): return len(self.mean)
    @property
    def n_features_out(self): return len(self.mean)
    def make_records(self, start, stop, stream):
        words = stream.words("toy", len(self.mean))
        if len(self.source):
            return self.source[np.arange(start, stop) % len(self.source)]
        return self.mean + self.spread * (words / 2.0**64 - 0.5) * np.sqrt(12)

def fit(shards, options):
    moments = shards.reduce(summarise)
    spread = np.sqrt(np.diag(moments.scatter) / moments.count)
    source = np.empty((0, len(spread)))
    if options.copies:
        source = np.concatenate([
            shards.collection.shard(k).features for k in range(shards.collection.plan.n_chunks)
        ]).astype(float)
    promise = Guarantee("none", None, "", "in expectation", "a toy promises nothing")
    return Toy(moments.mean.round(6), spread.round(6), source, options.n_records, promise)

def summarise(shard):
    return CoMoments.of(shard.features)

METHODS["toy"] = Method(
    name="toy", options=ToyOptions, releases="surrogate", fit=fit,
    source="nobody", maps=(Toy,), promise="nothing",
)
RECORD_MAPS["toy"] = Toy

from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.flows.release_flow import run_pipeline
from privpipe.pipeline.stages.check import check_stage

for config in sys.argv[2:]:
    run_pipeline(config) if sys.argv[1] == "run" else check_stage(read_options(config))
"""


def configure(folder: Path, n_records: int, chunk_rows: int, extra: str = "") -> str:
    source = folder / f"records{chunk_rows}.zarr"
    if not source.exists():
        write_standard(str(source), 600, chunk_rows=chunk_rows)
    config = folder / f"{n_records}{chunk_rows}{len(extra)}.toml"
    release = config.with_suffix(".zarr")
    config.write_text(
        f'[collection]\npath = "{source}"\nconfidential = ["party"]\n'
        f'[method]\nname = "toy"\nn_records = {n_records}\n{extra}'
        f'[release]\npath = "{release}"\n[cluster]\nworkers = 0\n'
        "[audit]\nholdout = 0.3\n"
    )
    return str(config)


def run(folder: Path, url: str, what: str, *configs: str) -> subprocess.CompletedProcess[str]:
    script = folder / "toy_run.py"
    script.write_text(TOY)
    own = own_prefect(str(folder / "prefect"), url=url)
    return subprocess.run(
        [sys.executable, str(script), what, *configs],
        capture_output=True,
        text=True,
        env=own | {"PRIVPIPE_KEYS": str(folder / "keys"), "PYTHONPATH": str(Path.cwd())},
        timeout=300,
        check=False,
    )


def read_release(config: str) -> tuple[np.ndarray, dict[str, object]]:
    release = open_release(config.replace(".toml", ".zarr"), verify=True)
    return release["features"].to_numpy(), release.attrs["privpipe"]


def test_surrogate__has_its_own_records_keys_and_audit(tmp_path: Path, prefect_url: str) -> None:
    more, copied = configure(tmp_path, 1000, 128), configure(tmp_path, 420, 128, "copies = true\n")
    other = configure(tmp_path, 1000, 50)
    done = run(tmp_path, prefect_url, "run", more, copied, other)
    assert done.returncode == 0, done.stderr[-3000:]
    made, header = read_release(more)
    assert made.shape[0] == 1000
    assert header["partitions"] == []
    findings = json.loads(Path(more.replace(".toml", ".report/audit.json")).read_text())
    assert findings["adversaries"]["verdict"] == "unknown"
    assert findings["membership"]["n_members"] > 300
    assert np.array_equal(made, read_release(other)[0])  # the same draws in other chunks
    told = json.loads(Path(copied.replace(".toml", ".report/audit.json")).read_text())
    assert told["adversaries"]["verdict"] == "leaks"


def test_surrogate__variables_of_records_are_refused(tmp_path: Path, prefect_url: str) -> None:
    config = Path(configure(tmp_path, 10, 128))
    config.write_text(config.read_text().replace("[cluster]", 'include = ["person"]\n[cluster]'))
    done = run(tmp_path, prefect_url, "check", str(config))
    assert done.returncode != 0
    assert "belong to no record" in done.stderr + done.stdout
