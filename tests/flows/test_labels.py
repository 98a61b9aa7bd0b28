"""What `check` and `run` say of labels: who lacks one, what becomes of it, what tells a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe.command.check_command import check_command
from privpipe.command.frontier_command import frontier_command
from privpipe.command.ingest_command import ingest_command
from privpipe.command.run_command import run_command
from privpipe.errors import GateError, InputError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages import label_check
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.label_check import count_labels
from privpipe.store.collections.ingestion.ingest import IngestOptions
from privpipe.store.sources.reading.source import SourceLayout

# The fit says it again, of the records that it learns from.
pytestmark = pytest.mark.filterwarnings("ignore::privpipe.errors.LeftOutWarning")

CATEGORIES = ("activity", "sex", "gender", "title", "subject", "empty")

CONFIGURATION = """
[collection]
path = "{folder}/records.zarr"
desired = {desired}
confidential = {confidential}
[method]
{method}
[release]
path = "{folder}/release.zarr"
include = {include}
[audit]
holdout = 0.5
{group}
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
    layout = SourceLayout(labels=(*CATEGORIES, "age", "months"), categorical=CATEGORIES)
    options = IngestOptions(layout=layout, chunk_bytes=chunk_bytes)
    ingest_command(str(folder / "records.csv"), str(folder / "records.zarr"), options, as_json=True)


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


