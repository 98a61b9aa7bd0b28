"""What `check` refuses of labels, and the gate of groups that are judged together."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from privpipe.command.check_command import check_command
from privpipe.command.ingest_command import ingest_command
from privpipe.command.run_command import run_command
from privpipe.errors import GateError, InputError

# The fit says it again, of the records that it learns from.
pytestmark = pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")

CATEGORIES = ("activity", "sex", "gender", "title", "subject", "empty")

CONFIGURATION = """
[collection]
path = "{folder}/records.zarr"
desired = {desired}
confidential = {confidential}
{group}
[method]
{method}
[release]
path = "{folder}/release.zarr"
include = {include}
[audit]
holdout = 0.5
adversaries = ["least_squares", "logistic"]
[gate]
{gate}
[cluster]
workers = 0
"""


def write(
    folder: Path,
    n_subjects: int = 24,
    n_each: int = 25,
    chunk_bytes: int = 4096,
    shift: float = 0.0,
) -> None:
    """Records of people, in random order, of whose sex one feature says as much as its shift."""
    rng = np.random.default_rng(5)
    subject = np.repeat(np.arange(n_subjects), n_each)
    n = len(subject)
    sex = (rng.permutation(n_subjects) % 2)[subject]
    activity = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 4))
    x[:, 0] += 1.5 * activity
    x[:, 1] += shift * sex
    table = pd.DataFrame(x, columns=[f"f{i}" for i in range(4)])
    table["activity"] = np.array(["sit", "walk", "run"])[activity]
    table["sex"] = np.array(["f", "m"])[sex]
    table["gender"] = np.array(["w", "h"])[sex]
    table["title"] = np.where(sex == 1, "mr", np.where(rng.random(n) < 0.5, "mrs", "ms"))
    table["subject"] = [f"s{i}" for i in subject]
    table["age"] = 20.0 + subject
    table["months"] = 12 * table["age"]
    table["empty"] = None
    table = table.iloc[rng.permutation(n)].reset_index(drop=True)
    table.loc[table.index % 10 == 0, "activity"] = None
    table.loc[table.index % 15 == 1, "sex"] = None
    table.loc[table.index % 30 == 2, "age"] = np.nan
    table.to_csv(folder / "records.csv", index=False)
    ingest_command(
        str(folder / "records.csv"),
        str(folder / "records.zarr"),
        chunk_mib=chunk_bytes / 2**20,
        labels=(*CATEGORIES, "age", "months"),
        categorical=CATEGORIES,
    )


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    write(folder)
    return folder


def configure(
    folder: Path,
    method: str = 'name = "leace"',
    *,
    desired: str = '["activity"]',
    confidential: str = '["sex"]',
    include: str = "[]",
    group: str = "",
    gate: str = "enforce = false",
) -> str:
    config = folder / "run.toml"
    config.write_text(
        CONFIGURATION.format(
            folder=folder,
            method=method,
            desired=desired,
            confidential=confidential,
            include=include,
            group=group,
            gate=gate,
        )
    )
    return str(config)


@pytest.mark.parametrize(
    ("roles", "match", "way_out"),
    [
        ({"desired": '["empty"]'}, "'empty' has one and the same value, or none", "Leave it out"),
        (
            {"confidential": '["sex", "empty"]'},
            "'empty' has one and the same value, or none",
            "desired, confidential",
        ),
    ],
)
def test_check__refuses_a_variable_that_nobody_has(
    roles: dict[str, str], match: str, way_out: str, records: Path
) -> None:
    with pytest.raises(InputError, match=match) as found:
        check_command(configure(records, **roles))
    assert found.value.code == "single_class"
    assert way_out in found.value.remedy


LIMITS = "confidential_advantage_max = 0.5\nexposed_max = 0.5"


@pytest.mark.slow
def test_gate__closed_for_lack_of_groups_asks_for_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    write(tmp_path, n_subjects=120, shift=3.0)
    config = configure(
        tmp_path, group='subject = "subject"', gate=LIMITS, confidential='["gender"]'
    )
    with pytest.raises(GateError) as closed:
        run_command(config)
    sentence = closed.value.message
    assert "'gender' is unproven" in sentence
    assert re.search(r"more groups of 'subject' than \d+ or adversaries are needed", sentence)
    assert "records would" not in sentence
    assert "held-out records" not in sentence
    page = (tmp_path / "release.report" / "report.html").read_text()
    assert "more groups of" in page
    assert "held-out records instead of" not in page
