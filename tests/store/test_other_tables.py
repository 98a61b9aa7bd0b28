"""A model meets records of another table: matched by name, counted where nameless, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from privpipe.command.check_command import check_command
from privpipe.errors import InputError, PrivpipeError
from privpipe.fitted_schema import NamedCodes
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.records.schema import CollectionSchema, Variable
from privpipe.store.collections.writing import write_collection
from privpipe.store.models import open_model
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from tests.store.serial_run import run_serially, serial_flows

KINDS = ("aloof", "blue", "brave", "bright", "dark", "deep", "dim")
"""Of the first attribute. Without the rarest, the first, all others have another number."""
SHARES = (0.02, *[0.98 / 6] * 6)
NEW = "azure-of-Jane"
TELLS = (0.5, 0.05, 0.05, 0.05, 0.95, 0.95, 0.95)
"""How likely each tells that the secret is "yes"."""
TABLES = {"kind": KINDS, "size": ("L", "M", "S"), "secret": ("no", "yes"), "club": ("in", "out")}
CONFIGURATION = """
[collection]
path = "{folder}/later.zarr"
confidential = ["secret"]
[training]
path = "{folder}/training.zarr"
[method]
{method}
[release]
path = "{folder}/release.zarr"
include = {include}
[cluster]
workers = 0
[audit]
holdout = 0.2
adversaries = []
[gate]
enforce = false
"""
MAPPING = """name = "privacy_mapping"
attributes = ["kind", "size"]
private = ["secret"]
distortion_budget = 0.4
"""


@pytest.fixture(autouse=True)
def serial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    with serial_flows():
        yield


def draw_table(n_records: int = 3000, seed: int = 5) -> pd.DataFrame:
    """People of whom the first attribute tells the secret."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(len(KINDS), n_records, p=SHARES)
    secret = rng.random(n_records) < np.array(TELLS)[kind]
    return pd.DataFrame(
        {
            "kind": np.array(KINDS)[kind],
            "size": rng.choice(TABLES["size"], n_records),
            "secret": np.where(secret, "yes", "no"),
            "club": rng.choice(TABLES["club"], n_records),
            "x": rng.normal(size=n_records) + secret,
            "y": 100 * rng.normal(size=n_records),
        }
    )


def store(
    url: Path,
    frame: pd.DataFrame,
    tables: Mapping[str, tuple[str, ...]] = TABLES,
    features: tuple[str, ...] = (),
) -> None:
    """A collection with category tables in a given order."""
    chunk_rows = 1000
    schema = CollectionSchema(
        n_records=len(frame),
        n_features=len(features),
        dtype="float64",
        chunk_rows=chunk_rows,
        variables=tuple(Variable(name, "int8", tuple(table)) for name, table in tables.items()),
        feature_names=features,
    )

    def blocks() -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, len(frame), chunk_rows):
            some = frame.iloc[start : start + chunk_rows]
            codes = {
                name: some[name].map({one: code for code, one in enumerate(table)})
                for name, table in tables.items()
            }
            block = {name: found.to_numpy(np.int8) for name, found in codes.items()}
            yield block | {"features": some[list(features)].to_numpy(np.float64)}

    write_collection(str(url), schema, blocks())


def configure(folder: Path, method: str = MAPPING, include: str = "[]") -> str:
    path = folder / "run.toml"
    path.write_text(CONFIGURATION.format(folder=folder, method=method, include=include))
    return str(path)


def renumber() -> tuple[pd.DataFrame, dict[str, tuple[str, ...]]]:
    """The same people as another ingest might number them: without one kind and with a new one."""
    frame = draw_table()
    frame = frame[frame.kind != KINDS[0]]
    frame.loc[frame.index[:40], "kind"] = NEW
    tables = {name: tuple(reversed(table)) for name, table in TABLES.items()}
    return frame, {**tables, "kind": (*KINDS[1:], NEW)}


def read_names(release: Path) -> pd.DataFrame:
    """The released attributes by name."""
    dataset = open_release(str(release), verify=True)
    tables = {name: dataset[name].attrs["categories"] for name in ("kind", "size")}
    return pd.DataFrame({n: np.array(t)[dataset[n].to_numpy()] for n, t in tables.items()})


def measure_told(secret: pd.Series, released: pd.DataFrame) -> float:
    """Mutual information of what is released and the secret, nats, as counted."""
    law = pd.crosstab(secret.to_numpy(), released.kind + released["size"]).to_numpy() / len(secret)
    return _inform(law)


def _inform(law: np.ndarray) -> float:
    apart = law.sum(1, keepdims=True) * law.sum(0)
    held = law > 0
    return float((law[held] * np.log(law[held] / apart[held])).sum())


