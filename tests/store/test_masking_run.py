"""Surrogates from an ingested table to a published release: bytes, keys, crashes, refusals."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe.flows.release_flow
import privpipe.pipeline.stages.clean
import privpipe.pipeline.stages.publish
import privpipe.store.keyring.keys
from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.threats.verdicts.detectable_effect import plan_guess_limit
from privpipe.command.init_command import init_command
from privpipe.errors import GateError, OptionError, PrivpipeError, StoreError
from privpipe.numerics.random.streams import KEY_BYTES
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import GateForecast, GateNeeds
from privpipe.store.access.workspace import has_workspace
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.keyring.keys import find_keys, list_keys
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.flows.canaries import Canaries, search_tree
from tests.store.serial_run import read_tree, run_serially, serial_flows
from tests.store.test_crash_points import CrashingStorage, KilledError

N = 700


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV with four features, a response, a class to keep and one to hide."""
    random = np.random.default_rng(5)
    x = random.normal(size=(N, 4)) * [1, 10, 1, 0.1]
    score = x @ [1.0, 0.2, 0.0, 3.0] + 0.2 * random.normal(size=N)
    kept, hidden = score > 0.3, x[:, 0] + x[:, 2] > 0
    lines = ["a,b,c,d,score,kept,hidden"] + [
        ",".join(f"{value:.17g}" for value in row) + f",{s:.17g},{'yes' if k else 'no'},"
        f"{'ill' if h else 'well'}"
        for row, s, k, h in zip(x, score, kept, hidden, strict=True)
    ]
    path = tmp_path_factory.mktemp("table") / "records.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def source(table: Path) -> Path:
    return ingest_table(table, 64)


def ingest_table(table: Path, chunk_rows: int) -> Path:
    place = table.with_name(f"records{chunk_rows}.zarr")
    names = ("score", "kept", "hidden")
    options = IngestOptions(layout=SourceLayout(labels=names), chunk_bytes=chunk_rows * 4 * 8)
    ingest(str(table), str(place), options)
    return place


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    return tmp_path / "keys"


def make_options(source: Path, folder: Path, **more: Any) -> RunOptions:
    method = {"name": "masking", "n_surrogates": 150} | more.pop("method", {})
    release = {"path": str(folder / "release.zarr")} | more.pop("release", {})
    return RunOptions(
        collection={"path": str(source)}
        | more.pop("collection", {"desired": ["score", "kept"], "confidential": ["hidden"]}),
        method=method,
        release=release,
        audit={"holdout": more.pop("holdout", 0.3)}
        | more.pop("audit", {"adversaries": ["least_squares"]}),
        gate=more.pop("gate", {"enforce": False}),  # 700 records are too few to prove anything
        **more,
    )


def run(source: Path, folder: Path, **more: Any) -> Path:
    with serial_flows():
        run_serially(make_options(source, folder, **more))
    return folder / "release.zarr"


def read_chunks(release: Path) -> dict[str, bytes]:
    found = read_tree(release)
    return {
        name: content for name, content in found.items() if "/c/" in name and "receipts" not in name
    }


