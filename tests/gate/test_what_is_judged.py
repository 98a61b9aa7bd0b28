"""What is judged is what is released: every chunk of it, every record by its weight, every part."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.executors.executor import Executor
from privpipe.cluster.passes.attack_tasks import draw_missing
from privpipe.cluster.passes.sample_drawing import gather_sample
from privpipe.errors import GateError
from privpipe.flows.release_flow import release_collection
from privpipe.pipeline.runs.resume import begin_or_resume
from privpipe.pipeline.runs.watch import Watch
from privpipe.pipeline.stages.audit.audit_attacks import plan_samples
from privpipe.pipeline.stages.audit.judged_records import list_unjudged
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.clean import plan_release
from privpipe.pipeline.stages.gate import list_weaker_limits
from privpipe.pipeline.stages.train import train_stage
from privpipe.report.console import PlainConsole
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.gate.leaky_runs import CHUNK_ROWS, make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

pytestmark = pytest.mark.usefixtures("serially")


def read_audit(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "release.report" / "audit.json").read_text())
    return content


def include_club(folder: Path, records: dict[str, np.ndarray], **changes: Any) -> Any:
    write_records(str(folder / "records.zarr"), records)
    return make_leaky_options(
        folder, method={"name": "leace"}, release={"include": ["club"]}, **changes
    )


@pytest.mark.slow
def test_gate__sees_a_leak_in_chunks_between_any_few(tmp_path: Path) -> None:
    """`club` is the secret in 24 chunks of 40: those that sixteen evenly spread ones leave out."""
    records, random = make_records(40 * CHUNK_ROWS), np.random.default_rng(0)
    spread = np.linspace(0, 39, 16).astype(int)
    leaks = ~np.isin(np.arange(40 * CHUNK_ROWS) // CHUNK_ROWS, spread)
    noise = random.integers(0, 2, len(leaks)).astype(np.int8)
    club = np.where(leaks, records["secret"], noise).astype(np.int8)
    options = include_club(tmp_path, records | {"club": club}, audit={"max_records": 5000})
    with pytest.raises(GateError, match="'secret' leaks"):
        run_serially(options)
    found = read_audit(tmp_path)["adversaries"]
    sample = found["sample"]
    assert (sample["n_records"], sample["n_chunks"], sample["of_chunks"]) == (5000, 40, 40)
    assert 19_000 < sample["of_records"] < 21_000
    page = (tmp_path / "release.report" / "report.html").read_text()
    assert found["sample_sentence"] in page
    assert "40 of 40 chunks" in (tmp_path / "release.report" / "public.html").read_text()


def test_clean__stores_what_it_draws_and_a_later_pass_would_draw_the_same(tmp_path: Path) -> None:
    records = make_records(4000)
    records["features"][::7, 0] = np.nan
    options = include_club(
        tmp_path,
        records | {"club": records["other"]},
        audit={"max_records": 500},
        gate={"enforce": False},
    )
    options = options.model_copy(
        update={"release": options.release.model_copy(update={"nonfinite": "withhold"})}
    )
    release_collection(options, Watch(PlainConsole(file=io.StringIO())), until="clean")
    run, _ = begin_or_resume(check_stage(options))
    stored = {path: path.read_bytes() for path in Path(run.sample_url).iterdir()}
    assert len(stored) == 1 + 2 * 4  # the key, and of each chunk who is judged and who was learned
    for path in stored:
        if path.name != "key":
            path.unlink()
    trained = train_stage(run, Executor())
    drawings = plan_samples(run, trained, plan_release(run, trained))
    draw_missing(Executor(), drawings)
    assert {path: path.read_bytes() for path in Path(run.sample_url).iterdir()} == stored
    sample = gather_sample(drawings[0])
    assert len(sample.rows) == 500
    withheld = np.isnan(sample.shard.released).all(axis=1)
    assert np.array_equal(withheld, sample.rows % 7 == 0)


def train_apart(folder: Path, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Training records whose club is noise; records to release whose club is the secret."""
    random = np.random.default_rng(3)
    learned, released = make_records(seed=11), make_records(3000, seed=12)
    club = random.integers(0, 2, len(learned["secret"])).astype(np.int8)
    write_records(str(folder / "training.zarr"), learned | {"club": club})
    return released | {"club": released["secret"]} | more


