"""A table as people have it, from `ingest` to `check`, by what README and messages say alone."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.attacks.adversaries import estimators
from privpipe.store.arrays.layout import read_header
from tests.commands.test_welcome import call

N_RECORDS = 6_000


def make_table(n: int = N_RECORDS) -> pd.DataFrame:
    """Dates, truth values, empty cells, texts, a key, a useless column; one in twelve is ill."""
    rng = np.random.default_rng(5)
    age = rng.normal(45, 12, n).round()
    ill = rng.random(n) < 1 / (1 + np.exp(2.7 - 0.05 * (age - 45)))
    visits = rng.poisson(np.clip(9 - 0.08 * (age - 45), 1, None))
    gone = rng.random(n) < 1 / (1 + np.exp(0.4 * (visits - 6)))
    income = np.exp(rng.normal(10, 0.5, n)).round(2)
    income[rng.random(n) < 0.04] = np.nan
    return pd.DataFrame(
        {
            "customer": rng.permutation(n) * 7 + 1_000,
            "Signed up": pd.Timestamp("2024-07-01") - pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "age": age,
            "plan": rng.choice(["basic", "plus"], n),
            "app": rng.random(n) < 0.5,
            "income": income,
            "sugar": rng.gamma(2, np.where(ill, 1, 3), n).round(2),
            "visits": visits,
            "note": np.where(rng.random(n) < 0.1, "called back", None),
            "ill": ill,
            "gone": np.where(gone, "yes", "no"),
        }
    )


@pytest.fixture(autouse=True)
def gated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate as users have it."""
    monkeypatch.delenv("PRIVPIPE_GATE__ENFORCE", raising=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "customers.csv"
    make_table().to_csv(path, index=False)
    return path


@pytest.fixture
def collection(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """A copy of what the command made, once."""
    made = source.with_name("customers.zarr")
    if not made.exists():
        given = ("--labels", "gone,ill", "--drop", "note,customer", "--one-hot", "plan")
        code, said = call(monkeypatch, capsys, "ingest", str(source), str(made), *given, *DATES)
        assert code == 0, said
    return str(shutil.copytree(made, tmp_path / "customers.zarr"))


DATES = ("--dates", "Signed up")


def test_ingest__names_all_that_is_no_number_at_once(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = call(
        monkeypatch, capsys, "ingest", str(source), str(tmp_path / "x.zarr"), "--labels", "gone,ill"
    )
    assert code == 3
    assert "holds text in plan, note" in said
    assert "neither numbers nor text: Signed up (date32[day])" in said
    assert "--dates 'Signed up'" in said


def test_ingest__a_record_key_is_no_feature_unless_it_is_named(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("--labels", "gone,ill", "--one-hot", "plan", *DATES)
    ways = {"dropped": ("--drop", "note,customer"), "kept": ("--labels", "gone,ill,customer")}
    code, said = call(
        monkeypatch, capsys, "ingest", str(source), str(tmp_path / "0"), "--drop", "note", *given
    )
    assert code == 3
    assert "error[record-key]" in said
    assert "in customer another whole number for each record" in said
    assert "1000" not in said.replace(str(source), "")  # whose folder has a number
    for name, way in ways.items():
        assert f"--{'drop' if name == 'dropped' else 'labels'} customer" in said
        more = ("--drop", "note", "--numeric", "customer") if name == "kept" else ()
        place = str(tmp_path / name)
        code, told = call(
            monkeypatch, capsys, "ingest", str(source), place, *given, *way, *more, "--json"
        )
        assert code == 0, told
        names = [one["name"] for one in json.loads(told[told.index("{") :])["variables"]]
        assert ("customer" in names) == (name == "kept")


def test_ingest__takes_a_measurement_of_different_numbers_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"time": np.arange(300) * 60, "x": rng.normal(size=300), "y": [0, 1] * 150}
    )
    frame.to_csv(tmp_path / "a.csv", index=False)
    given = ("ingest", str(tmp_path / "a.csv"), str(tmp_path / "a.zarr"), "--labels", "y")
    assert call(monkeypatch, capsys, *given)[0] == 3
    assert call(monkeypatch, capsys, *given, "--features", "time,x")[0] == 0


def ask_one_adversary(config: Path) -> None:
    """For checks whose answer does not depend on who attacks: all of them take seconds."""
    text, n_found = re.subn(
        r"(?m)^(# )?adversaries = .*", 'adversaries = ["logistic"]', config.read_text()
    )
    assert n_found == 1
    config.write_text(text)


def grow_few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees of an adversary are most of what a trial costs."""
    monkeypatch.setattr(estimators, "LEAVES", (6,))
    monkeypatch.setattr(estimators, "TREES", 20)
    monkeypatch.setattr(estimators, "IDLE_ROUNDS", 2)


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_init__of_a_table_with_gaps_and_a_rare_class_needs_nothing_filled_in(
    whole: bool,
    collection: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not whole:
        grow_few_trees(monkeypatch)
    config = str(tmp_path / "my.toml")
    code, said = call(
        monkeypatch,
        capsys,
        "init",
        collection,
        config,
        "--desired",
        "gone",
        "--confidential",
        "ill",
    )
    assert code == 0, said
    text = Path(config).read_text()
    assert not re.search("(?m)^[^#]*FILL IN", text)
    assert '\nnonfinite = "impute"' in text
    assert "WEAKER THAN THE DEFAULT, 0.1" in " ".join(text.replace("\n# ", " ").split())
    code, said = call(monkeypatch, capsys, "check", config)
    assert code == 0, said
    assert "hardly open" not in said
    # The three that a limit lies between: what reveals nothing, the target itself, and all.
    assert all(view in said for view in (" noise ", " target ", " raw "))


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_check__counts_a_rare_class_by_its_own_records(
    whole: bool,
    collection: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Limits that classes of one size would show are not shown of one in twelve."""
    if not whole:
        grow_few_trees(monkeypatch)
    config = tmp_path / "my.toml"
    given = ("--desired", "gone", "--confidential", "ill", "--method", "null_space")
    call(monkeypatch, capsys, "init", collection, str(config), *given)
    if not whole:
        ask_one_adversary(config)
    code, said = call(monkeypatch, capsys, "check", str(config), "--json")
    assert code == 0, said
    needs = json.loads(said)["gate"]
    assert needs["limit"] >= needs["reaches"]
    text = re.sub(
        r"(?m)^exposed_max = .*", f"exposed_max = {0.8 * needs['reaches']:.3f}", config.read_text()
    )
    config.write_text(text)
    code, said = call(monkeypatch, capsys, "check", str(config))
    assert code == 0, said
    assert "The gate will hardly open" in said
    assert re.search(r"So many records can show: .*\[gate\] exposed_max = ", said)


@pytest.mark.parametrize(
    ("change", "code", "way"),
    [
        (('nonfinite = "impute"', ""), "nonfinite", '[release] nonfinite = "impute"'),
        (("ridge = 1e-06", ""), "rank", "[method] ridge = 1e-6"),
    ],
)
def test_run__what_a_few_chunks_tell_ends_it_before_prefect_starts(
    collection: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    change: tuple[str, str],
    code: str,
    way: str,
) -> None:
    config = tmp_path / "my.toml"
    given = ("--desired", "gone", "--confidential", "ill", "--method", "null_space")
    call(monkeypatch, capsys, "init", collection, str(config), *given)
    assert change[0] in config.read_text()
    config.write_text(config.read_text().replace(*change))
    monkeypatch.setattr(
        "privpipe.command.run_command.ephemeral_server", lambda: pytest.fail("Prefect was started")
    )
    left, said = call(monkeypatch, capsys, "run", str(config))
    assert left == 3
    assert f"error[{code}]" in said
    assert way in said


def test_init__writes_a_ridge_where_only_some_chunks_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns of 0 and 1 of one column depend on one another in every chunk."""
    grow_few_trees(monkeypatch)
    make_table(3_000).to_csv(tmp_path / "a.csv", index=False)
    given = ("--labels", "gone,ill", "--drop", "note,customer,income", "--one-hot", "plan", *DATES)
    place, config = str(tmp_path / "a.zarr"), tmp_path / "my.toml"
    code, said = call(
        monkeypatch, capsys, "ingest", str(tmp_path / "a.csv"), place, *given, "--chunk-mib", "0.02"
    )
    assert code == 0, said
    assert "9 chunks" in said
    asked = ("--desired", "gone", "--confidential", "ill", "--method", "null_space")
    call(monkeypatch, capsys, "init", place, str(config), *asked)
    assert "\nridge = 1e-06\n" in config.read_text()
    config.write_text(config.read_text().replace("\nridge = 1e-06\n", "\n"))
    ask_one_adversary(config)
    code, said = call(monkeypatch, capsys, "check", str(config))
    assert code == 0, said
    assert "The fit will probably refuse the features" in said
    assert "plan=basic, plan=plus" in said


def test_ingest__stores_the_roles_that_the_command_line_gave(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """By which the next file is read: its columns become what those of this one became."""
    url = str(tmp_path / "customers.zarr")
    call(monkeypatch, capsys, "ingest", str(source), url)
    given = ("--labels", "gone,ill,visits", "--numeric", "visits", "--drop", "note,customer")
    code, said = call(monkeypatch, capsys, "ingest", str(source), url, *given)
    assert code == 0, said
    table = read_header(url, "collection")["table"]["column"]
    assert {table[name]["use"] for name in ("gone", "ill", "visits")} == {"variable"}
    assert {table[name]["use"] for name in ("note", "customer")} == {"drop"}


def test_init__suggests_a_budget_where_a_release_is_already(
    collection: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "customers.release.zarr").mkdir()
    (tmp_path / "customers.release.zarr" / "zarr.json").write_text("{}")
    given = ("--desired", "gone", "--confidential", "ill", "--method", "null_space")
    code, said = call(monkeypatch, capsys, "init", collection, str(tmp_path / "my.toml"), *given)
    assert code == 0, said
    assert re.search(r"(?m)^utility_budget = 0\.\d+$", (tmp_path / "my.toml").read_text())
