"""Models, collections and releases that a stranger has made or changed: bounded, and no link."""

from __future__ import annotations

import copy
import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privpipe
from flows.reproduce.exponential import fit_exponential_mechanism
from flows.reproduce.laplace import LaplaceMechanism
from privpipe.errors import (
    FormatError,
    GuaranteeError,
    IncompleteReleaseError,
    OptionError,
    PrivpipeError,
    StoreError,
)
from privpipe.protocols import Guarantee
from privpipe.records.memory import Records
from privpipe.store.access.objects import measure_bytes, open_store, read_bytes
from privpipe.store.access.workspace import check_name
from privpipe.store.arrays.layout import root_document
from privpipe.store.collections.ingest import IngestOptions, ingest
from privpipe.store.models import open_model, publish_model, write_model
from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.sanitizers.test_contract import make_chain, make_noisy
from tests.store.releases.test_export import N, make_release


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small stored model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    fitted = privpipe.fit_null_space_cleaner(Records(x, desired=x[:, 0]), utility_budget=0.01)
    write_model(fitted, str(tmp_path / "m.zarr"))
    return tmp_path / "m.zarr"


def change(place: Path, **fields: object) -> None:
    document = json.loads(place.read_text())
    place.write_text(json.dumps(document | fields))


@pytest.mark.parametrize("n_chunks", [0, 1])
def test_open_model__declares_no_more_than_is_stored(model: Path, n_chunks: int) -> None:
    """Half a terabyte by its shape, in a few hundred bytes: nothing is made up."""
    n = 2**36
    grid = {"name": "regular", "configuration": {"chunk_shape": [n if n_chunks else 4]}}
    change(model / "centre" / "zarr.json", shape=[n], chunk_grid=grid)
    if not n_chunks:
        shutil.rmtree(model / "centre" / "c")
    with pytest.raises(FormatError, match=r"declares .* and stores") as refused:
        open_model(str(model))
    assert refused.value.code == "unbounded"


def test_open_model__follows_no_link_of_its_maker(model: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_bytes(b"secret")
    for name in ("centre/c/0", "centre/c", "centre"):
        place, away = model / name, tmp_path / "away"
        place.rename(away)
        place.symlink_to(mine if away.is_file() else away)
        with pytest.raises(StoreError, match="is a link; it is not read"):
            open_model(str(model))
        place.unlink()
        away.rename(place)
    alias = tmp_path / "alias.zarr"
    alias.symlink_to(model)  # the user's own name for the place
    assert open_model(str(alias)).n_features_in == 4


def test_read_bytes__waits_at_no_pipe(model: Path) -> None:
    (model / "zarr.json").unlink()
    os.mkfifo(model / "zarr.json")
    with pytest.raises(PrivpipeError, match="is no regular file"):
        open_model(str(model))
    store = open_store(str(model), read_only=True)
    for read in (read_bytes, measure_bytes):
        with pytest.raises(StoreError, match="is no regular file"):
            read(store, "zarr.json")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"n_records": 10**12}, "speaks of 1,000,000,000,000 records"),
        ({"partitions": [10**9, N - 10**9]}, "and 23 are stored"),
        ({"n_records": -1}, "speaks of -1 records"),
    ],
)
def test_export__a_header_that_says_more_than_is_there_is_refused(
    tmp_path: Path, fields: dict[str, object], problem: str
) -> None:
    release = tmp_path / "release.zarr"
    make_release(release)
    root = json.loads((release / "zarr.json").read_text())["attributes"]["privpipe"]
    said = {key: value for key, value in root.items() if key != "sha256"} | fields
    (release / "zarr.json").write_bytes(root_document(said))
    with pytest.raises(IncompleteReleaseError, match=problem):
        export_release(str(release), str(tmp_path / "out.parquet"))
    assert not (tmp_path / "out.parquet").exists()


