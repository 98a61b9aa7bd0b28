"""Parts of a line are named alike, however the tables of their partitions are numbered."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import privpipe
from privpipe.errors import InputError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.sources.reading.source import SourceLayout
from tests.operations.increments import CONFIGURATION, day, release

COLUMNS = SourceLayout(labels=("sign", "club"))


def write_table(path: Path, clubs: tuple[str, ...], order: tuple[str, ...], n: int = 60) -> None:
    """Records of three features; a club's members are told by the first."""
    rng = np.random.default_rng(n)
    place = rng.integers(0, len(clubs), n)
    values = dict(zip("abc", (rng.normal(size=(3, n)) + place).round(4), strict=True))
    sign = np.where(values["a"] > 1, "plus", "minus")
    table = {**values, "sign": sign, "club": np.array(clubs)[place]}
    names = (*order, "sign", "club")
    lines = [",".join(str(table[name][i]) for name in names) for i in range(n)]
    path.write_text("\n".join([",".join(names), *lines]) + "\n")


def test_line__parts_are_matched_to_the_training_records_by_name(tmp_path: Path) -> None:
    training, source = tmp_path / "training.csv", tmp_path / "part.csv"
    write_table(training, ("ace", "bee", "cat"), ("a", "b", "c"), 200)
    ingest(str(training), str(tmp_path / "training.zarr"), IngestOptions(layout=COLUMNS))
    path = tmp_path / "run.toml"
    content = CONFIGURATION.format(folder=tmp_path, budget=0.05, drift=9.0)
    path.write_text(content.replace("incremental", 'include = ["club"]\nincremental'))
    options, growing = read_options(str(path)), str(tmp_path / "growing.zarr")
    write_table(source, ("bee", "cat"), ("c", "a", "b"))
    append_partition(str(source), growing, "monday", day(1), IngestOptions(layout=COLUMNS))
    assert release(options) == "published"
    dataset = privpipe.open_release(options.release.path, verify=True)
    assert dataset.club.attrs["categories"] == ["ace", "bee", "cat"]
    names = [line.rsplit(",", 1)[1] for line in source.read_text().split()[1:]]
    assert np.array(dataset.club.attrs["categories"])[dataset.club.to_numpy()].tolist() == names
    raw = np.loadtxt(source, delimiter=",", skiprows=1, usecols=(1, 2, 0))
    apart = np.abs(dataset.features.to_numpy() - raw).mean(axis=0)
    assert (apart < np.abs(raw - raw[:, ::-1]).mean(axis=0).max()).all()
    fitted = privpipe.open_model(next(tmp_path.glob("release.*.model.zarr")))
    np.testing.assert_allclose(fitted.apply(raw), dataset.features.to_numpy(), rtol=1e-9)


def test_line__a_partition_with_other_categories_is_refused(tmp_path: Path) -> None:
    training, source = tmp_path / "training.csv", tmp_path / "part.csv"
    write_table(training, ("ace", "bee"), ("a", "b", "c"), 200)
    ingest(str(training), str(tmp_path / "training.zarr"), IngestOptions(layout=COLUMNS))
    path = tmp_path / "run.toml"
    content = CONFIGURATION.format(folder=tmp_path, budget=0.05, drift=9.0)
    path.write_text(content.replace("incremental", 'include = ["club"]\nincremental'))
    write_table(source, ("ace", "club-of-Jane"), ("a", "b", "c"))
    growing = str(tmp_path / "growing.zarr")
    append_partition(str(source), growing, "monday", day(1), IngestOptions(layout=COLUMNS))
    with pytest.raises(InputError, match="'club'") as error:
        release(read_options(str(path)))
    assert error.value.code == "schema-drift"
    assert "Jane" not in str(error.value)
