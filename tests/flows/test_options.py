"""The configuration: stable keys, clear errors with places, overrides, no values echoed."""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.sanitizers import METHODS

GOOD = """\
[collection]
path = "records.zarr"
desired = ["beach"]
confidential = ["urban", "mountain"]
[training]
path = "training.zarr"
[method]
name = "null_space"
utility_budget = 0.01
[release]
path = "release.zarr"
include = []
[cluster]
workers = 2
[audit]
holdout = 0.1
"""


def read(tmp_path: Path, text: str) -> RunOptions:
    path = tmp_path / "run.toml"
    path.write_text(text)
    return read_options(str(path))


def test_read_options__takes_the_stable_keys(tmp_path: Path) -> None:
    options = read(tmp_path, GOOD)
    assert options.collection.confidential == ("urban", "mountain")
    assert options.training_path == "training.zarr"
    assert options.method.utility_budget == 0.01
    assert options.audit.holdout == 0.1


def test_read_options__names_line_and_closest_key(tmp_path: Path) -> None:
    text = GOOD.replace("utility_budget", "utility_bugdet").replace("workers", "wokers")
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert "run.toml:9:1: [method] utility_bugdet is not known, did you mean 'utility_budget'?" in (
        message
    )
    assert "run.toml:14:1: [cluster] wokers is not known, did you mean 'workers'?" in message
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("utility_budget = 0.01", "utility_budget = -123.5", "greater than or equal to 0"),
        ("utility_budget = 0.01", "utility_budget = nan", "finite"),
        ("utility_budget = 0.01", "", "utility_budget is missing"),
        ('name = "null_space"', 'name = "nul_space"', "null_space"),
        ("holdout = 0.1", "holdout = 123.5", "less than 1"),
        ("workers = 2", "workers = 2\n[colection]\nx = 1", "did you mean 'collection'"),
        ("workers = 2", "workers = 10000000000", "less than or equal to 100000"),
        ('"release.zarr"', '"o{logical_tme}.zarr"', "only braces may be {logical_time}"),
        ("[method]", "[method", "not valid TOML"),
    ],
)
def test_read_options__explains_without_echoing_values(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    with pytest.raises(OptionError) as caught:
        read(tmp_path, GOOD.replace(old, new))
    assert expected in str(caught.value)
    assert "123.5" not in str(caught.value)


def test_read_options__names_the_filters_that_noise_takes(tmp_path: Path) -> None:
    text = GOOD.replace('"null_space"\nutility_budget = 0.01', '"noisy"\nepsilon = 4.0')
    with pytest.raises(OptionError) as caught:
        read(tmp_path, text.replace("[release]", '[method.filter]\nname = "pac"\n[release]'))
    named = str(caught.value).split("use one of: ")[1].split(".")[0].split(", ")
    assert set(METHODS) - set(named) == {"privacy_mapping", "masking", "masking_private", "noisy"}


def test_read_options__lets_the_environment_override(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_METHOD__UTILITY_BUDGET", "0.5")
    monkeypatch.setenv("PRIVPIPE_RELEASE__PATH", "elsewhere.zarr")
    options = read(tmp_path, GOOD)
    assert options.method.utility_budget == 0.5
    assert options.release.path == "elsewhere.zarr"


def test_read_options__names_a_missing_file() -> None:
    with pytest.raises(OptionError, match=r"no_such\.toml cannot be read"):
        read_options("no_such.toml")


def test_digest_options__ignores_the_cluster_and_how_a_release_is_judged(tmp_path: Path) -> None:
    """But not which records the fit does not see."""
    digest = read(tmp_path, GOOD).digest()
    judged = GOOD + "level = 0.9\n[gate]\nexposed_max = 0.5\n"
    assert digest == read(tmp_path, judged).digest()
    assert digest != read(tmp_path, GOOD.replace("holdout = 0.1", "holdout = 0.2")).digest()
    assert digest == read(tmp_path, GOOD.replace("workers = 2", "workers = 7")).digest()
    assert digest != read(tmp_path, GOOD.replace("0.01", "0.02")).digest()


@pytest.mark.parametrize("old", ['[audit]\ngroup = "p"\n', '[privacy]\nsubject = "p"\n'])
def test_read_options__says_what_became_of_the_subject_of_an_older_file(
    tmp_path: Path, old: str
) -> None:
    base = GOOD.replace("[audit]\n", old if "audit" in old else f"{old}[audit]\n")
    with pytest.raises(OptionError, match=r"no option any more: \[collection\] subject names"):
        read(tmp_path, base)
    # A run that an older version began is resumed: the digest that it had.
    options = read(tmp_path, GOOD.replace("desired", 'subject = "p"\ndesired'))
    assert options.digest()[:16] == "4c9ac8ed4afc4afa"


def test_read_options__refuses_two_subjects_that_differ(tmp_path: Path) -> None:
    text = GOOD.replace("[audit]\n", '[privacy]\nsubject = "p"\n[audit]\ngroup = "household"\n')
    with pytest.raises(OptionError, match=r"(?s)16:1: subject is no.*the larger unit.*18:1: group"):
        read(tmp_path, text)
