"""What a release says of its source: names of features, lengths of partitions, nothing else.

And of its audit and its promise no other figure than its public page.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from privpipe.errors import FormatError, OptionError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages.check import check_stage
from privpipe.sanitizers import METHODS
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.methods import EXAMPLES
from tests.standard import write_standard
from tests.store.serial_run import make_options, run_serially, serial_flows

NAMES = ("age", "weight", "dose", "temperature")


@pytest.fixture
def records(tmp_path: Path) -> str:
    """A collection of three Hive partitions, whose names hold values of a column."""
    rng = np.random.default_rng(3)
    for number, town in enumerate(("ulm", "bern", "linz")):
        x = rng.normal(size=(90 + number, 4))
        frame = pd.DataFrame(x, columns=list(NAMES))
        frame["wanted"] = x @ [1.0, -1.0, 0.5, 0.0] + rng.normal(size=len(x)) / 10
        frame["secret"] = np.where(x @ [0.0, 1.0, 1.0, -1.0] > 0, "sick", "well")
        frame["place"] = rng.choice(["here", "there"], len(x))
        folder = tmp_path / "t" / f"town={town}"
        folder.mkdir(parents=True)
        frame.to_parquet(folder / "x.parquet", index=False)
    layout = SourceLayout(labels=("wanted", "secret", "place", "town"))
    url = str(tmp_path / "records.zarr")
    ingest(str(tmp_path / "t"), url, IngestOptions(layout=layout, chunk_bytes=50 * 32))
    return url


def choose(options: RunOptions, **release: Any) -> RunOptions:
    changed = options.release.model_copy(update=release)
    return options.model_copy(update={"release": changed})


@pytest.mark.parametrize("layout", ["dense", "factored"])
def test_release__features_keep_their_names_and_partitions_their_lengths(
    tmp_path: Path, records: str, layout: str
) -> None:
    url = str(tmp_path / "release.zarr")
    with serial_flows():
        run_serially(choose(make_options(records, url), layout=layout, partitions=True))
    header = check_release(url, verify=True)
    assert tuple(header["feature_names"]) == NAMES
    assert header["partitions"] == [91, 92, 90]  # bern, linz, ulm
    told = json.dumps(header) + (tmp_path / "release.zarr" / "zarr.json").read_text()
    assert not [value for value in ("ulm", "bern", "linz", "town") if value in told]
    release = open_release(url)
    assert tuple(release.features.feature.values) == NAMES
    export_release(url, str(tmp_path / "out"))
    parts = [pq.read_table(tmp_path / "out" / f"part-0000{k}.parquet") for k in range(3)]
    assert [part.num_rows for part in parts] == [91, 92, 90]
    assert tuple(parts[0].column_names) == (*NAMES, "place")
    columns = [np.concatenate([part.column(n).to_numpy() for part in parts]) for n in NAMES]
    np.testing.assert_array_equal(np.stack(columns, axis=1), release.features.values)


def test_release__partitions_are_not_told_unless_asked(tmp_path: Path, records: str) -> None:
    url = str(tmp_path / "release.zarr")
    with serial_flows():
        run_serially(make_options(records, url))
    header = check_release(url)
    assert header["partitions"] == []
    assert not {"confidential", "privacy", "e_utility", "n_records"} & header["audit"].keys()
    assert not {"table", "options", "n_given"} & header["audit"]["adversaries"].keys()
    export_release(url, str(tmp_path / "out"))
    assert len(list((tmp_path / "out").glob("part-*"))) == 1


def test_release__new_features_do_not_take_the_old_ones_names(tmp_path: Path, records: str) -> None:
    url = str(tmp_path / "release.zarr")
    options = RunOptions(
        collection={"path": records, "desired": ["place"], "confidential": ["secret"]},
        method={"name": "pca", "n_filtered": 4},
        release={"path": url},
        audit={"holdout": 0.4, "adversaries": []},
        gate={"enforce": False},
    )
    with serial_flows():
        run_serially(options)
    assert check_release(url)["feature_names"] == []


@pytest.mark.parametrize("key", ["feature_names", "partitions"])
def test_release__names_and_partitions_are_sealed(tmp_path: Path, records: str, key: str) -> None:
    url = str(tmp_path / "release.zarr")
    with serial_flows():
        run_serially(choose(make_options(records, url), partitions=True))
    root = tmp_path / "release.zarr" / "zarr.json"
    document = json.loads(root.read_text())
    document["attributes"]["privpipe"][key].reverse()
    root.write_text(json.dumps(document, indent=1))
    with pytest.raises(FormatError, match="differs from its own digest"):
        check_release(url)


def test_check__partitions_by_a_confidential_variable_are_refused(
    tmp_path: Path, records: str
) -> None:
    options = choose(make_options(records, str(tmp_path / "r.zarr")), partitions=True)
    section = options.collection.model_copy(update={"confidential": ("town",)})
    options = options.model_copy(update={"collection": section})
    with pytest.raises(OptionError, match="partitioned by the confidential variable 'town'"):
        check_stage(options)
    allowed = choose(options, partitions=False)
    assert check_stage(allowed).options == allowed


SHAPES = ("format_version", "n_records", "chunk_rows", "partitions")
"""Numbers of the header that anybody counts in the arrays."""

CONFIGURED = ("options", "versions")
"""What somebody wrote, not what was measured."""


def list_numbers(document: Any) -> Iterator[float]:
    if isinstance(document, dict):
        for value in document.values():
            yield from list_numbers(value)
    elif isinstance(document, list):
        for value in document:
            yield from list_numbers(value)
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield float(document)


def read_numbers(page: str) -> set[float]:
    text = html.unescape(re.sub(r"<[^>]*>", " ", page)).replace(",", "")
    return {float(said) for said in re.findall(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?", text)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Desired and confidential share late")
@pytest.mark.parametrize("name", sorted(METHODS))
def test_release__holds_no_figure_that_its_public_page_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    source, url = str(tmp_path / "records.zarr"), tmp_path / "release.zarr"
    write_standard(source, 403, chunk_rows=50)
    wanted = {"null_space": "height", "null_space_targeted": "height", "masking": "height"}
    given = dict(EXAMPLES[name].options)
    named = {"desired": [wanted.get(name, "late")], "confidential": ["party"]}
    if name == "privacy_mapping":
        named = {"desired": [], "confidential": []}
    if name == "noisy":
        given |= {"allow_data_bound": True}
    options = RunOptions(
        collection={"path": source} | named,
        method={"name": name} | given,
        release={"path": str(url)},
        audit={"holdout": 0.4, "adversaries": []},
        gate={"enforce": False},
    )
    with serial_flows():
        run_serially(options)
    header = dict(check_release(str(url)))
    shown = read_numbers((tmp_path / "release.report" / "public.html").read_text())
    exact = {value for name, value in header["guarantee"].pop("parameters") if name == "grid"}
    figures = {key: value for key, value in header.items() if key not in (*SHAPES, *CONFIGURED)}
    assert not set(list_numbers(figures)) - shown - {0.0}
    assert {float(f"{value:g}") for value in exact} <= shown
    assert not {"e_utility", "bounded", "n_unseen"} & header.keys()
