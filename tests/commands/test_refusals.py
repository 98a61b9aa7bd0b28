"""Options are read in one way from every door, and `check` refuses what cannot run."""

from __future__ import annotations

import numpy as np
import pytest
from pydantic import ValidationError

from privpipe import AttackOptions, Records, fit_null_space_cleaner, fit_targeted_cleaner
from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.null_space.algorithms import NullSpaceOptions
from privpipe.sanitizers.options import make_options
from privpipe.sklearn import RecordSanitizer
from tests.store.releases.test_export import make_release

X = np.random.default_rng(1).normal(size=(50, 3))


@pytest.mark.parametrize("centre", ["false", "true", "no", 0, 1, 1.0])
def test_flags__are_flags_from_every_door(command, configure, monkeypatch, centre):
    records = Records(X, desired=X[:, 0], confidential=X[:, 1])
    for fit in (fit_null_space_cleaner, fit_targeted_cleaner):
        with pytest.raises(OptionError, match=r"centre .*true or false"):
            fit(records, utility_budget=0.1, centre=centre)
    with pytest.raises(ValidationError, match="true or false"):
        NullSpaceOptions(name="null_space", utility_budget=0.1, centre=centre)
    with pytest.raises(OptionError, match=r"centre .*true or false"):
        make_options(METHODS["pca"].options, {"name": "pca", "n_filtered": 1, "centre": centre}, "")
    with pytest.raises(OptionError, match=r"centre .*true or false"):
        RecordSanitizer(options={"utility_budget": 0.1, "centre": centre}).fit(X, X[:, 0])
    text = f'"{centre}"' if isinstance(centre, str) else centre
    code, _, err = command("check", configure(method=f"centre = {text}"))
    assert code == 2
    assert "run.toml:8:1: [method] centre: give true or false" in err


@pytest.mark.parametrize("centre", [False, np.bool_(False)])
def test_flags__that_are_flags_are_obeyed(centre):
    cleaner = fit_null_space_cleaner(
        Records(X + 5, desired=X[:, 0]), utility_budget=0.1, centre=centre
    )
    assert not cleaner.centre.any()


@pytest.mark.parametrize("value", ["0.5", True, np.bool_(True)])
def test_numbers__are_numbers(value):
    with pytest.raises(OptionError, match=r"utility_budget.* a number"):
        RecordSanitizer(options={"utility_budget": value}).fit(X, X[:, 0])
    with pytest.raises(ValidationError, match="give a number"):
        AttackOptions(level=value)


@pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
def test_options__of_every_method_refuse_texts_for_numbers_and_flags(method):
    known = method.options.__pydantic_fields__
    plain = [n for n, f in known.items() if f.annotation in (bool, int, float, bool | None)]
    assert plain or method.name == "leace"
    for name in plain:
        with pytest.raises(OptionError, match=name):
            make_options(method.options, {"name": method.name, name: "1"}, method.name)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("PRIVPIPE_METHOD__UTILITY_BUDGET", "lots", "give a number"),
        ("PRIVPIPE_METHOD__UTILITY_BUDGET", "-1", "greater than or equal to 0"),
        ("PRIVPIPE_METHOD__CENTRE", "perhaps", "give true or false"),
        ("PRIVPIPE_METHOD__BUDGTE", "1", "is not known, did you mean 'budget'"),
        ("PRIVPIPE_CLUSTER__WORKERS", "-1", "greater than or equal to 0"),
        ("PRIVPIPE_RELEASE__LAYOUT", "flat", "'dense' or 'factored'"),
    ],
)
def test_environment__is_blamed_for_what_it_sets(
    command, configure, monkeypatch, name, value, expected
):
    config = configure()
    monkeypatch.setenv(name, value)
    code, _, err = command("check", config)
    assert code == 2
    assert f"The environment variable {name}: [" in err
    assert expected in err
    assert "run.toml" not in err


def test_environment__is_written_as_in_toml(configure, monkeypatch):
    for name, value in {
        "METHOD__UTILITY_BUDGET": "0.5",
        "METHOD__CENTRE": "false",
        "COLLECTION__DESIRED": '["town"]',
        "COLLECTION__CONFIDENTIAL": "y",
        "RELEASE__PATH": "2020",
        "RELEASE__PARTITIONS": "true",
        "RELEASE__LAYOUT": "factored",
        "PAPER_DATA": "/x",
        "OTHER__THING": "1",
    }.items():
        monkeypatch.setenv(f"PRIVPIPE_{name}", value)
    options = read_options(str(configure()))
    assert (options.method.utility_budget, options.method.centre) == (0.5, False)
    assert options.collection.desired == ("town",)
    assert options.collection.confidential == ("y",)
    assert (options.release.path, options.release.partitions) == ("2020", True)
    assert options.release.layout == "factored"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('memory_limit = "1KiB"', "memory_limit"),
        ('memory_limit = "lots"', "memory_limit"),
        ('memory_limit = "-4GiB"', "memory_limit"),
        ('memory_limit = "0"', "memory_limit"),
        ('dashboard = "junk"', "dashboard"),
        ('dashboard = "127.0.0.1:seven"', "dashboard"),
        ('dashboard = "127.0.0.1:70000"', "dashboard"),
        ('dashboard = ""', "dashboard"),
        ("workers = true", "workers"),
    ],
)
def test_check__refuses_a_cluster_that_cannot_start(command, configure, line, key):
    code, _, err = command("check", configure(cluster=line))
    assert code == 2
    assert f"[cluster] {key}" in err


