"""What `check` and `init` say of profiles before a run: counted, and true afterwards."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from privpipe.command.check_command import check_command, name_next
from privpipe.command.init_command import init_command
from privpipe.errors import OptionError, StoreError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import forecast_run
from privpipe.sanitizers.mapping.profiles import ProfileCounts, split_counts
from privpipe.sanitizers.mapping.solving.law_fit import prepare_joint
from privpipe.store.releases.lazy_release import open_release
from tests.flows.test_methods import configure_mapping, write_profiles
from tests.standard import write_standard


def init(collection: str, out: Path, **given: object) -> dict[str, object]:
    asked = {"method": "", "desired": (), "confidential": (), "release": "", **given}
    return init_command(collection, str(out), **asked)  # type: ignore[arg-type]


@pytest.fixture
def collection(tmp_path: Path) -> str:
    url = str(tmp_path / "records.zarr")
    write_profiles(url, 300)
    return url


def test_init__refuses_a_place_before_it_reads_or_tries_anything(tmp_path: Path) -> None:
    """It was refused after minutes of trials."""
    out = tmp_path / "c.toml"
    with pytest.raises(StoreError, match="its folder is not there"):
        init("nowhere.zarr", tmp_path / "gone" / "c.toml")
    out.write_text("mine")
    with pytest.raises(StoreError, match="exists"):
        init("nowhere.zarr", out)
    assert out.read_text() == "mine"


def test_suggest__writes_beside_what_it_wrote_before(tmp_path: Path) -> None:
    """Its second answer was refused for the place of the first, after all trials."""
    config = str(tmp_path / "c.toml")
    for name in ("c.next.toml", "c.next1.toml", "c.next2.toml"):
        assert name_next(config) == str(tmp_path / name)
        (tmp_path / name).write_text("")


def test_init__what_is_hidden_among_categories_needs_nothing_filled_in(
    collection: str, tmp_path: Path
) -> None:
    answer = init(collection, tmp_path / "c.toml", confidential=("private",))
    assert answer["complete"]
    options = read_options(str(tmp_path / "c.toml"))
    assert options.method.name == "privacy_mapping"
    assert options.method.attributes == ("a0", "a1", "a2")
    assert options.method.private == ("private",)
    assert options.method.distortion_budget == 0.3
    assert options.method.unseen == "nearest"
    check_stage(options)


def test_init__says_what_is_to_be_filled_in(collection: str, tmp_path: Path) -> None:
    asked = {"desired": ("a0",), "confidential": ("private",)}
    # Of answers alone a mapping is proposed, of which nothing is left to fill in.
    assert init(collection, tmp_path / "mapping.toml", **asked)["complete"] is True
    assert 'name = "privacy_mapping"' in (tmp_path / "mapping.toml").read_text()
    answer = init(collection, tmp_path / "c.toml", method="null_space", **asked)
    assert answer["complete"] is False
    with pytest.raises(OptionError, match="still says FILL IN at utility_budget") as error:
        read_options(str(tmp_path / "c.toml"))
    assert error.value.code == "fill-in"
    assert "0.001 is a first try" in error.value.remedy
    path = tmp_path / "noisy.toml"
    path.write_text('[method]\nname = "noisy"\nepsilon = FILL IN\n')
    with pytest.raises(OptionError, match="at epsilon") as error:
        read_options(str(path))
    assert "utility_budget" not in error.value.remedy


def test_init__numbers_are_cleaned_as_before(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 200, chunk_rows=100)
    init(str(tmp_path / "records.zarr"), tmp_path / "c.toml", desired=("late",))
    assert 'name = "null_space"' in (tmp_path / "c.toml").read_text()


@pytest.mark.parametrize("chunk_rows", [100, 400])
def test_forecast_run__counts_what_the_fit_will_know(tmp_path: Path, chunk_rows: int) -> None:
    codes = write_profiles(str(tmp_path / "records.zarr"), 90, chunk_rows)
    run = check_stage(read_options(configure_mapping(tmp_path, 0.5)))
    found = forecast_run(run)
    assert found is not None
    counts = run.training.keeping(run.split, "fit").reduce(ProfileCounts.of)
    # Two fifths of all are held out for the audit and judge the mapping, and some of the others.
    fitted, _ = split_counts(counts, (0.5 - 0.4) / (1 - 0.4))
    known = {tuple(code) for code in prepare_joint(fitted, run.options.method)[1]}
    unseen = sum(tuple(code) not in known for code in codes)
    assert unseen > 0
    assert found.exact
    assert (found.n_profiles, found.n_unseen, found.n_records) == (len(known), unseen, 90)
    assert f"{unseen / 90:.1%} of all records" in found.describe()


def test_forecast_run__a_sample_is_said_to_be_one(tmp_path: Path) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 300, chunk_rows=20)
    found = forecast_run(check_stage(read_options(configure_mapping(tmp_path, 0.5))))
    assert found is not None
    assert not found.exact
    assert found.n_records == 80
    assert "at most about" in found.describe()


def test_check__tells_of_profiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_profiles(str(tmp_path / "records.zarr"), 90)
    config = configure_mapping(tmp_path, 0.5)
    answer = check_command(config)
    assert "treated as the nearest known one" in capsys.readouterr().out
    assert answer["profiles"]["n_unseen"] > 0
    text = (
        Path(config)
        .read_text()
        .replace("distortion_budget", 'unseen = "refuse"\ndistortion_budget')
    )
    Path(config).write_text(text)
    check_command(config)
    assert "will stop the run" in capsys.readouterr().out
    assert tomllib.loads(text)["method"]["unseen"] == "refuse"


@pytest.mark.slow
def test_run__by_default_counts_unseen_profiles_and_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from privpipe.flows.release_flow import run_pipeline

    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    codes = write_profiles(str(tmp_path / "records.zarr"), 150, chunk_rows=64)
    config = configure_mapping(tmp_path, 0.5)
    forecast = forecast_run(check_stage(read_options(config)))
    assert forecast is not None
    run_pipeline(config)
    release = open_release(str(tmp_path / "release.zarr"), verify=True)
    assert forecast.n_unseen > 0
    released = np.column_stack([release[f"a{j}"].values for j in range(3)])
    assert released.shape == codes.shape
    (folder,) = [path.parent for path in tmp_path.rglob("audit.json")]
    found = json.loads((folder / "audit.json").read_text())
    assert found["unseen"] == {"n_records": forecast.n_unseen, "n_released": 150}
    assert f"{forecast.n_unseen:,} of 150 released records" in (folder / "audit.md").read_text()