def test_run__a_mapping_keeps_its_promise_on_a_table_numbered_otherwise(tmp_path: Path) -> None:
    store(tmp_path / "training.zarr", draw_table())
    frame, tables = renumber()
    store(tmp_path / "later.zarr", frame, tables)
    run_serially(read_options(configure(tmp_path)))
    header = open_release(str(tmp_path / "release.zarr")).attrs["privpipe"]
    released = read_names(tmp_path / "release.zarr")
    promised = header["guarantee"]["number"]
    assert measure_told(frame.secret, frame) > 2 * promised
    assert measure_told(frame.secret, released) < promised
    fitted: Any = open_model(str(tmp_path / "release.model.zarr"))
    by_number = [[tables["kind"].index(kind), code] for kind, code in _number(frame)]
    # Codes taken as numbers, as they once were, tell thrice as much.
    misread = measure_law(fitted, np.array(by_number), frame.secret)
    assert misread > 3 * measure_told(frame.secret, released)
    assert (released["size"] == frame["size"].to_numpy()).mean() > 0.5
    assert set(released.kind) <= set(KINDS)
    found = json.loads((tmp_path / "release.report" / "audit.json").read_text())["unseen"]
    assert found == {"n_records": 40, "n_released": len(frame), "unknown_categories": {"kind": 1}}
    page = (tmp_path / "release.report" / "report.html").read_text()
    assert "Categories that no training record has: 1 of" in page
    assert NEW not in page + json.dumps(dict(header))
    assert export_release(tmp_path / "release.zarr", tmp_path / "out.parquet") == len(frame)
    exported = pd.read_parquet(tmp_path / "out.parquet")
    assert (exported.kind.astype(str).to_numpy() == released.kind.to_numpy()).all()
    _check_read_by_name(fitted, frame)


@pytest.mark.parametrize(
    "method", [MAPPING, pytest.param('name = "leace"', marks=pytest.mark.slow)]
)
def test_run__of_a_table_numbered_otherwise_is_audited(tmp_path: Path, method: str) -> None:
    """Its sample is drawn where chunks are cleaned: a worker looks the collection up."""
    features = ("x", "y")
    store(tmp_path / "training.zarr", draw_table(), features=features)
    frame, tables = renumber()
    store(tmp_path / "later.zarr", frame, tables, features=features)
    config = Path(configure(tmp_path, method, include='["club"]'))
    config.write_text(config.read_text().replace("[]\n[gate]", '["naive_bayes"]\n[gate]'))
    assert "naive_bayes" in config.read_text()
    run_serially(read_options(str(config)))
    audit = json.loads((tmp_path / "release.report" / "audit.json").read_text())
    assert audit["adversaries"]["decisions"][0]["verdict"] in ("safe", "unproven", "leaks")
    assert "naive_bayes" in {one["adversary"] for one in audit["adversaries"]["table"]}


def _check_read_by_name(fitted: Any, frame: pd.DataFrame) -> None:
    """The model of a run reads a data frame and text by name, and no codes without names."""
    columns = tuple(Variable(n, "int8", TABLES[n]).column for n in ("size", "kind"))
    known = frame[frame.kind != NEW]
    codes = np.column_stack([[TABLES[c.name].index(v) for v in known[c.name]] for c in columns])
    symbols = fitted.find_symbols(NamedCodes(codes, columns))
    np.testing.assert_array_equal(fitted.find_symbols(known[["size", "kind"]]), symbols)
    np.testing.assert_array_equal(fitted.find_symbols(known[["kind", "size"]].to_numpy()), symbols)
    with pytest.raises(InputError, match="codes without names") as error:
        fitted.find_symbols(codes)
    assert error.value.code == "schema-drift"


def _number(frame: pd.DataFrame) -> list[tuple[str, int]]:
    return [(a, TABLES["size"].index(b)) for a, b in zip(frame.kind, frame["size"], strict=True)]


def measure_law(fitted: Any, codes: np.ndarray, secret: pd.Series) -> float:
    """What a release would tell if codes were taken as numbers, as they once were, in nats."""
    place = {tuple(code): number for number, code in enumerate(fitted.codes.tolist())}
    known = np.array([place.get(tuple(code), 0) for code in codes.tolist()])
    law = np.zeros((2, fitted.n_symbols))
    np.add.at(law, ((secret == "yes").to_numpy().astype(int), known), 1 / len(known))
    return _inform(np.asarray((fitted.mapping @ law.T).T))