@pytest.mark.slow
def test_training__does_not_hide_what_the_released_records_tell(tmp_path: Path) -> None:
    training = {"path": str(tmp_path / "training.zarr")}
    options = include_club(tmp_path, train_apart(tmp_path), training=training)
    with pytest.raises(GateError, match="'secret' leaks"):
        run_serially(options)
    found = read_audit(tmp_path)
    assert "the released records themselves" in found["basis"]
    assert found["adversaries"]["sample"]["of_records"] == 3000
    assert "drift" not in found["attacks"]  # they are the same


@pytest.mark.slow
def test_training__leaves_unproven_what_no_label_judges(tmp_path: Path) -> None:
    records = train_apart(tmp_path)
    del records["secret"]
    training = {"path": str(tmp_path / "training.zarr")}
    options = include_club(tmp_path, records, training=training, gate={"must_find": 0.5})
    with pytest.raises(GateError, match="'club' is released, and was not judged"):
        run_serially(options)
    found = read_audit(tmp_path)
    verdicts = {one["target"]: one["verdict"] for one in found["adversaries"]["decisions"]}
    assert verdicts == {"secret": "safe", "club": "unproven", "order": "unproven"}
    assert "nothing is known of club, order of the release" in found["basis"]
    vouched = include_vouched(tmp_path, ("club", "order"), training)
    assert "vouched club, order (usually none)" in list_weaker_limits(vouched)
    run_serially(vouched)
    public = (tmp_path / "release.report" / "public.html").read_text()
    assert "vouched club, order" in public


def test_list_unjudged__says_whether_labels_lack_or_the_model_saw_the_records(
    tmp_path: Path,
) -> None:
    """Of records that were all labelled it was said that they carry too few labels."""
    layout = SourceLayout(features=("x",), labels=("wanted", "secret"))
    kinds = IngestOptions(layout=layout, categorical=("wanted", "secret"))
    for name, seed in (("records", 0), ("training", 0), ("others", 1)):
        random = np.random.default_rng(seed)
        x = random.normal(size=(400, 3))
        np.savez(tmp_path / "batch.npz", x=x, wanted=x[:, 0] > 0, secret=x[:, 1] > 0)
        ingest(str(tmp_path / "batch.npz"), str(tmp_path / f"{name}.zarr"), kinds)
    ungated = {"enforce": False}
    for name, expected in (("training", "the model was trained on a released"), ("others", "")):
        training = {"path": str(tmp_path / f"{name}.zarr")}
        run = check_stage(make_leaky_options(tmp_path, training=training, gate=ungated))
        said = [one.reason for one in list_unjudged(run)]
        assert bool(said) == bool(expected)
        assert all(expected in one for one in said)


def include_vouched(folder: Path, names: tuple[str, ...], training: dict[str, str]) -> Any:
    return make_leaky_options(
        folder,
        method={"name": "leace"},
        release={"include": ["club"]},
        audit={"vouched": names},
        training=training,
        gate={"must_find": 0.5},
    )


@pytest.mark.slow
def test_audit__counts_records_of_few_profiles_by_their_weight(tmp_path: Path) -> None:
    """Ten binary columns, one of which tells the secret of nine in ten; all are released."""
    random = np.random.default_rng(0)
    features = random.integers(0, 2, (6000, 10)).astype(np.float64)

    def flip(column: np.ndarray) -> np.ndarray:
        return np.where(random.random(len(column)) < 0.1, 1 - column, column).astype(np.int8)

    records = {"features": features, "wanted": flip(features[:, 0]), "secret": flip(features[:, 1])}
    write_records(str(tmp_path / "records.zarr"), records)
    options = make_leaky_options(
        tmp_path, method={"name": "rand", "n_filtered": 10}, gate={"enforce": False}
    )
    run_serially(options)
    (one,) = read_audit(tmp_path)["adversaries"]["decisions"]
    assert one["verdict"] == "leaks"
    assert one["control_advantage"] == pytest.approx(0.8, abs=0.06)
