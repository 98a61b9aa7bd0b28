"""The main job through a real flow; through real workers where what they do is asked."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from privpipe.command.demo_command import N_ORIGINALS, write_digits
from privpipe.errors import InputError, OptionError, StoreError
from privpipe.flows.release_flow import run_pipeline
from privpipe.records.memory import Records
from privpipe.records.sampling import make_split
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner, fit_null_space_cleaner
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release
from tests.standard import make_standard, write_standard

LINEAR = 'adversaries = ["least_squares", "logistic"]'
"""For runs that state nothing of the other adversaries, which take most of an audit's time."""

WORKERS = "workers = 2"
"""For runs that state something of processes; the others work in this one."""


def configure(folder: Path, **changes: str) -> str:
    values = {
        "path": str(folder / "records.zarr"),
        "desired": '["height"]',
        "confidential": '["income", "party"]',
        "method": 'name = "null_space"\nutility_budget = 0.5\nridge = 1e-6',
        "release": str(folder / "release.zarr"),
        "include": '["person"]',
        "audit": f"holdout = 0.3\n{LINEAR}",
        "training": "",
        "nonfinite": "fail",
        "cluster": "workers = 0",
    } | changes
    text = (
        f'[collection]\npath = "{values["path"]}"\ndesired = {values["desired"]}\n'
        f"confidential = {values['confidential']}\n{values['training']}\n"
        f'[method]\n{values["method"]}\n[release]\npath = "{values["release"]}"\n'
        f"include = {values['include']}\nnonfinite = '{values['nonfinite']}'\n"
        f"[audit]\n{values['audit']}\n"
        f'[cluster]\n{values["cluster"]}\ndashboard = "127.0.0.1:0"\n'
    )
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def read_findings(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "release.report" / "audit.json").read_text())
    return content


@pytest.mark.slow
def test_run_pipeline__publishes_a_release_that_keeps_its_promise(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 600, chunk_rows=40)
    config = configure(tmp_path, audit="holdout = 0.3", cluster=WORKERS)  # every adversary
    run_pipeline(config)
    x, _ = make_standard(600)
    release = open_release(str(tmp_path / "release.zarr"), verify=True)
    assert set(release.data_vars) == {"features", "person"}
    cleaner = open_model(str(tmp_path / "release.model.zarr"))
    released = release.features.values
    np.testing.assert_allclose(released, cleaner.apply(x), rtol=1e-12, atol=1e-12)
    exact = np.asarray(cleaner.predictor, np.longdouble)  # type: ignore[attr-defined]
    loss = (((released.astype(np.longdouble) - x) @ exact) ** 2).sum(axis=1)
    assert loss.max() <= 0.5
    assert np.median(loss) > 0.49
    found = read_findings(tmp_path)
    assert found["e_utility"]["n_above_budget"] == 0
    assert found["desired"]["height"]["released"]["r2"] > 0.9
    assert found["confidential"]["income"]["raw"]["r2"] > 0.9
    assert found["confidential"]["income"]["released, attack retrained"]["r2"] < 0.2
    header = release.attrs["privpipe"]
    assert header["guarantee"]["number"] == 0.5
    assert found["e_utility"]["n_records"] == 600
    assert found["e_utility"]["largest"] == pytest.approx(loss.max(), rel=1e-6)
    assert header["method"] == "null_space"
    assert not (tmp_path / ".release.zarr.privpipe").exists()
    root = tmp_path / "release.zarr"
    assert stat.S_IMODE(root.stat().st_mode) & 0o077 == 0  # what workers wrote
    assert sorted(zarr.open_group(str(root), mode="r").array_keys()) == [
        "feature",
        "features",
        "person",
    ]
    run_pipeline(config)  # again: nothing to do
    with pytest.raises(StoreError, match="exists and is of another configuration"):
        run_pipeline(configure(tmp_path, audit="holdout = 0.4"))


@pytest.mark.slow
@pytest.mark.parametrize("nonfinite", ["fail", "withhold", "impute"])
def test_run_pipeline__treats_nonfinite_records_as_told(tmp_path: Path, nonfinite: str) -> None:
    cells = {(7, 2): np.nan, (100, 0): np.inf, (100, 1): np.nan}
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40, cells=cells)
    config = configure(tmp_path, nonfinite=nonfinite)
    if nonfinite == "fail":
        with pytest.raises(InputError, match="not finite"):
            run_pipeline(config)
        assert not (tmp_path / "release.zarr").exists()
        return
    run_pipeline(config)
    release = open_release(str(tmp_path / "release.zarr"), verify=True)
    empty = np.isnan(release.features.values).any(axis=1)
    header = release.attrs["privpipe"]
    # Counted for who decides, and for no one else.
    sheet = " ".join((tmp_path / "release.report" / "officer.yaml").read_text().split())
    how = "filled in with means" if nonfinite == "impute" else "withheld"
    assert f"3 in 2 records, which are {how}" in sheet
    assert "3 in 2 records" not in (tmp_path / "release.report" / "public.html").read_text()
    if nonfinite == "impute":
        assert not empty.any()
        assert header["n_withheld"] == 0
        return
    assert np.flatnonzero(empty).tolist() == [7, 100]
    assert np.array_equal(release.released.values, (~empty).astype(np.int8))
    assert release.person.values[[7, 100]].tolist() == [-1, -1]
    assert release.person.values[8] == 8
    assert header["n_withheld"] is None  # a count of few