def test_check__counts_new_categories_by_column_and_refuses_them_when_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path / "training.zarr", draw_table())
    store(tmp_path / "later.zarr", *renumber())
    answer = check_command(configure(tmp_path))
    said = " ".join(capsys.readouterr().out.split())
    assert answer["unknown_categories"] == {"kind": 1}
    assert "Categories that no training record has: 1 of 'kind'." in said
    assert "azure" not in said
    strict = configure(tmp_path, MAPPING + 'unseen = "refuse"\n')
    with pytest.raises(InputError, match="1 of 'kind'") as error:
        check_stage(read_options(strict))
    assert error.value.code == "schema-drift"
    assert "azure" not in str(error.value)


def test_run__features_are_found_by_name(tmp_path: Path) -> None:
    """Columns in another order give the release of the columns in order, bit for bit."""
    method = 'name = "leace"'
    frame, released = draw_table(400), []
    for order in (("x", "y"), ("y", "x")):
        folder = tmp_path / order[0]
        folder.mkdir()
        store(folder / "training.zarr", frame, features=("x", "y"))
        store(folder / "later.zarr", frame, features=order)
        run_serially(read_options(configure(folder, method)))
        dataset = open_release(str(folder / "release.zarr"), verify=True)
        assert dataset.attrs["privpipe"]["feature_names"] == ["x", "y"]
        released.append(dataset["features"].to_numpy())
    np.testing.assert_array_equal(released[0], released[1])


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (("x", "why"), "lacks 'y'; it has too many 'why'"),
        (("x",), "lacks 'y'"),
        (("x", "y", "z"), "too many 'z'"),
        (("x", "town=Oz"), "too many 1 categories of 'town'"),
        ((), "features"),
    ],
)
def test_check__refuses_features_of_other_names(
    tmp_path: Path, features: tuple[str, ...], message: str
) -> None:
    frame = draw_table(400).assign(why=0.0, z=0.0, **{"town=Oz": 0.0})
    store(tmp_path / "training.zarr", frame, features=("x", "y"))
    store(tmp_path / "later.zarr", frame, features=features)
    with pytest.raises(InputError, match=message) as error:
        check_stage(read_options(configure(tmp_path, 'name = "leace"')))
    assert error.value.code == "schema-drift"
    assert "Oz" not in str(error.value)


def test_check__matches_included_variables_and_labels_by_name(tmp_path: Path) -> None:
    """A table of classes in another order permuted them: an attack that is sure to fail."""
    frame = draw_table(400)
    store(tmp_path / "training.zarr", frame, features=("x", "y"))
    tables = {name: tuple(reversed(table)) for name, table in TABLES.items()}
    tables["secret"] = ("unheard", *tables["secret"])
    store(tmp_path / "later.zarr", frame, tables, ("x", "y"))
    run = check_stage(read_options(configure(tmp_path, 'name = "leace"', '["club"]')))
    known, later = run.training.schema_of_records, run.collection.schema_of_records
    assert later.variable("club") == known.variable("club")
    assert later.variable("secret").categories == ("no", "yes", "unheard")
    for name in ("club", "secret"):
        np.testing.assert_array_equal(
            run.collection.read(name, 0, 400), run.training.read(name, 0, 400)
        )


def test_run__included_variables_hold_the_names_of_their_own_records(tmp_path: Path) -> None:
    frame = draw_table(400)
    store(tmp_path / "training.zarr", frame, features=("x", "y"))
    store(tmp_path / "later.zarr", frame, {**TABLES, "club": ("out", "in")}, ("x", "y"))
    run_serially(read_options(configure(tmp_path, 'name = "leace"', '["club"]')))
    released = open_release(str(tmp_path / "release.zarr"), verify=True)["club"]
    assert (np.array(released.attrs["categories"])[released.to_numpy()] == frame.club).all()


def test_check__refuses_included_categories_that_no_audit_has_seen(tmp_path: Path) -> None:
    frame = draw_table(400)
    store(tmp_path / "training.zarr", frame, features=("x", "y"))
    frame.loc[0, "club"] = "club-of-Jane"
    tables = {**TABLES, "club": ("club-of-Jane", "in", "out")}
    store(tmp_path / "later.zarr", frame, tables, ("x", "y"))
    with pytest.raises(InputError, match=r"'club'.* has 1 categories") as error:
        check_stage(read_options(configure(tmp_path, 'name = "leace"', '["club"]')))
    assert error.value.code == "schema-drift"
    assert "Jane" not in str(error.value)


def test_check__refuses_attributes_of_another_kind_or_none(tmp_path: Path) -> None:
    store(tmp_path / "training.zarr", draw_table())
    frame = draw_table(400)
    store(tmp_path / "later.zarr", frame, {"size": TABLES["size"]}, ("x",))
    with pytest.raises(PrivpipeError, match="kind"):
        check_stage(read_options(configure(tmp_path)))