def write_as_stranger(place: Path, **fields: Any) -> None:
    """Change a root document and seal it anew, as anybody can."""
    root = json.loads((place / "zarr.json").read_text())["attributes"]["privpipe"]
    said = {key: value for key, value in root.items() if key != "sha256"} | fields
    (place / "zarr.json").write_bytes(root_document(said))


FORGED = {
    "budget": lambda: (make_cleaner(), {"utility_budget": -1.0}),
    "text": lambda: (make_cleaner(), {"utility_budget": "-1.0"}),
    "mean": lambda: (make_laplace(), {"utility_budget": 1e-12}),
    "chain": lambda: (make_chain(), {"guarantee": dp(make_chain().guarantee)}),
    "chain-number": lambda: (
        make_chain(),
        {"guarantee": forge(make_chain().guarantee, number=-1.0)},
    ),
    "delta": lambda: (make_chain(), {"guarantee": forge(make_chain().guarantee, delta=1.0)}),
    "noisy": lambda: (make_noisy(), {"guarantee": dp(make_noisy().guarantee)}),
    "mapping": lambda: (make_mapping(), {"guarantee": dp(make_mapping().guarantee)}),
    "mapping-number": lambda: (
        make_mapping(),
        {"guarantee": forge(make_mapping().guarantee, number=-1.0)},
    ),
}
"""A map and what a stranger would have it say."""


def make_cleaner() -> Any:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    return privpipe.fit_null_space_cleaner(Records(x, desired=x[:, 0]), utility_budget=0.01)


def make_laplace() -> Any:
    return LaplaceMechanism.from_predictor(np.eye(4)[:, :2], utility_budget=0.1)


def make_mapping() -> Any:
    joint = np.array([[0.3, 0.1, 0.1], [0.1, 0.1, 0.3]])
    return fit_exponential_mechanism(joint, [[0], [1], [2]], distortion_budget=0.2)


def forge(guarantee: Guarantee, **fields: float) -> Guarantee:
    """As a document may say it: to be made with such a number is refused."""
    forged = copy.copy(guarantee)
    for name, value in fields.items():
        object.__setattr__(forged, name, value)
    return forged


def dp(guarantee: Guarantee) -> Guarantee:
    return replace(guarantee, kind="local_dp", number=1e-3, delta=0.0)


@pytest.mark.parametrize("what", sorted(FORGED))
def test_open_model__promises_no_more_than_its_method_can(tmp_path: Path, what: str) -> None:
    fitted, forged = FORGED[what]()
    write_model(fitted, str(tmp_path / "m.zarr"))
    assert open_model(str(tmp_path / "m.zarr")).guarantee == fitted.guarantee
    with pytest.raises(PrivpipeError):
        replace(fitted, **forged)
    for name, value in forged.items():
        object.__setattr__(fitted, name, value)
    with pytest.MonkeyPatch.context() as patch:  # a stranger's privpipe looks at nothing
        patch.setattr(Guarantee, "__post_init__", lambda _: None)
        write_model(fitted, str(tmp_path / "forged.zarr"))  # sealed anew, digest and all
    with pytest.raises(FormatError, match="is none that a fit returns") as refused:
        open_model(str(tmp_path / "forged.zarr"))
    assert refused.value.code == "promise"
    assert refused.value.remedy


@pytest.mark.parametrize("inside", ["evil", "centre/of persons", "lift/c/9"])
def test_publish_model__what_somebody_put_into_its_folder_stays_there(
    model: Path, inside: str
) -> None:
    before = {key.relative_to(model) for key in model.rglob("*")}
    (model / inside).mkdir(parents=True)
    (model / inside / "list.txt").write_text("persons")
    (model / "link").symlink_to(model.parent)
    public = model.parent / "public.zarr"
    publish_model(str(model), str(public))
    assert {key.relative_to(public) for key in public.rglob("*")} == before
    for key in filter(Path.is_file, public.rglob("*")):
        assert key.read_bytes() == (model / key.relative_to(public)).read_bytes()
    publish_model(str(model), str(public))  # as a run does that died after the first time


