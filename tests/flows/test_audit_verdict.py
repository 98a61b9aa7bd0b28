"""What a release tells beside its features is found by the audit of a real run, end to end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from privpipe.flows.release_flow import run_pipeline
from privpipe.pipeline.runs.run_options import AuditSection
from privpipe.records.schema import CollectionSchema, Partition, Variable
from privpipe.store.collections.writing import write_collection

N_RECORDS, N_FEATURES, CHUNK_ROWS = 3000, 4, 500
LENGTHS = tuple(np.random.default_rng(5).multinomial(N_RECORDS, [1 / 12] * 12).tolist())
SECRETS = (
    "in_code",
    "in_number",
    "in_bits",
    "in_withheld",
    "in_partition",
    "in_next",
    "nowhere",
    "rare",
)


def plant(seed: int = 11) -> dict[str, np.ndarray]:
    """Secrets that no feature tells, each told by one thing that is released beside them."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(N_RECORDS, N_FEATURES))
    columns = {name: random.integers(0, 2, N_RECORDS).astype(np.int8) for name in SECRETS}
    columns["in_partition"] = np.repeat(np.arange(12) % 2, LENGTHS).astype(np.int8)
    columns["rare"] = (np.arange(N_RECORDS) == 17).astype(np.int8)
    columns["wanted"] = x[:, 0] + random.normal(size=N_RECORDS) / 10
    columns["code"] = columns["in_code"] + np.int8(1)
    columns["number"] = 1000.0 * columns["in_number"] + random.normal(size=N_RECORDS)
    bits = random.normal(size=N_RECORDS).view(np.uint64)
    columns["reading"] = (bits & ~np.uint64(1) | columns["in_bits"].astype(np.uint64)).view(float)
    # The sign of a number released by name is the secret of the record before.
    trail = np.abs(random.normal(size=N_RECORDS))
    columns["trail"] = trail * (2.0 * np.roll(columns["in_next"], 1) - 1.0)
    x[(columns["in_withheld"] == 1) & (random.random(N_RECORDS) < 0.4), 2] = np.nan
    return columns | {"features": x}


def write_planted(url: str) -> None:
    told = plant()
    firsts = np.concatenate([[0], np.cumsum(LENGTHS)])
    schema = CollectionSchema(
        n_records=N_RECORDS,
        n_features=N_FEATURES,
        dtype="float64",
        chunk_rows=CHUNK_ROWS,
        variables=(
            *(Variable(name, "int8", ("no", "yes")) for name in SECRETS),
            Variable("code", "int8", ("a", "b", "c")),
            *(Variable(name, "float64") for name in ("wanted", "number", "reading", "trail")),
        ),
        partitions=tuple(Partition(f"part-{i}", int(firsts[i]), n) for i, n in enumerate(LENGTHS)),
    )
    starts = range(0, N_RECORDS, CHUNK_ROWS)
    write_collection(
        url, schema, ({k: v[s : s + CHUNK_ROWS] for k, v in told.items()} for s in starts)
    )


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Findings and page of one run whose release tells five secrets beside its features."""
    folder = tmp_path_factory.mktemp("planted")
    write_planted(str(folder / "records.zarr"))
    (folder / "run.toml").write_text(
        f'[collection]\npath = "{folder}/records.zarr"\ndesired = ["wanted"]\n'
        f"confidential = {json.dumps(SECRETS)}\n"
        '[method]\nname = "null_space"\nutility_budget = 0.01\nridge = 1e-6\n'
        f'[release]\npath = "{folder}/release.zarr"\npartitions = true\n'
        'include = ["code", "number", "reading", "trail"]\nnonfinite = "withhold"\n'
        '[audit]\nholdout = 0.6\nadversaries = ["logistic"]\n'
        "[cluster]\nworkers = 0\n"
    )
    run_pipeline(str(folder / "run.toml"))
    report = folder / "release.report"
    return json.loads((report / "audit.json").read_text()), (report / "audit.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("secret", "source"),
    [
        ("in_code", {"everything", "joined", "bits"}),
        ("in_number", {"everything", "joined", "bits"}),
        ("in_bits", {"bits"}),
        ("in_withheld", {"released", "everything", "joined", "bits"}),
        ("in_partition", {"everything", "joined", "bits", "surroundings"}),
        ("in_next", {"surroundings"}),
    ],
)
def test_audit__finds_what_is_told_beside_the_features(audited, secret: str, source: set) -> None:
    decisions = {one["target"]: one for one in audited[0]["adversaries"]["decisions"]}
    assert decisions[secret]["verdict"] == "leaks"
    alone = {f"alone: {name}" for name in ("code", "number", "reading")}
    assert decisions[secret]["source"] in source | alone | {"surroundings"}
    assert decisions[secret]["gain_lower"] > decisions[secret]["allowed"]


@pytest.mark.slow
def test_audit__proves_features_and_reads_the_prediction_in_their_place(audited) -> None:
    found, page = audited
    proof, attacked = found["proof"], found["adversaries"]
    assert proof["n_records"] == attacked["n_given"] - attacked["n_withheld"] > 1000
    assert "proved: the released features reveal no more than the target prediction" in page
    widths = {row["n_coordinates"] for row in attacked["table"] if row["source"] == "released"}
    assert widths == {2}  # one prediction, and which rows are withheld


@pytest.mark.slow
def test_audit__accuses_no_secret_that_is_told_nowhere(audited) -> None:
    decisions = {one["target"]: one for one in audited[0]["adversaries"]["decisions"]}
    assert decisions["nowhere"]["verdict"] == "unproven"  # too few records to be safe
    assert decisions["nowhere"]["n_needed"] > audited[0]["adversaries"]["n_records"]


@pytest.mark.slow
def test_audit__names_a_variable_too_rare_and_judges_the_others(audited) -> None:
    found = audited[0]
    decisions = {one["target"]: one for one in found["adversaries"]["decisions"]}
    assert list(decisions) == list(SECRETS)
    assert decisions["rare"]["verdict"] == "unproven"
    assert "not attacked" in decisions["rare"]["reason"]
    for key in ("holdout", "max_records"):
        assert key in decisions["rare"]["reason"]
        assert key in AuditSection.model_fields


@pytest.mark.slow
def test_audit__opens_with_its_verdict_and_the_reason_of_every_variable(audited) -> None:
    found, page = audited
    assert page.lower().index("leaks: ") < page.index("records judged") < 2000
    plain = page.replace("\\", "")
    for one in found["adversaries"]["decisions"]:
        assert one["reason"] in plain
        assert repr(one["target"]) in one["reason"]
        if one["strongest"]:
            assert one["strongest"].replace("_", " ") in one["reason"]
            assert f"allowed {one['allowed']:.3g}" in one["reason"]
            assert f"{one['estimate']:.4g}" in one["reason"]
