"""Format versions: what is written, what is read, and what is refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.reproduce.laplace import LaplaceMechanism
from privpipe import open_collection, open_model, write_model
from privpipe.errors import FormatError
from privpipe.sanitizers.chain import Chain
from privpipe.store.arrays.blocks import write_block
from privpipe.store.arrays.layout import FEATURES, ArrayPlan, read_header, root_document
from privpipe.store.releases.published import check_release
from privpipe.store.releases.release_writing import ReleasePlan, prepare_release, publish_release
from tests.store.serial_run import write_small_collection

READERS = {"collection": open_collection, "model": open_model, "release": check_release}
WRITTEN = {"collection": 1, "model": 3, "release": 3}


@pytest.fixture
def noise() -> LaplaceMechanism:
    return LaplaceMechanism.from_predictor(np.eye(4)[:, :2], utility_budget=0.1)


@pytest.fixture
def stored(tmp_path: Path, noise: LaplaceMechanism) -> dict[str, str]:
    """A collection, a model and a release, by their kind."""
    urls = {kind: str(tmp_path / f"{kind}.zarr") for kind in READERS}
    write_small_collection(urls["collection"], n_records=60)
    write_model(noise, urls["model"])
    plan = ReleasePlan("0a1b2c3d", urls["release"], (ArrayPlan(FEATURES, (5, 2), 5, "float64"),))
    prepare_release(plan)
    receipt = write_block(plan.data_url, plan.arrays, 0, {FEATURES: np.ones((5, 2))}, plan.run)
    publish_release(plan, {0: receipt}, {})
    return urls


def rewrite(url: str, **changed: Any) -> None:
    """Other attributes in the root, under a sound seal."""
    root = Path(url) / "zarr.json"
    attributes = dict(json.loads(root.read_bytes())["attributes"]["privpipe"])
    attributes.pop("sha256")
    root.write_bytes(root_document({**attributes, **changed}))


@pytest.mark.parametrize("kind", READERS)
def test_format_version__of_what_is_written(stored: dict[str, str], kind: str) -> None:
    assert read_header(stored[kind], kind)["format_version"] == WRITTEN[kind]
    READERS[kind](stored[kind])


@pytest.mark.parametrize("kind", ["model", "release"])
def test_format_version__the_one_before_is_read(stored: dict[str, str], kind: str) -> None:
    rewrite(stored[kind], format_version=1)
    READERS[kind](stored[kind])


@pytest.mark.parametrize(
    ("kind", "reads"),
    [("collection", "1"), ("model", "1 and 2 and 3"), ("release", "1 and 2 and 3")],
)
@pytest.mark.parametrize("version", [0, 4, "2", None, [2]])
def test_format_version__others_are_refused_and_named(
    stored: dict[str, str], kind: str, reads: str, version: Any
) -> None:
    rewrite(stored[kind], format_version=version)
    with pytest.raises(FormatError) as caught:
        READERS[kind](stored[kind])
    assert f"has format version {version!r}; this privpipe reads {reads}." in str(caught.value)


def test_format_2__keeps_what_a_guarantee_gained(tmp_path: Path, noise: LaplaceMechanism) -> None:
    said = replace(
        noise.guarantee, delta=1e-6, protects="person", parameters=(("norm", 2.0), ("slack", 0.5))
    )
    url = str(tmp_path / "chain.zarr")
    write_model(Chain((noise, noise), said), url)
    back = open_model(url)
    assert back.guarantee == said
    header = read_header(url, "model")["guarantee"]
    assert (header["delta"], header["protects"]) == (1e-6, "person")
    assert header["parameters"] == [["norm", 2.0], ["slack", 0.5]]


def test_header__a_changed_description_in_the_root_is_found(stored: dict[str, str]) -> None:
    """Readers of Zarr believe the root's copy, which no digest of the documents covers."""
    root = Path(stored["release"]) / "zarr.json"
    content = json.loads(root.read_bytes())
    assert "features" in content["consolidated_metadata"]["metadata"]
    content["consolidated_metadata"]["metadata"]["features"]["shape"] = [4, 2]
    root.write_bytes(json.dumps(content, indent=1).encode())
    with pytest.raises(FormatError, match="differs from its own digest"):
        READERS["release"](stored["release"])