def say(config: str, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    check_command(config, as_json=False)
    return " ".join(capsys.readouterr().out.split())


TRAINS: list[tuple[str, str]] = [
    ('name = "minimax"', "The 100 without 'activity' or 'sex' do not train."),
    (
        'name = "minimax_neural"\nn_hidden = [2]',
        "The 100 without 'activity' or 'sex' do not train.",
    ),
    ('name = "pca"\nn_filtered = 2', "The 100 without 'activity' or 'sex' do not train."),
    ('name = "leace"', "The 40 without 'sex' do not train."),
    ('name = "null_space"\nutility_budget = 0.1', "The 60 without 'activity' do not train."),
    (
        'name = "null_space_targeted"\nutility_budget = 0.1',
        "The 60 without 'activity' do not train what predicts it. "
        "The 40 without 'sex' do not train what predicts it.",
    ),
    ('name = "rand"\nn_filtered = 2', "learns from all records, whatever they lack."),
    (
        'name = "noisy"\nepsilon = 1.0\nallow_data_bound = true\n[method.filter]\nname = "minimax"',
        "The 100 without 'activity' or 'sex' do not train.",
    ),
    (
        'name = "masking"\nn_surrogates = 40',
        "The 60 without 'activity' do not train, but are summed up in the surrogates.",
    ),
    ('name = "masking"\nn_surrogates = 40\nmissing = "complete"', "learns from all records"),
]


@pytest.mark.parametrize(("method", "sentence"), TRAINS)
def test_check__says_who_lacks_a_label_and_does_not_train(
    method: str, sentence: str, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = say(configure(records, method), capsys)
    assert (
        "no value of 'activity' (desired) in 60, of 'sex' (confidential) in 40 of 600 training"
        in said
    )
    assert sentence in said
    assert ("All of these records are released." in said) == ("masking" not in method)
    assert "No adversary is judged by a record whose confidential value is missing" in said


def test_check__says_what_becomes_of_missing_attributes_and_private_values(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = (
        'name = "privacy_mapping"\nattributes = ["activity", "title"]\nprivate = ["sex"]\n'
        "distortion_budget = 0.3"
    )
    said = say(configure(records, mapping, desired="[]", confidential="[]"), capsys)
    assert "of 'activity' (attribute) in 60" in said
    assert "of 'sex' (confidential) in 40" in said
    assert "The 40 without 'sex' do not train." in said
    assert "A missing attribute is a value like others, and is released as one." in said


def test_check__says_that_all_have_their_labels(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = say(configure(records, desired='["months"]', confidential='["gender"]'), capsys)
    assert "every one of 600 training records has a value of 'months', 'gender'." in said
    told = check_command(configure(records, group='group = "age"'), as_json=True)["labels"]
    assert {one["name"]: one["n_missing"] for one in told["variables"]} == {
        "activity": 60,
        "sex": 40,
        "age": 20,
    }
    assert told["not_learned_from"] == [{"needs": ("sex",), "n_records": 40}]
    said = say(configure(records, group='group = "age"'), capsys)
    assert "of 'age' (group) in 20" in said
    assert "Records without a group count as one group." in said


def test_count_labels__of_many_chunks_says_how_many_were_read(
    records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = check_stage(read_options(configure(records, group='group = "subject"')))
    assert run.training.plan.n_chunks > 3
    whole = count_labels(run)
    assert whole.n_read == 600
    assert whole.groups is not None
    monkeypatch.setattr(label_check, "MOST_CHUNKS", 2)
    found = count_labels(run)
    assert 0 < found.n_read < 600
    assert found.groups is None
    assert f"of {found.n_read:,} of 600 training records, which were read" in found.describe()


@pytest.mark.parametrize(
    ("roles", "match", "way_out"),
    [
        ({"desired": '["empty"]'}, "'empty' has no value in any training record", "Leave it out"),
        ({"confidential": '["sex", "empty"]'}, "'empty' has no value", "desired, confidential"),
    ],
)
def test_check__refuses_a_variable_that_nobody_has(
    roles: dict[str, str], match: str, way_out: str, records: Path
) -> None:
    with pytest.raises(InputError, match=match) as found:
        check_command(configure(records, **roles), as_json=True)
    assert found.value.code == "missing_labels"
    assert way_out in found.value.remedy


def test_check__refuses_numbers_that_nobody_has_and_labels_that_nobody_has_together(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(200, 3)), columns=["a", "b", "c"])
    table["never"] = np.nan
    table["even"] = np.where(table.index % 2 == 0, rng.normal(size=200), np.nan)
    table["odd"] = np.where(table.index % 2 == 1, rng.normal(size=200), np.nan)
    table.to_csv(tmp_path / "records.csv", index=False)
    layout = SourceLayout(labels=("never", "even", "odd"), numeric=("never", "even", "odd"))
    ingest_command(
        str(tmp_path / "records.csv"),
        str(tmp_path / "records.zarr"),
        IngestOptions(layout=layout),
        as_json=True,
    )
    given: dict[str, Any] = {"desired": '["even"]', "confidential": '["odd"]'}
    with pytest.raises(InputError, match=r"None of 200 .* has 'even' and 'odd' together"):
        check_command(configure(tmp_path, 'name = "minimax"', **given), as_json=True)
    check_command(configure(tmp_path, **given), as_json=True)  # LEACE asks for one alone
    given["confidential"] = '["never"]'
    with pytest.raises(InputError, match=r"'never' \(confidential\) has no value in any of 200"):
        check_command(configure(tmp_path, **given), as_json=True)


@pytest.mark.parametrize("method", [method for method, _ in TRAINS])
def test_check__tells_a_secret_under_another_name_for_every_family(
    method: str, records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = say(configure(records, method, desired='["gender"]'), capsys)
    assert "'gender' (desired) is 'sex' (confidential) under another name: whoever" in said
    assert "no privacy is possible" in said


def test_check__tells_what_determines_a_secret(
    records: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def find(**roles: str) -> list[tuple[str, str, str, bool]]:
        told = check_command(configure(records, **roles), as_json=True)["labels"]["copies"]
        return [tuple(one.values()) for one in told]

    assert find(desired='["title"]') == [("title", "sex", "desired", False)]
    assert find(desired='["age"]', confidential='["months"]') == [
        ("age", "months", "desired", True)
    ]
    # The other way round nothing is told: a sex has two titles.
    assert find(desired='["sex"]', confidential='["title"]') == []
    assert find(desired='["sex"]') == [("sex", "sex", "desired", True)]
    assert find(include='["gender", "title", "activity"]') == [
        ("gender", "sex", "included", True),
        ("title", "sex", "included", False),
    ]
    assert find() == []
    said = say(configure(records, include='["title"]'), capsys)
    assert (
        "every value of 'title' (included) comes with one value of 'sex' (confidential): whoever "
        "gets the released 'title' gets the confidential one" in said
    )


def test_run_and_frontier__say_it_before_they_begin(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("PRIVPIPE_CACHE", str(tmp_path))
    text = Path(configure(records, desired='["gender"]')).read_text()
    config = tmp_path / "run.toml"
    config.write_text(text.replace(f"{records}/release", f"{tmp_path}/release"))
    run_command(str(config), until="train")
    run_said = capsys.readouterr().err

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("privpipe.command.frontier_command.measure_frontier", stop)
    with pytest.raises(KeyboardInterrupt):
        frontier_command(
            str(config), out=str(tmp_path / "out"), tradeoffs="10", widths="1", as_json=True
        )
    for said in (run_said, capsys.readouterr().err):
        assert "no value of 'sex' (confidential) in 40 of 600 training records" in said
        assert "'gender' (desired) is 'sex' (confidential) under another name" in said


LIMITS = "confidential_advantage_max = 0.5\nexposed_max = 0.5"


def test_gate__closed_for_lack_of_groups_asks_for_groups(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    write(tmp_path, shift=3.0)
    config = configure(tmp_path, group='group = "subject"', gate=LIMITS, confidential='["gender"]')
    forecast = say(config, capsys)
    assert "24 groups of 'subject'" in forecast
    assert "more records of the same groups do not help" in forecast
    with pytest.raises(GateError) as closed:
        run_command(config)
    said = capsys.readouterr().err
    assert "groups   24 groups of 'subject'" in said
    sentence = closed.value.message
    assert "'gender' is unproven" in sentence
    assert "held-out groups of 'subject' instead of" in sentence
    assert "held-out records instead of" not in sentence
    page = (tmp_path / "release.report" / "report.html").read_text()
    assert "held-out groups of" in page
    assert "held-out records instead of" not in page


def test_check__of_a_variable_that_names_the_group_asks_for_its_records(
    records: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """More people are more classes, of which each would have to be told apart anew."""
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    wide = LIMITS.replace("0.5", "0.9")
    given = {"group": 'group = "subject"', "gate": wide, "confidential": '["subject"]'}
    named = configure(records, **given)
    needs = check_command(named, as_json=True)["groups"]
    assert needs["gate"]["variable"] == "subject"
    assert needs["gate"]["n_held_out"] == 25 * 15  # records of those held out
    said = say(named, capsys)
    assert "'subject' says which of 24 groups of 'subject' a record is of" in said
    assert "records of the same groups would have to be held out" in said
    assert "more groups do not help. Take more stretches of time of each" in said
    assert "Take records of more groups" not in said


@pytest.mark.slow
def test_audit__of_as_many_groups_as_check_asked_for_is_not_unproven_for_lack_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_GATE__ENFORCE", "true")
    given = {"group": 'group = "subject"', "gate": LIMITS, "confidential": '["gender"]'}
    write(tmp_path)
    needed = check_command(configure(tmp_path, **given), as_json=True)["groups"]["gate"]["n_needed"]
    more = tmp_path / "more"
    more.mkdir()
    write(more, n_subjects=int(needed / 0.5), n_each=10, chunk_bytes=1 << 20, shift=3.0)
    config = configure(more, **given)
    told = check_command(config, as_json=True)["groups"]["gate"]
    assert told["reaches"] < told["limit"]
    run_command(config, until="audit")
    found = json.loads((more / "release.report" / "audit.json").read_text())["adversaries"]
    assert found["n_groups"] > 0.9 * needed
    rows = [one for one in found["table"] if one["score"] in found["options"]["decides"]]
    released = [one for one in rows if one["source"] in ("released", "everything", "groups")]
    assert released
    assert all(one["gain_upper"] <= 0.5 for one in released)
    # What needs no fit to be found is; a leak that these adversaries cannot read asks for others.
    unfitted = [one for one in found["power"] if one["leak"] in ("advantage", "certain")]
    assert all(one["finds"] for one in unfitted)
    (decided,) = found["decisions"]
    assert "the limits would decide" not in decided["reason"]
