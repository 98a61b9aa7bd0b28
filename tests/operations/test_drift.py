"""Drift: both error rates of its limit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.command.ingest_command import withdraw_command
from privpipe.errors import GateError, OptionError
from privpipe.numerics.moments import CoMoments
from privpipe.pipeline.stages.increment_check import DriftReference, check_drift, measure_drift
from privpipe.store.access.generation_log import read_newest
from privpipe.store.releases.incremental_release import (
    IncrementalState,
    PrivateLedger,
    read_incremental,
)
from privpipe.store.releases.lazy_release import open_release
from tests.operations import increments


def measure(rng: np.random.Generator, shift: float, n: int) -> float:
    reference = DriftReference.of(CoMoments.of(rng.normal(size=(400, 12))))
    new = rng.normal(size=(n, 12))
    new[:, 0] += shift
    return measure_drift(reference, CoMoments.of(new)).upper


@pytest.mark.parametrize("n", [50, 500])
def test_drift__beyond_the_limit_passes_at_most_at_its_level(n: int) -> None:
    """The true difference is the limit: upper limits below it come in 5 % of draws at most."""
    rng = np.random.default_rng(n)
    missed = sum(measure(rng, 0.5, n) < 0.5 for _ in range(600))
    assert missed <= 600 * 0.05 + 3 * (600 * 0.05 * 0.95) ** 0.5


def test_drift__of_the_same_law_passes_when_there_are_enough_records() -> None:
    rng = np.random.default_rng(1)
    assert sum(measure(rng, 0.0, 500) <= 0.5 for _ in range(200)) >= 198
    assert sum(measure(rng, 0.0, 10) <= 0.5 for _ in range(200)) == 0, "too few to tell"


def test_drift__a_feature_that_was_constant_counts() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(300, 3))
    x[:, 2] = 4.0
    reference = DriftReference.of(CoMoments.of(x))
    new = rng.normal(size=(300, 3))
    drift = measure_drift(reference, CoMoments.of(new))
    assert drift.n_new == 1
    with pytest.raises(GateError, match="constant") as refused:
        check_drift(drift, 1.0, "monday")
    assert refused.value.code == "drift"
    check_drift(drift, None, "monday")


def test_drift__records_of_new_categories_count() -> None:
    """Indicators of known categories alone would show a quarter of what is new."""
    rng = np.random.default_rng(4)
    codes = rng.integers(0, 4, 2000)
    indicators = (codes[:, None] == np.arange(4)).astype(float)
    reference = DriftReference.of(CoMoments.of(indicators))
    new = indicators.copy()
    new[:200] = 0
    drift = measure_drift(reference, CoMoments.of(new), sizes=[4])
    assert drift.n_new == 1
    assert drift.estimate > 2 * measure_drift(reference, CoMoments.of(new)).estimate
    same = measure_drift(reference, CoMoments.of(indicators), sizes=[4])
    assert (same.n_new, same.estimate) == (0, 0.0)


def test_drift__a_refused_partition_leaves_nothing_in_the_published_tree(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    options = increments.configure(tmp_path, drift=0.9)
    increments.append(tmp_path, "a", rng.normal(size=(200, 3)), 0)
    assert increments.release(options) == "published"
    files = sorted((tmp_path / "release.zarr").rglob("*"))
    increments.append(tmp_path, "b", rng.normal(size=(200, 3)) + 9, 1)
    with pytest.raises(GateError, match="drifted"):
        increments.release(options)
    assert sorted((tmp_path / "release.zarr").rglob("*")) == files
    assert increments.release(increments.configure(tmp_path, drift=50.0)) == "published"
    assert len(sorted((tmp_path / "release.zarr").rglob("*"))) > len(files)


def test_drift__of_one_night_does_not_stop_the_nights_after_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    options = increments.configure(tmp_path, drift=0.9)
    url = options.release.path
    for number, (name, far) in enumerate([("a", 0), ("b", 9), ("c", 0), ("d", 9)]):
        increments.append(tmp_path, name, rng.normal(size=(200, 3)) + far, number)
        if number == 0:
            increments.release(options)
    with pytest.raises(GateError, match=r"'b' .* drifted.*'d' .* drifted") as refused:
        increments.release(options)
    assert (refused.value.code, read_parts(url)) == ("drift", ["a", "c"])
    before = read_newest(url, "release")
    with pytest.raises(GateError, match="drifted"):  # each night again, and no generation of it
        increments.release(options)
    assert read_newest(url, "release") == before
    config = str(tmp_path / "run.toml")
    withdraw_command("b", config, 0.0)
    withdraw_command("d", config, 0.0)
    assert increments.release(options) == "nothing to do"
    assert withdraw_command("b", config, 0.0)["n_records"] == 0  # it is withdrawn already
    with pytest.raises(OptionError, match="no part"):
        withdraw_command("e", config, 0.0)
    assert read_parts(url) == ["a", "c"]


def test_drift__of_what_replaces_a_part_leaves_neither_of_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    options = increments.configure(tmp_path, drift=0.9)
    url = options.release.path
    for number, name in enumerate("abc"):
        increments.append(tmp_path, name, rng.normal(size=(200, 3)), number)
    increments.release(options)
    increments.append(tmp_path, "b", rng.normal(size=(200, 3)) + 9, 1, replacing=True)
    increments.append(tmp_path, "c", rng.normal(size=(200, 3)), 2, replacing=True)
    with pytest.raises(GateError, match=r"'b' .* drifted"):
        increments.release(options)
    # The collection holds the former records no more: an erasure would not find them.
    assert sorted(read_parts(url)) == ["a", "c"]
    with open_release(url) as opened:
        assert opened.features.shape == (400, 3)


def test_drift__in_a_first_run_leaves_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    options = increments.configure(tmp_path, drift=0.9)
    for number, far in enumerate([9, 0]):
        x = rng.normal(size=(200, 3)) + np.array([0, far, 0])  # both signs of the first feature
        increments.append(tmp_path, "ab"[number], x, number)
    with pytest.raises(GateError, match=r"'a' .* drifted"):
        increments.release(options)
    assert read_parts(options.release.path) == ["b"]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_drift__of_a_few_records_is_unknown_though_they_are_equal(n: int) -> None:
    reference = DriftReference.of(CoMoments.of(np.random.default_rng(1).normal(size=(400, 12))))
    for x in (np.zeros((n, 12)), np.full((n, 12), 0.1)):
        with pytest.raises(GateError):
            check_drift(measure_drift(reference, CoMoments.of(x)), 0.5, "monday")


def test_drift__of_records_that_all_have_gaps_is_unknown() -> None:
    reference = DriftReference.of(CoMoments.of(np.random.default_rng(1).normal(size=(400, 12))))
    with pytest.raises(GateError):
        check_drift(measure_drift(reference, CoMoments.of(np.empty((0, 12)))), 0.5, "monday")


def test_drift__a_new_history_begins_with_every_partition_or_not_at_all(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    options = increments.configure(tmp_path, drift=50.0)
    for number, far in enumerate([0, 9]):
        increments.append(tmp_path, "ab"[number], rng.normal(size=(200, 3)) + far, number)
    increments.release(options)
    before = read_newest(options.release.path, "release")
    with pytest.raises(GateError, match=r"'b' .* drifted"):
        increments.release(increments.configure(tmp_path, budget=0.1, drift=0.9))
    assert read_newest(options.release.path, "release") == before


def read_state(url: str) -> IncrementalState:
    found = read_incremental(url)
    assert found is not None
    return found[1]


def read_parts(url: str) -> list[str]:
    return [str(PrivateLedger(url).read(part.id)["name"]) for part in read_state(url).parts]