@pytest.mark.parametrize("line", ['memory_limit = "4GiB"', 'dashboard = "127.0.0.1:0"'])
def test_check__takes_what_a_cluster_takes(command, configure, line):
    assert command("check", configure(cluster=line))[0] == 0


def test_check__refuses_a_foreign_thing_where_output_goes(tmp_path, command, configure):
    config = configure()
    (tmp_path / "o.model.zarr").write_text("somebody's")
    code, _, err = command("check", config)
    assert (code, "o.model.zarr, where the model would go" in err) == (4, True)
    (tmp_path / "o.model.zarr").unlink()
    (tmp_path / "o.zarr").write_text("somebody's")
    assert command("check", config)[0] == 4
    (tmp_path / "o.zarr").unlink()
    assert command("check", config)[0] == 0
    config.write_text(config.read_text().replace("/o.zarr", "/s.npz/o.zarr"))
    code, _, err = command("check", config)
    assert (code, "is no folder" in err) == (4, True)
    config.write_text(config.read_text().replace("/s.npz/o.zarr", f"/{'o' * 245}.zarr"))
    assert command("check", config)[0] == 2


def test_check__refuses_variables_and_features_that_do_not_vary(tmp_path, command, configure):
    config = configure()
    arrays = {"X": np.c_[X, np.ones(50)], "y": X[:, 0], "same": np.full(50, 7.0)}
    np.savez(tmp_path / "k.npz", **arrays, town=np.zeros(50, bool))
    assert command("ingest", tmp_path / "k.npz", tmp_path / "k.zarr")[0] == 0
    text = config.read_text().replace("/r.zarr", "/k.zarr")
    config.write_text(text.replace('confidential = ["town"]', ""))
    code, _, err = command("check", config)
    assert (code, "error[rank]" in err) == (3, True)
    config.write_text(text.replace('confidential = ["town"]', "") + "\n")
    for name in ("town", "same"):
        config.write_text(text.replace('["town"]', f'["{name}"]'))
        code, _, err = command("check", config)
        assert (code, f"{name!r} has one and the same value" in err) == (3, True)
        assert "7.0" not in err


def test_status__knows_releases_alone(tmp_path, command, configure):
    configure()
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    for name, kind in (("file", ""), ("folder", ""), ("r.zarr", "not a privpipe release")):
        code, out, err = command("status", tmp_path / name)
        assert (code, kind in err) == (4, True)
        assert "published" not in out
    code, out, _ = command("status", tmp_path / "nothing.zarr")
    assert (code, "nothing here" in out) == (0, True)
    make_release(tmp_path / "release.zarr")
    assert "published" in command("status", tmp_path / "release.zarr")[1]


def test_refusals__name_what_there_is_and_whoever_has_another(tmp_path, command):
    """A release was to be ingested: as a run's collection, and with a damaged root document."""
    place, _ = make_release(tmp_path / "release.zarr")
    config = tmp_path / "run.toml"
    config.write_text(
        f"[collection]\npath = {str(place)!r}\n[method]\nname = 'rand'\nn_filtered = 1\n"
        f"[release]\npath = {str(tmp_path / 'other.zarr')!r}\n"
    )
    _, _, err = command("check", config)
    assert "not a privpipe collection but release" in err
    assert "Check the path." in err
    root = tmp_path / "release.zarr" / "zarr.json"
    root.write_text(root.read_text()[:50])
    _, _, err = command("inspect", place)
    assert "zarr.json is damaged" in err
    assert "another copy" in err


def test_diff__is_of_two_runs_and_says_where_columns_are_compared(tmp_path, command):
    place, _ = make_release(tmp_path / "release.zarr")
    code, out, err = command("diff", place, place)
    assert (code, out) == (2, "")
    assert "is no run's name: eight hexadecimal digits." in err
    assert "Its report says how far columns moved." in err


def test_demo__refuses_fewer_than_no_workers_before_it_writes(tmp_path, command):
    code, _, err = command("demo", "--workers", "-1", "--out", tmp_path / "demo")
    assert (code, "--workers" in err) == (2, True)
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize("name", ["minimax", "minimax_neural", "minimax_least_squares"])
def test_check__refuses_filters_that_keep_and_hide_one_variable(command, configure, name):
    """`check` found everything in order, and the fit warned after a pass."""
    path = configure()
    given = path.read_text().replace('["y"]', '["town"]')
    path.write_text(given.replace('name = "null_space"\nutility_budget = 0.1', f'name = "{name}"'))
    code, _, err = command("check", path)
    assert code == 2
    assert "'town' is desired and confidential" in err
    assert "Leave it out of desired or of confidential." in err
