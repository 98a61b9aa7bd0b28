"""Groups that ``[about]`` names: twenty exposed people close the gate, and no one is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.command.check_command import check_command
from privpipe.command.ingest_command import ingest_command
from privpipe.command.run_command import run_command
from privpipe.errors import GateError, InputError, OptionError

CONFIGURATION = """
[collection]
path = "{folder}/records.zarr"
desired = ["target"]
confidential = ["sex"]
[method]
name = "leace"
[release]
path = "{folder}/release.zarr"
[audit]
holdout = 0.5
adversaries = ["logistic", "boosting"]
[gate]
confidential_advantage_max = 0.3
exposed_max = 0.3
must_find = 0.5
[cluster]
workers = 0
[about]
groups = "{groups}"
"""


def write(folder: Path, groups: str, *, exposed: bool = True) -> str:
    """Records of five regions; of one, of 20 people, a feature is the sex."""
    random = np.random.default_rng(3)
    n = 5000
    region = np.array(["north", "south", "east", "west"])[random.integers(0, 4, n)]
    region[random.choice(n, 20, replace=False)] = "isle"
    sex, x = random.integers(0, 2, n), random.normal(size=(n, 6))
    target = np.where(x[:, 0] + random.normal(size=n) / 2 > 0, "yes", "no")
    x[:, 1] += sex
    if exposed:
        x[region == "isle", 5] = 3.0 * sex[region == "isle"] - 1.5
    table = pd.DataFrame(x, columns=[f"f{j}" for j in range(6)])
    labels = {"target": target, "sex": np.array(["f", "m"])[sex], "region": region}
    table.assign(**labels).to_csv(folder / "records.csv", index=False)
    ingest_command(str(folder / "records.csv"), str(folder / "records.zarr"), labels=tuple(labels))
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(folder=folder, groups=groups))
    return str(config)


@pytest.mark.slow
def test_run__twenty_exposed_of_a_named_group_close_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    config = write(tmp_path, "region")
    with pytest.raises(GateError) as closed:
        run_command(config)
    assert closed.value.code == "group"
    assert "In one of 7 groups" in closed.value.message
    assert "isle" not in f"{closed.value.message} {closed.value.remedy}"
    report = tmp_path / "release.report"
    for name, names in {"public.html": False, "officer.html": True, "report.html": True}.items():
        assert ("isle" in (report / name).read_text()) == names, name
    found = json.loads((report / "audit.json").read_text())["groups"]
    worst = found["rows"][0]
    assert (worst["of"], worst["group"], worst["n_records"]) == ("region", "isle", 20)
    assert [one["group"] for one in found["rows"] if one["verdict"] == "leaks"] == ["isle"]
    assert {"north", "east"} <= {one["group"] for one in found["utility"]}


@pytest.mark.slow
def test_run__groups_of_which_nothing_is_revealed_let_it_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    run_command(write(tmp_path, "region", exposed=False))
    found = json.loads((tmp_path / "release.report" / "audit.json").read_text())
    assert found["gate"]["state"] == "passed"
    assert len(found["groups"]["rows"]) >= 6


@pytest.mark.parametrize(
    ("groups", "error", "said"),
    [("regoin", InputError, "no variable 'regoin'"), ("age", OptionError, "makes 0 groups")],
)
def test_check__refuses_groups_that_are_none(
    groups: str, error: type[Exception], said: str, tmp_path: Path
) -> None:
    table = pd.DataFrame({"f": np.arange(40.0), "g": np.arange(40.0) ** 2})
    table = table.assign(sex=["f", "m"] * 20, target=["no", "no", "yes", "yes"] * 10, age=table.f)
    table.to_csv(tmp_path / "r.csv", index=False)
    labels = ("sex", "target", "age")
    ingest_command(str(tmp_path / "r.csv"), str(tmp_path / "records.zarr"), labels=labels)
    config = tmp_path / "run.toml"
    config.write_text(CONFIGURATION.format(folder=tmp_path, groups=groups))
    with pytest.raises(error, match=said):
        check_command(str(config))