@pytest.mark.slow
def test_run_pipeline__trains_on_another_collection(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "training.zarr"), 500, chunk_rows=50, seed=1)
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40, seed=2)
    training = f'[training]\npath = "{tmp_path}/training.zarr"'
    run_pipeline(configure(tmp_path, training=training))
    assert open_release(str(tmp_path / "release.zarr")).sizes["record"] == 300
    found = read_findings(tmp_path)
    assert "the released records themselves, none of which the fit saw" in found["basis"]
    assert found["e_utility"]["n_above_budget"] == 0


@pytest.mark.slow
def test_run_pipeline__weighs_training_records_as_a_fit_in_memory_does(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=40)
    run_pipeline(configure(tmp_path, desired='["height"]\nweights = "person"'))
    fitted = open_model(str(tmp_path / "release.model.zarr"))
    assert isinstance(fitted, NullSpaceCleaner)
    x, variables = make_standard(300)
    rows = np.flatnonzero(make_split(0.3).keep("fit", np.arange(300)))
    weighted, plain = (
        fit_null_space_cleaner(
            Records(x[rows], desired=variables["height"][rows], weights=weights),
            utility_budget=0.5,
            ridge=1e-6,
        )
        for weights in (rows.astype(float), None)
    )
    np.testing.assert_allclose(fitted.predictor, weighted.predictor, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fitted.centre, weighted.centre, rtol=1e-9)
    assert np.abs(fitted.predictor - plain.predictor).max() > 1e-4
    assert np.abs(fitted.centre - plain.centre).max() > 1e-3


@pytest.mark.slow
def test_run_pipeline__audits_repeats_as_the_originals(tmp_path: Path) -> None:
    found = []
    for repeats in (1, 3):
        folder = tmp_path / str(repeats)
        folder.mkdir()
        write_digits(str(folder / "records.zarr"), repeats * N_ORIGINALS)
        config = configure(
            folder,
            desired='["zero"]\nsubject = "original"',
            confidential='["digit"]',
            method='name = "null_space"\nutility_budget = 0.01\nridge = 0.01',
            include="[]",
            audit=f"holdout = 0.5\n{LINEAR}",
        )
        run_pipeline(config)
        found.append(read_findings(folder))
    once, often = found
    assert often["n_records"] == 3 * once["n_records"]
    assert often["n_groups"] == once["n_groups"] == once["n_records"]
    assert often["desired"] == once["desired"]
    assert often["confidential"] == once["confidential"]
    assert often["e_utility"]["mean"] == pytest.approx(once["e_utility"]["mean"], rel=1e-6)


@pytest.mark.parametrize(
    ("changes", "kind", "expected"),
    [
        ({"include": '["income"]'}, OptionError, "confidential variable 'income'"),
        ({"include": '["features"]'}, OptionError, "never released raw"),
        ({"desired": '["heigth"]'}, InputError, "did you mean 'height'"),
        ({"desired": "[]"}, OptionError, "needs .collection. desired"),
        ({"desired": '["height"]\nsubject = "famly"'}, InputError, "no variable 'famly'"),
    ],
)
def test_check__refuses_before_a_cluster_is_touched(
    tmp_path: Path, changes: dict[str, str], kind: type[Exception], expected: str
) -> None:
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.pipeline.stages.check import check_stage

    write_standard(str(tmp_path / "records.zarr"), 100)
    with pytest.raises(kind, match=expected):
        check_stage(read_options(configure(tmp_path, **changes)))


def test_check__refuses_output_inside_input(tmp_path: Path) -> None:
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.pipeline.stages.check import check_stage

    write_standard(str(tmp_path / "records.zarr"), 100)
    (tmp_path / "link").symlink_to(tmp_path / "records.zarr")
    for place in ("records.zarr/inner.zarr", "link/inner.zarr", "records.zarr"):
        config = configure(tmp_path, release=str(tmp_path / place))
        with pytest.raises(OptionError, match="the collection"):
            check_stage(read_options(config))


@pytest.mark.slow
@pytest.mark.paper
def test_run_pipeline__reaches_the_milestone_on_scene(tmp_path: Path, paper_data: Path) -> None:
    """Xu et al. 2017, Figure 4, scene 1/5: e_utility .01, e_privacy .796, complete privacy 81.8 %.

    One split here, so within five points of privacy.
    """
    ingest(str(paper_data / "scene.npz"), str(tmp_path / "records.zarr"), IngestOptions())
    reading = 'name = "null_space"\nutility_budget = 0.01\nintercept = "augmented"\n'
    config = configure(
        tmp_path,
        desired='["Beach"]',
        confidential='["Sunset", "FallFoliage", "Field", "Mountain", "Urban"]',
        method=reading + 'label_coding = "plus_minus"',
        include="[]",
        audit=f"holdout = 0.2\n{LINEAR}",
    )
    run_pipeline(config)
    found = read_findings(tmp_path)
    assert found["e_utility"]["mean"] == pytest.approx(0.01, rel=0.1)
    assert found["e_utility"]["largest"] <= 0.01
    assert found["privacy"]["released"]["complete_privacy"] == pytest.approx(0.818, abs=0.05)
    assert found["privacy"]["released"]["e_privacy"] == pytest.approx(0.796, rel=0.15)
    retrained = found["privacy"]["released, attack retrained"]["complete_privacy"]
    assert retrained == pytest.approx(0.51, abs=0.1)  # few records
