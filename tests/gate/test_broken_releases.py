"""Releases that are broken in a known way are kept back by the gate, end to end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.cluster.passes import cleaning_pass
from privpipe.errors import GateError
from privpipe.store.arrays.layout import FEATURES
from privpipe.store.releases.lazy_release import open_release
from tests.gate.leaky_runs import make_leaky_options, make_records, write_records
from tests.store.serial_run import run_serially

Break = Callable[[np.ndarray, np.ndarray], np.ndarray]


pytestmark = pytest.mark.usefixtures("serially")


def tell_in_lowest_bit(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Rounding that goes up where the secret is, and down where it is not."""
    words = np.ascontiguousarray(released).view(np.uint64) & ~np.uint64(1)
    return (words | (raw[:, 1:2] > 3).astype(np.uint64)).view(np.float64)


def repeat_noise(raw: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Noise of one key for every record: a constant."""
    return raw + np.random.default_rng(0).normal(scale=50.0, size=(1, raw.shape[1]))


BREAKS: dict[str, Break] = {
    "identity": lambda raw, released: raw,
    "wrong sign": lambda raw, released: 2 * raw - released,
    "noise with a repeated key": repeat_noise,
    "rounding that tells": tell_in_lowest_bit,
}


def break_map(patch: pytest.MonkeyPatch, change: Break) -> None:
    """What workers write is changed after the map has made it; all else is the real run."""
    intact = cleaning_pass._map_features

    def mapped(job: Any, fitted: Any, chunk: int) -> Any:
        raw = job.collection.read(FEATURES, *job.plan.chunks.rows(chunk))
        block, *rest = intact(job, fitted, chunk)
        return ({FEATURES: change(raw, block[FEATURES])}, *rest)

    patch.setattr(cleaning_pass, "_map_features", mapped)


def release(folder: Path, records: dict[str, np.ndarray], **changes: Any) -> None:
    """Erase the secret linearly and publish, if the gate lets it."""
    write_records(str(folder / "records.zarr"), records)
    run_serially(make_leaky_options(folder, method={"name": "leace"}, **changes))


def assert_kept_back(folder: Path, error: GateError) -> None:
    assert (error.exit_code, error.code) == (6, "leaks")
    assert "'secret' leaks" in error.message
    assert not (folder / "release.zarr").exists()
    assert not (folder / "release.model.zarr").exists()
    assert "'secret' leaks" in (folder / "release.report" / "audit.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("broken", BREAKS)
def test_gate__keeps_back_what_a_broken_map_releases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    break_map(monkeypatch, BREAKS[broken])
    with pytest.raises(GateError) as caught:
        release(tmp_path, make_records())
    assert_kept_back(tmp_path, caught.value)


@pytest.mark.slow
def test_gate__lets_through_what_is_not_broken(tmp_path: Path) -> None:
    """The same run without the break: the tests above catch the break, not the run."""
    release(tmp_path, make_records())
    assert (
        open_release(str(tmp_path / "release.zarr")).attrs["privpipe"]["audit"]["gate"]["state"]
        == "passed"
    )


@pytest.mark.slow
def test_gate__keeps_back_a_secret_among_the_features(tmp_path: Path) -> None:
    """A copy of the secret that no linear eraser removes: the size of a feature."""
    records = make_records()
    sign = np.where(np.random.default_rng(1).random(len(records["secret"])) < 0.5, 1, -1)
    records["features"][:, 2] = sign * (1.0 + records["secret"])
    with pytest.raises(GateError) as caught:
        release(tmp_path, records)
    assert_kept_back(tmp_path, caught.value)


@pytest.mark.slow
def test_gate__keeps_back_a_copy_among_what_is_included(tmp_path: Path) -> None:
    records = make_records()
    records["copy"] = 1 - records["secret"]
    with pytest.raises(GateError) as caught:
        release(tmp_path, records, release={"include": ["copy"]})
    assert_kept_back(tmp_path, caught.value)


@pytest.mark.slow
def test_gate__keeps_back_an_order_that_tells(tmp_path: Path) -> None:
    records = make_records()
    order = np.argsort(records["secret"], kind="stable")
    with pytest.raises(GateError) as caught:
        release(tmp_path, {name: values[order] for name, values in records.items()})
    assert_kept_back(tmp_path, caught.value)
    # Two attacks find nearly all of it; which one finds most is a matter of the sample.
    found = caught.value.message
    assert "on all that is released" in found or "values and of their order" in found
