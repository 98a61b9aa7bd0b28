"""Commands that read a release which grows: what they say is true of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from privpipe.cluster.estimate import estimate
from privpipe.command.check_command import check_command, dry_run_command
from privpipe.errors import GateError, OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.incremental_release import purge_parts
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.operations.increments import CONFIGURATION, append, configure, day, release


def grow(folder: Path, n_days: int) -> None:
    rng = np.random.default_rng(4)
    for number in range(n_days):
        append(folder, f"day {number}", rng.normal(size=(60, 3)), number)


def test_check__of_a_healthy_growing_release_finds_it_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that the release "exists and is of another configuration", and to remove it."""
    options = configure(tmp_path)
    grow(tmp_path, 2)
    for _ in range(2):  # before its first generation, and after
        check_command(str(tmp_path / "run.toml"))
        plan = dry_run_command(str(tmp_path / "run.toml"))
        assert plan["writes"]["release"] == str(tmp_path / "release.zarr")
        said = capsys.readouterr().out
        assert "is in order" in said
        assert "parts" not in said.replace("partitions", "")
        assert "earlier" not in said  # the newest partition is in this release already
        release(options)


def test_check__refuses_a_growing_release_that_run_refuses(tmp_path: Path) -> None:
    configure(tmp_path)
    grow(tmp_path, 1)
    path = tmp_path / "run.toml"
    train = f'[training]\npath = "{tmp_path}/training.zarr"\n'
    path.write_text(path.read_text().replace(train, ""))
    with pytest.raises(OptionError, match="trains on the collection, which grows"):
        check_command(str(path))


def test_estimate__of_a_growing_release_finds_its_model(tmp_path: Path) -> None:
    configure(tmp_path)
    path = tmp_path / "run.toml"
    noisy = 'name = "noisy"\nepsilon = 12.0\nthreshold = 3.0\ncentre = false\n'
    usual = 'name = "null_space"\nutility_budget = 0.05\nridge = 0.01\n'
    path.write_text(path.read_text().replace(usual, noisy))
    grow(tmp_path, 2)
    release(read_options(str(path)))
    found = estimate(str(tmp_path / "release.zarr"), "means")
    assert len(found) == 3
    assert all(abs(one.value) < 1 for one in found)


def test_purge__of_a_growing_release_leaves_the_parts_that_a_generation_names(
    tmp_path: Path,
) -> None:
    options = configure(tmp_path)
    grow(tmp_path, 2)
    release(options)
    parts = tmp_path / "release.zarr" / "parts"
    named = {one.name for one in parts.iterdir()}
    shutil.copytree(parts / min(named), parts / "feedbeef")
    assert purge_parts(str(tmp_path / "release.zarr"))
    assert {one.name for one in parts.iterdir()} == named
    assert np.isfinite(open_release(str(tmp_path / "release.zarr"))["features"].values).all()


def write_table(path: Path, seed: int, n_unknown: int = 0, n: int = 400) -> None:
    rng, rows = np.random.default_rng(seed), ["a,b,region,income,x"]
    for i in range(n):
        a, b, region, income = (rng.integers(k) for k in (3, 3, 2, 2))
        where = "" if i < n_unknown else f"r{region}"
        rows.append(f"a{a},b{b},{where},i{income},{rng.normal():.3f}")
    path.write_text("\n".join(rows))


def test_release__leaves_out_a_partition_that_no_mapping_knows_and_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One record without its region stopped every later night, and nothing said whose it was."""
    labels = ("a", "b", "region", "income")
    kinds = IngestOptions(layout=SourceLayout(features=("x",), labels=labels), categorical=labels)
    write_table(tmp_path / "t.csv", 0, n=3000)
    ingest(str(tmp_path / "t.csv"), str(tmp_path / "training.zarr"), kinds)
    method = 'name = "privacy_mapping"\nattributes = ["a", "b"]\nprivate = ["income"]\n'
    method += 'by = "region"\ndistortion_budget = 0.9\n'
    usual = 'name = "null_space"\nutility_budget = {budget}\nridge = 0.01\n'
    text = CONFIGURATION.replace(usual, method)
    text = text.replace('desired = ["sign"]', 'confidential = ["income"]')
    path = tmp_path / "run.toml"
    path.write_text(text.format(folder=tmp_path, drift=9.0))
    options = read_options(str(path))

    def add(number: int, n_unknown: int, replacing: bool = False) -> None:
        write_table(tmp_path / "new.csv", 10 + number, n_unknown)
        place = str(tmp_path / "growing.zarr")
        source, name = str(tmp_path / "new.csv"), f"day {number}"
        append_partition(source, place, name, day(number), kinds, replacing=replacing)

    for number, n_unknown in enumerate((0, 5, 0)):
        add(number, n_unknown)
    with pytest.raises(GateError, match="partition 'day 1' is not released: 5 of 400") as found:
        release(options)
    assert found.value.code == "stratum-unknown"
    assert "--partition 'day 1' --replace" in found.value.remedy
    assert "refused  partition 'day 1'" in capsys.readouterr().err
    assert open_release(str(tmp_path / "release.zarr")).sizes["record"] == 800
    assert len(list((tmp_path / "release.zarr" / "parts").iterdir())) == 2
    add(1, 0, replacing=True)
    assert release(options) == "published"
    assert open_release(str(tmp_path / "release.zarr")).sizes["record"] == 1200