@pytest.fixture(scope="module")
def released(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run and its keys; not to be changed."""
    folder = tmp_path_factory.mktemp("released")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVPIPE_KEYS", str(folder / "keys"))
        run(source, folder)
    return folder


def test_run__releases_surrogates_that_keep_the_model(released: Path, tmp_path: Path) -> None:
    release = released / "release.zarr"
    found = open_release(str(release), verify=True)
    header = found.attrs["privpipe"]
    assert header["n_records"] == 150
    assert header["partitions"] == []
    assert header["feature_names"] == ["a", "b", "c", "d", "bias"]
    assert header["guarantee"]["kind"] == "none"
    assert "second moments" in header["guarantee"]["assumptions"].lower()
    features = found["features"].to_numpy()
    model = np.linalg.lstsq(features, found["score"].to_numpy(), rcond=None)[0]
    np.testing.assert_allclose(model[[0, 1, 3]], [1.0, 0.2, 3.0], atol=0.15)
    assert set(found.data_vars) == {"features", "score", "kept"}
    report = (released / "release.report" / "audit.md").read_text()
    assert "not protected" in report
    assert "Coefficients" not in report  # on request only
    out = tmp_path / "release.parquet"
    assert export_release(str(release), str(out)) == 150


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough records for a gate with wide limits; `hidden` is whether the answer exceeds the model.

    Nobody who knows features and answer can tell that without the model that is released.
    """
    random = np.random.default_rng(6)
    x = random.normal(size=(9000, 4))
    excess = 0.2 * random.normal(size=9000)
    score = x @ [1.0, 0.5, 0.0, 2.0] + excess
    hidden = excess > 0
    apart = random.random(9000) < 0.5
    lines = ["a,b,c,d,score,hidden,apart"] + [
        ",".join(f"{value:.17g}" for value in (*row, s)) + f",h{int(h)},p{int(p)}"
        for row, s, h, p in zip(x, score, hidden, apart, strict=True)
    ]
    path = tmp_path_factory.mktemp("many") / "records.csv"
    path.write_text("\n".join(lines) + "\n")
    place = path.with_name("records.zarr")
    layout = SourceLayout(labels=("score", "hidden", "apart"))
    ingest(str(path), str(place), IngestOptions(layout=layout))
    return place


def gate(hidden: str | None, **limits: Any) -> dict[str, Any]:
    named = {"confidential": [hidden]} if hidden else {}
    return {
        "collection": {"desired": ["score"], **named},
        "gate": {
            "confidential_advantage_max": 0.2,
            "exposed_max": 0.15,
            "must_find": 0.9,
            "single_records": "unprotected",
            **limits,
        },
        "audit": {
            "holdout": 0.4,
            # Trees see a planted leak in the size of a feature whatever its sign (some ten standard
            # errors above nothing); weights alone see it by luck, in four audits of five.
            "adversaries": ["logistic", "boosting"],
            # Drawn apart from the records, which tell nothing of it.
            "uninformative": ["apart"] if hidden == "apart" else [],
        },
    }


@pytest.mark.parametrize("hidden", [None, pytest.param("apart", marks=pytest.mark.slow)])
def test_run__publishes_by_itself_where_every_attack_fails(
    many: Path, tmp_path: Path, hidden: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One key, not a new one: of a hundred, two give signs by which an attack on few features meets
    # a record, or an independent variable, by the chance that its intervals allow.
    monkeypatch.setattr(privpipe.store.keyring.keys.secrets, "token_bytes", bytes)
    release = run(many, tmp_path, **gate(hidden))
    check_release(str(release), verify=True)
    findings = json.loads((tmp_path / "release.report" / "audit.json").read_text())
    assert findings["gate"]["state"] == "passed"
    assert findings["adversaries"]["verdict"] == "not protected"
    decided = {one["target"]: one["verdict"] for one in findings["adversaries"]["decisions"]}
    named = {} if hidden is None else {hidden: "safe"}
    assert decided == {"single records": "not protected"} | named
    rebuilt = findings["surrogate"]["attacks"]["all_but_one"]
    assert rebuilt["recovered"]["estimate"] == 1
    assert rebuilt["n_attacked"] == 2000
    assert findings["surrogate"]["attacks"]["with_and_without"]["recovered"]["estimate"] > 0.5
    assert "single_records unprotected (usually protected)" in findings["gate"]["weaker"]
    planned = {one.variable: one for one in plan(many, tmp_path, **gate(hidden))}
    for one in findings["adversaries"]["decisions"]:  # as many intervals as the check reckons with
        if one["target"] in planned:
            assert planned[one["target"]].n_intervals == one["n_compared"]
    assert hidden is None or hidden in planned
    closed = {"all_but_one", "with_and_without"}
    assert set(findings["surrogate"]["controls"]) == set(findings["surrogate"]["attacks"]) - closed
    page, public = (
        (tmp_path / "release.report" / name).read_text() for name in ("report.html", "public.html")
    )
    for said in (
        "single records: the coefficients are exact",
        "second moments of the records",
        "What is not protected",
        "differential privacy",
        "single_records unprotected (usually protected)",
    ):
        assert said in page
        assert said in public
    report = (tmp_path / "release.report" / "audit.md").read_text()
    for text in (page, public, report):  # safe, but not of what nobody named
        assert ("no variable is named as confidential" in text) == (hidden is None)
    for said in ("What the surrogates keep", "eta =", "on an unsafe control"):
        assert said in page
        assert said not in public


def plan(source: Path, folder: Path, **given: Any) -> list[GateNeeds]:
    checked = check_stage(make_options(source, folder, **given))
    return GateForecast(checked.options, checked.training).plan_limits()


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (gate("hidden"), GateError, "'hidden' leaks: .* the target"),
        # So few records that the limit on recovered ones cannot be shown: said before any work.
        (gate(None, exposed_max=0.0001), OptionError, "no number of different held-out records"),
        (gate(None, single_records="protected"), OptionError, "single records are not protected"),
        (gate("apart", single_records="protected"), OptionError, "solves for the one that is left"),
        (gate(None, confidential_advantage_max=0.06), OptionError, "about .* second moments"),
        (gate(None) | {"audit": {"holdout": 0.0}}, OptionError, "no record is known to be in no"),
    ],
)
def test_run__publishes_nothing_where_one_does_not(
    many: Path, tmp_path: Path, given: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        run(many, tmp_path, **given)
    assert not (tmp_path / "release.zarr").exists()


def test_check__single_records_and_variables_share_the_level(many: Path, tmp_path: Path) -> None:
    """The audit gives each half: a gate that only the whole level passes is refused before it."""
    limits = {one.variable: one for one in plan(many, tmp_path, **gate("apart"))}
    one = limits["apart"]
    given = {"n_attacks": one.n_intervals // 4, "n_classes": 2, "n_variables": 1}
    half, whole = (
        plan_guess_limit(AttackOptions(level=level), one.score, one.n_held_out, **given)
        for level in (0.975, 0.95)
    )
    assert limits["apart"].reaches == half > whole


def test_init__writes_limits_of_surrogates_that_its_records_can_show(
    source: Path, tmp_path: Path
) -> None:
    config = tmp_path / "my.toml"
    init_command(
        str(source),
        str(config),
        method="masking",
        desired=["score"],
        confidential=["hidden"],
        release="",
    )
    text = config.read_text().replace("n_surrogates = FILL IN", "n_surrogates = 90")
    assert "THIS METHOD DOES NOT PROTECT SINGLE RECORDS" in text
    accepts = 'single_records = "unprotected"'
    config.write_text(text)
    with pytest.raises(OptionError, match="single records are not protected") as caught:
        check_stage(read_options(str(config)))
    assert accepts in caught.value.remedy
    assert f"\n# {accepts}\n" in text
    config.write_text(text.replace(f"\n# {accepts}\n", f"\n{accepts}\n"))
    options = read_options(str(config))
    assert options.audit.holdout == 0.5
    needs = GateForecast(options, check_stage(options).training).plan_limits()
    assert all(1.3 * one.reaches < one.limit or one.limit == 1 for one in needs)
    defaults = options.model_copy(update={"gate": type(options.gate)()})
    with pytest.raises(OptionError, match="cannot be passed"):
        check_stage(defaults)


def test_run__destroys_the_key_once_it_is_published(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(released / "keys"))
    entries = list_keys()
    assert entries
    assert all(entry.forgotten for entry in entries)
    assert not list((released / "keys").glob("*.key"))


def test_run__dead_between_publishing_and_forgetting_is_ended_by_the_next(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without an audit, here and below where nothing is asked of it: it is most of a run.
    def die(_: str) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(privpipe.pipeline.stages.publish, "forget_keys", die)
        with pytest.raises(KilledError):
            run(source, tmp_path, holdout=0.0)
    release = str(tmp_path / "release.zarr")
    check_release(release, verify=True)
    assert not any(entry.forgotten for entry in list_keys())
    before = read_tree(tmp_path / "release.zarr")
    run(source, tmp_path, holdout=0.0)
    assert all(entry.forgotten for entry in list_keys())
    assert not has_workspace(release)
    assert read_tree(tmp_path / "release.zarr") == before


def test_run__a_key_lost_before_it_is_complete_publishes_nothing(
    source: Path, tmp_path: Path, keys: Path
) -> None:
    def stop(*_: Any) -> None:
        raise KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(privpipe.pipeline.stages.clean, "prove_receipts", stop)
        with pytest.raises(KilledError):
            run(source, tmp_path)
    for path in keys.glob("*.key"):
        path.unlink()
    with pytest.raises(StoreError, match="gone before its release was complete") as caught:
        run(source, tmp_path)
    assert "purge" in caught.value.remedy
    assert not (tmp_path / "release.zarr").exists()


def test_draw__of_one_model_gives_the_same_bytes_in_any_chunks(
    table: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, keys and run identifier given: chunks, tiles and workers must not matter."""
    from dataclasses import replace

    from privpipe.cluster.executors.executor import Executor
    from privpipe.pipeline.runs.resume import begin_or_resume
    from privpipe.pipeline.stages.clean import plan_release
    from privpipe.pipeline.stages.train import train_stage
    from privpipe.store.models import digest_map, open_model, write_model

    found: list[dict[str, bytes]] = []
    model = None
    for rows in (64, 33, 200, 700):
        place = source if rows == 64 else ingest_table(table, rows)
        folder = tmp_path / str(rows)
        folder.mkdir()
        checked = check_stage(make_options(place, folder))
        checked = replace(checked, state=replace(checked.state, run_id="00c0ffee"))
        going, _ = begin_or_resume(checked)
        if model is None:
            trained = train_stage(going, Executor())
            model = open_model(going.stored_model_url)
        else:
            write_model(model, going.work_model_url)
        assert digest_map(model) == trained.model_digest
        plan = plan_release(going, trained)
        privpipe.pipeline.stages.clean.clean_stage(going, trained, plan, Executor())
        found.append(read_chunks(Path(plan.data_url)))
    assert found[0]
    assert all(one == found[0] for one in found)


@pytest.mark.slow
def test_run__every_crash_point_publishes_nothing_mixed_and_resumes(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of the storage from the drawing on fails in turn; then the run goes on."""
    monkeypatch.setattr("privpipe.sanitizers.masking.surrogates.TILE_BYTES", 1)  # three tiles
    source = ingest_table(table, 350)
    counted = tmp_path / "counted"
    counted.mkdir()
    storage, first, draw = CrashingStorage(counted), [], privpipe.pipeline.stages.clean._draw

    def note(*arguments: Any) -> Any:
        first.append(storage.changes)
        return draw(*arguments)

    with monkeypatch.context() as patch, storage():
        patch.setattr(privpipe.pipeline.stages.clean, "_draw", note)
        run(source, counted, holdout=0.0)
    n_changes = storage.changes
    assert n_changes > first[0] + 15
    for point in range(first[0], n_changes):
        folder = tmp_path / f"{point:03d}"
        folder.mkdir()
        storage = CrashingStorage(folder, dies_at=point, how="torn")
        with storage(), pytest.raises((StoreError, KilledError)):
            run(source, folder, holdout=0.0)
        release = str(folder / "release.zarr")
        if os.path.lexists(release):
            check_release(release, verify=True)
            drawn = read_chunks(Path(release))
        else:
            drawn = {}
        run(source, folder, holdout=0.0)
        check_release(release, verify=True)
        assert not drawn or read_chunks(Path(release)) == drawn
        run_id = json.loads((folder / "release.zarr" / "zarr.json").read_text())
        entries = find_keys(run_id["attributes"]["privpipe"]["run"])
        assert entries
        assert all(entry.forgotten for entry in entries), point
        assert not has_workspace(release)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"release": {"include": ["score"]}}, "include is about single records"),
        ({"release": {"partitions": True}}, "partitions is about single records"),
        ({"release": {"layout": "factored"}}, "factored"),
        ({"release": {"nonfinite": "withhold"}}, "withhold"),
        ({"release": {"nonfinite": "impute"}}, "completes missing entries itself"),
        ({"method": {"n_surrogates": 3}}, "at least as many"),
    ],
)
def test_check__refuses_what_surrogates_do_not_have(
    source: Path, tmp_path: Path, more: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        run(source, tmp_path, **more)


SPOILT: dict[str, tuple[str, dict[str, str], dict[str, Any], str, int]] = {
    # What changes of the table (column: value everywhere, or "column@row"), options, error, exit.
    "a record without features": (
        "score",
        {f"{name}@{row}": "" for name in "abcd" for row in range(3, 9)},
        {"missing": "complete"},
        "hold no feature at all",
        3,
    ),
    "missing features": ("score", {"b@5": "", "b@6": "", "b@7": ""}, {}, "missing or infinite", 3),
    "a missing column": ("score", {"b": ""}, {"missing": "complete"}, "missing in every record", 3),
    "a constant response": ("score", {"score": "3.7251"}, {}, "is constant or missing", 3),
    "a missing response": ("score", {"score": ""}, {}, "is constant or missing", 3),
    "one class": ("kept", {"kept": "yes"}, {}, "does not vary|one and the same", 3),
    "nothing desired": ("", {}, {}, r"needs \[collection\] desired", 2),
    "infinite features": ("score", {"a": "inf"}, {}, "missing or infinite", 3),
    "an infinite response": ("score", {"score@5": "-inf", "score@6": "inf"}, {}, "infinite", 3),
    "too few surrogates": ("score", {}, {"n_surrogates": 4}, "at least as many", 2),
    "far scales, literal": ("score", {"a*": "1e12"}, {"solver": "literal"}, "more than 1e6", 3),
    "values beyond all squares": ("score", {"a*": "1e201"}, {}, "exceed 1e", 3),
    "a class of two": ("kept", {"kept@1": "perhaps", "kept@2": "perhaps"}, {}, "holds more", 3),
}


@pytest.mark.parametrize("case", SPOILT)
def test_run__refuses_bad_input_without_a_value_and_publishes_nothing(
    table: Path, tmp_path: Path, case: str
) -> None:
    desired, changes, method, message, exit_code = SPOILT[case]
    rows = [line.split(",") for line in table.read_text().splitlines()]
    for where, value in changes.items():
        name, _, row = where.partition("@")
        column = rows[0].index(name.rstrip("*"))
        for number in [int(row)] if row else range(1, len(rows)):
            old = rows[number][column]
            rows[number][column] = f"{float(old) * float(value):.17g}" if name[-1] == "*" else value
    spoilt = tmp_path / "records.csv"
    spoilt.write_text("\n".join(map(",".join, rows)) + "\n")
    named = {"desired": [desired]} if desired else {}
    with pytest.raises(PrivpipeError, match=message) as caught:
        run(ingest_table(spoilt, 64), tmp_path, collection=named, method=method, holdout=0.1)
    assert caught.value.exit_code == exit_code
    shown = f"{caught.value} {caught.value.remedy}"
    assert "3.7251" not in shown
    assert "perhaps" not in shown
    assert not (tmp_path / "release.zarr").exists()
    assert not list_keys()


def test_run__far_scales_are_kept(table: Path, tmp_path: Path) -> None:
    """1e12 between two features: standardised, so that nothing of the model is lost."""
    rows = [line.split(",") for line in table.read_text().splitlines()]
    for row in rows[1:]:
        row[0], row[3] = f"{float(row[0]) * 1e6:.17g}", f"{float(row[3]) * 1e-5:.17g}"
    spoilt = tmp_path / "records.csv"
    spoilt.write_text("\n".join(map(",".join, rows)) + "\n")
    found = open_release(str(run(ingest_table(spoilt, 700), tmp_path, holdout=0.0)), verify=True)
    scale = np.array([1e6, 1, 1, 1e-5, 1])
    model = np.linalg.lstsq(
        found["features"].to_numpy() / scale, found["score"].to_numpy(), rcond=None
    )[0]
    np.testing.assert_allclose(model[[0, 1, 3]], [1.0, 0.2, 3.0], atol=0.15)


@pytest.mark.slow
def test_run__leaves_neither_signs_nor_key_nor_records_anywhere(
    table: Path, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte that a run, a failed one and a resumed one leave is searched, in any disguise."""
    from privpipe.store.keyring import keys as module

    secrets: list[bytes] = []

    def tell(n: int) -> bytes:
        found = os.urandom(n)
        if n == KEY_BYTES:  # identifiers of runs are shorter, and no secrets
            secrets.append(found)
        return found

    monkeypatch.setattr(module.secrets, "token_bytes", tell)

    def stop(*_: Any) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(privpipe.pipeline.stages.clean, "prove_receipts", stop)
        with pytest.raises(KilledError):
            run(source, tmp_path)
    patterns = [*secrets, *(secret.hex().encode() for secret in secrets)]
    patterns += [base64.b64encode(secret) for secret in secrets]
    assert find(tmp_path, patterns), "until publication the key is in its folder, and is found"
    run(source, tmp_path)
    rows = np.loadtxt(table, delimiter=",", skiprows=1, usecols=range(5))
    canaries = Canaries({"records": rows}, {"hidden": ("SECRETnone",)})
    assert find(tmp_path, patterns) == []
    assert search_tree(canaries, tmp_path) == {}


def find(folder: Path, patterns: list[bytes]) -> list[Path]:
    """Files below a folder that hold one of the patterns."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if any(one in path.read_bytes() for one in patterns)]
