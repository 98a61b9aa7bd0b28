"""A run with a mapping for each value of a public variable, from configuration to release."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from privpipe.command.check_command import check_command
from privpipe.errors import InputError, OptionError
from privpipe.flows.release_flow import release_collection, run_pipeline
from privpipe.pipeline.runs.configuration_file import read_options, write_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import forecast_run
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release
from tests.flows import test_methods
from tests.flows.test_methods import write_profiles
from tests.flows.test_only_worker import Listening, assert_same, flows_on, kill_worker, only
from tests.flows.test_pipeline import configure, read_findings

__all__ = ["only"]


def configure_by(
    folder: Path, by: str = "a0", private: str = "private", pricing: str = "auto", **more: str
) -> str:
    attributes = [name for name in ("a0", "a1", "a2") if name != by]
    method = (
        f'name = "privacy_mapping"\nattributes = {json.dumps(attributes)}\nby = "{by}"\n'
        f'private = ["{private}"]\ndistortion_budget = 0.3\npricing = "{pricing}"'
    )
    given = {"desired": "[]", "confidential": "[]", "include": "[]", "method": method}
    audit = 'holdout = 0.4\nadversaries = ["naive_bayes"]'
    return configure(folder, **{**given, "audit": audit, "cluster": "workers = 0", **more})


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))


@pytest.mark.slow
def test_run__releases_the_variable_as_it_is_and_names_its_values(tmp_path: Path) -> None:
    codes = write_profiles(str(tmp_path / "records.zarr"), 4000)
    run_pipeline(configure_by(tmp_path))
    release = open_release(str(tmp_path / "release.zarr"), verify=True)
    assert set(release.data_vars) == {"a0", "a1", "a2"}
    np.testing.assert_array_equal(release["a0"].values, codes[:, 0])
    changed = np.column_stack([release[f"a{j}"].values != codes[:, j] for j in (1, 2)])
    for value in range(4):
        assert 0 < changed[codes[:, 0] == value].sum(axis=1).mean() < 0.4
    header = release.attrs["privpipe"]
    assert "given a0, which is public, at most" in header["promise"]
    said = dict(header["guarantee"]["parameters"])
    assert sum(said[f"a0=c{k}: share"] for k in range(4)) == pytest.approx(1.0, abs=1e-4)
    for k in range(4):
        assert said[f"a0=c{k}: at_most"] <= header["guarantee"]["number"]
        assert said[f"a0=c{k}: gap"] >= 0
    assert said["given_a0_at_most"] <= header["guarantee"]["number"]
    assert open_model(str(tmp_path / "release.model.zarr")).kind == "stratified_mapping"
    assert read_findings(tmp_path)["adversaries"]["strongest"]["private"]
    assert "given a0" in (tmp_path / "release.report" / "audit.md").read_text()


@pytest.mark.slow
def test_run__is_the_same_though_its_only_worker_dies(only: Client, tmp_path: Path) -> None:
    """Fits of values are tasks: the worker is killed when the first of them is done."""
    killed: list[int] = []

    def kill(work: str) -> None:
        if work == "solve_apart":
            killed.append(kill_worker(only))

    for name, client, watch in (("here", None, Listening()), ("there", only, Listening(kill))):
        (folder := tmp_path / name).mkdir()
        write_profiles(str(folder / "records.zarr"), 4000)
        with flows_on(client):
            release_collection(read_options(configure_by(folder, pricing="cluster")), watch)
        assert "advances" in watch.heard["solve_apart"]
    assert len(killed) == 1
    assert_same(tmp_path / "there", tmp_path / "here")


def test_write_options__leaves_former_keys_out_and_reads_them(tmp_path: Path) -> None:
    path = Path(configure_by(tmp_path))
    plain = read_options(str(path))
    assert "smoothing" not in write_options(plain, "title")
    assert 'by = "a0"' in write_options(plain, "title")
    path.write_text(path.read_text().replace("by = ", 'smoothing = "best"\nby = '))
    assert read_options(str(path)) == plain
    assert read_options(str(path)).digest() == plain.digest()
    path.write_text(path.read_text().replace('"best"', '"none"'))
    with pytest.raises(OptionError, match="smoothing: Input should be 'best'"):
        read_options(str(path))


def test_check__refuses_what_is_private(tmp_path: Path) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 300)
    with pytest.raises(OptionError, match="by is 'private', which is confidential"):
        check_stage(read_options(configure_by(tmp_path, by="private")))
    with pytest.raises(OptionError, match="by is 'a0', which is confidential"):
        check_stage(read_options(configure_by(tmp_path, confidential='["a0"]')))
    with pytest.raises(InputError, match="no variable 'region'"):
        check_stage(read_options(configure_by(tmp_path, by="region")))


def test_check__refuses_a_value_that_no_training_record_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles(str(tmp_path / "training.zarr"), 900)
    path = Path(configure_by(tmp_path))
    training = f'[training]\npath = "{tmp_path / "training.zarr"}"\n[method]'
    path.write_text(path.read_text().replace("[method]", training, 1))
    # Of the other attributes an unknown value is released as its nearest, see test_profiles.
    for sizes, unknown in (((4, 3, 6), False), ((5, 3, 5), True)):
        monkeypatch.setattr(test_methods, "SIZES", sizes)
        (tmp_path / "records.zarr").exists() and shutil.rmtree(tmp_path / "records.zarr")
        write_profiles(str(tmp_path / "records.zarr"), 300)
        if not unknown:
            check_stage(read_options(str(path)))
            continue
        with pytest.raises(InputError, match=r"\[method\] by is 'a0'") as error:
            check_stage(read_options(str(path)))
        assert error.value.code == "schema-drift"


def test_check__ends_the_reason_why_nothing_could_be_tried_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message of ours ends in a full stop, and stood in a sentence: "anything.. From"."""
    monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
    monkeypatch.setattr(test_methods, "SIZES", (40, 3, 5))  # few records of each value
    write_profiles(str(tmp_path / "records.zarr"), 3000)
    audit = 'holdout = 0.4\nadversaries = ["naive_bayes"]\n[gate]\nenforce = false'
    check_command(configure_by(tmp_path, audit=audit))
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"have too few records to promise anything\. From [\d,]+ records\.", said)


def configure_subjects(folder: Path, more: str = "") -> str:
    path = Path(configure_by(folder))
    text = path.read_text().replace('by = "a0"', more).replace('"a1", "a2"', '"a1"')
    path.write_text(text.replace("[method]", 'subject = "a0"\n[method]', 1))
    return str(path)


def test_check__says_that_records_of_one_person_are_not_independent(tmp_path: Path) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 1000)
    said = forecast_run(check_stage(read_options(configure_subjects(tmp_path))))
    assert said is not None
    assert "No bound is promised" in said.describe()
    wanted = read_options(configure_subjects(tmp_path, "wanted_information = 0.5"))
    with pytest.raises(OptionError, match="not independent"):
        forecast_run(check_stage(wanted))


@pytest.mark.slow
def test_run__promises_no_bound_where_a_subject_is_named(tmp_path: Path) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 1000)
    run_pipeline(configure_subjects(tmp_path))
    header = open_release(str(tmp_path / "release.zarr")).attrs["privpipe"]
    assert header["guarantee"]["kind"] == "none"
    assert "records of one person are not independent" in header["promise"]
    assert not [name for name, _ in header["guarantee"]["parameters"] if "_at_most" in name]
    assert "not independent" in (tmp_path / "release.report" / "audit.md").read_text()
    assert open_model(str(tmp_path / "release.model.zarr")).guarantee.kind == "none"