def test_publish_model__a_link_in_place_of_an_array_is_not_followed(model: Path) -> None:
    (model / "lift").rename(model.parent / "elsewhere")
    (model / "lift").symlink_to(model.parent / "elsewhere")
    with pytest.raises(StoreError) as refused:
        publish_model(str(model), str(model.parent / "public.zarr"))
    assert refused.value.code == "link"
    assert not (model.parent / "public.zarr").exists()


def test_open_release__receipts_without_chunks_are_not_made(tmp_path: Path) -> None:
    release = tmp_path / "release.zarr"
    make_release(release)
    for name in ("rows", "length", "crc32c"):
        shutil.rmtree(release / "receipts" / name / "c")
        grid = {"name": "regular", "configuration": {"chunk_shape": [2**15, 2]}}
        change(release / "receipts" / name / "zarr.json", shape=[2**15, 2], chunk_grid=grid)
    with pytest.raises(FormatError, match=r"of which .* can be meant") as refused:
        open_release(str(release))
    assert refused.value.code == "unbounded"


@pytest.mark.parametrize("value", [None, "x", [], {}, 0, 10**13, 1e300, ["a"], [[1]]])
@pytest.mark.parametrize("field", ["n_records", "chunk_rows", "arrays", "partitions"])
def test_open_release__a_header_of_other_types_is_refused(
    tmp_path: Path, field: str, value: object
) -> None:
    release = tmp_path / "release.zarr"
    make_release(release)
    write_as_stranger(release, **{field: value})
    if field == "partitions" and not value:  # no partitions, said in another way
        assert export_release(str(release), str(tmp_path / "out.parquet")) == N
        return
    with pytest.raises(StoreError) as refused:
        export_release(str(release), str(tmp_path / "out.parquet"))
    assert refused.value.remedy
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    "forged",
    [
        {"number": -1.0},
        {"number": "safe"},
        {"delta": 1.0},
        {"kind": 3},
        {"kind": "local_dp", "number": 0.001},  # of a method that draws no noise
        {"kind": "perfect_secrecy"},
    ],
)
def test_open_release__promises_nothing_that_no_method_can(
    tmp_path: Path, forged: dict[str, object]
) -> None:
    release = tmp_path / "release.zarr"
    make_release(release)
    promise = asdict(make_cleaner().guarantee)
    write_as_stranger(release, method="null_space", guarantee=promise)
    open_release(str(release))
    write_as_stranger(release, method="null_space", guarantee=promise | forged)
    with pytest.raises((GuaranteeError, FormatError)) as refused:
        open_release(str(release))
    assert refused.value.code in ("promise", "header-damaged")


@pytest.mark.parametrize("name", ["n" * 221, "n" * 245, "é" * 120])
def test_check_name__a_workspace_that_could_not_be_removed_is_not_made(
    tmp_path: Path, name: str
) -> None:
    """Of 245 bytes it was published, and then the run ended with exit code 4."""
    x = tmp_path / "x.npz"
    np.savez(x, X=np.zeros((3, 2)), y=np.arange(3) % 2)
    layout = SourceLayout(features=("X",), labels=("y",), categorical=("y",))
    for act in (
        lambda: ingest(str(x), str(tmp_path / name), IngestOptions(layout=layout)),
        lambda: check_name(str(tmp_path / name)),
    ):
        with pytest.raises(OptionError, match=r"has 2.* bytes") as refused:
            act()
        assert "at most 220 bytes" in refused.value.remedy
    assert os.listdir(tmp_path) == ["x.npz"]
    longest = tmp_path / ("n" * 220)
    ingest(str(x), str(longest), IngestOptions(layout=layout))
    assert sorted(os.listdir(tmp_path)) == [longest.name, "x.npz"]
