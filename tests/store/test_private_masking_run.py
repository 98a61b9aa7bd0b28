"""Runs of private masking: what is charged, what is used again, and what a killed run leaves."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe.command.key_commands import account_command
from privpipe.errors import GuaranteeError, OptionError
from privpipe.pipeline.runs.configuration_file import read_options, write_options
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.pipeline.stages import clean
from privpipe.pipeline.stages.audit import audit_surrogates
from privpipe.store.collections.growing_collection import append_partition
from privpipe.store.collections.ingest import IngestOptions
from privpipe.store.keyring.account import Account
from privpipe.store.models import open_model
from privpipe.store.releases.published import check_release
from privpipe.store.sources.reading.source import SourceLayout
from tests.standard import write_standard
from tests.store.serial_run import run_serially, serial_flows


def options(folder: Path, name: str, **more: Any) -> RunOptions:
    method = {
        "name": "masking_private",
        "epsilon": 1.0,
        "delta": 1e-5,
        "n_surrogates": 60,
        "bound": {"*": (-400, 400)},
    } | more.pop("method", {})
    return RunOptions(
        collection={"path": str(folder / "records.zarr"), "desired": ["late"]},
        method=method,
        release={"path": str(folder / f"{name}.zarr")},
        audit={"holdout": 0.3},
        privacy={"account": str(folder / "account")} | more.pop("privacy", {}),
        gate=more.pop("gate", {}),
        cluster={"workers": 0},
    )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    write_standard(str(tmp_path / "records.zarr"), 2000, chunk_rows=300)
    return tmp_path


def release(chosen: RunOptions) -> np.ndarray:
    with serial_flows():
        run_serially(chosen)
    import zarr

    return np.asarray(zarr.open_group(chosen.release.path, mode="r")["features"])


def read_losses(folder: Path) -> list[tuple[float, float, int]]:
    account = Account(str(folder / "account"))
    return [(loss.epsilon, loss.delta, loss.n_charges) for loss in account.read_all()]


@pytest.mark.slow
def test_run__charges_once_whatever_is_made_of_the_moments(folder: Path) -> None:
    first = release(options(folder, "one"))
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    header = check_release(str(folder / "one.zarr"))
    promise = dict(header["guarantee"])
    assert (promise["kind"], promise["number"], promise["delta"]) == ("central_dp", 1.0, 1e-5)
    # The same again is the same noise, and costs nothing.
    assert np.array_equal(release(options(folder, "two")), first)
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    other = options(folder, "three", method={"epsilon": 0.5})
    with pytest.raises(GuaranteeError, match=r"lost delta 2e-05 in 2 releases"):
        release(other)
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}
    release(options(folder, "three", method={"epsilon": 0.5}, privacy={"limit": (2.0, 1e-4)}))
    assert {round(epsilon, 9) for epsilon, _, _ in read_losses(folder)} == {1.5}
    # The sum is 2.2, and what it means together is less.
    release(options(folder, "four", method={"epsilon": 0.7}, privacy={"limit": (2.0, 1e-4)}))
    (found, *_) = account_command(str(folder / "account"), limit="2.0,1e-4")["partitions"]
    assert found["joined_epsilon"] == pytest.approx(2.2)
    assert 1.2 < found["composed_epsilon"] < 1.5
    assert found["releases_left"] == 2
    with pytest.raises(GuaranteeError, match="above"):
        release(options(folder, "five", method={"epsilon": 1.9}, privacy={"limit": (2.0, 1e-4)}))


# Canaries take most of the time, and have keys of their own: the account knows nothing of them.
@pytest.mark.parametrize("canaries", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_run__that_was_killed_ends_with_the_same_noise_and_one_charge(
    folder: Path, monkeypatch: pytest.MonkeyPatch, canaries: bool
) -> None:
    if not canaries:
        monkeypatch.setattr(audit_surrogates, "audit_canaries", lambda _: None)
    seen: list[Any] = []

    def die(*_: Any, **__: Any) -> None:
        [model] = folder.glob("**/model.zarr")
        seen.append(open_model(str(model)).moments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(clean.cleaning_pass, "draw_surrogates", die)
        with pytest.raises(KeyboardInterrupt):
            release(options(folder, "one"))
    # Nothing of it was visible: the loss was given back.
    assert set(read_losses(folder)) == {(0.0, 0.0, 0)}
    release(options(folder, "one"))
    stored = open_model(str(folder / "one.model.zarr"))
    assert np.array_equal(stored.moments, seen[0])
    assert set(read_losses(folder)) == {(1.0, 1e-5, 1)}


INGEST = IngestOptions(
    layout=SourceLayout(features=("x",), labels=("sign",)),
    categorical=("sign",),
    chunk_bytes=300 * 3 * 8,
)


def append(folder: Path, number: int, *, seed: int | None = None) -> None:
    """A night's partition of a growing collection, in chunks that its edges do not meet."""
    rng = np.random.default_rng(number if seed is None else seed)
    x = rng.uniform(-4, 4, (1000 + 70 * number, 3))
    np.savez(folder / "night.npz", x=x, sign=(x[:, 0] > 0).astype("int8"))
    place, replacing = str(folder / "growing.zarr"), seed is not None
    night = str(folder / "night.npz"), place, f"night {number}", f"2026-11-{number + 1:02d}T00:00Z"
    append_partition(*night, INGEST, replacing=replacing)


def grow(folder: Path, name: str, **more: Any) -> Any:
    """A release of all partitions, and its model."""
    method = {"bound": {"*": (-4, 4)}, "partitions_at_most": 4, "epsilon": 3.0}
    chosen = options(folder, name, method=method, **more)
    release(chosen.change("collection", path=str(folder / "growing.zarr"), desired=("sign",)))
    return open_model(str(folder / f"{name}.model.zarr"))


def test_run__of_a_collection_that_grows_is_charged_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_surrogates, "audit_canaries", lambda _: None)
    models = []

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for number in range(3):
        append(folder, number)
        # Killed behind the claim of its place in the growth, and continued by the same model.
        with monkeypatch.context() as patched:
            patched.setattr(clean.cleaning_pass, "draw_surrogates", die)
            with pytest.raises(KeyboardInterrupt):
                grow(folder, f"release_{number}")
        models.append(grow(folder, f"release_{number}"))
        # Each partition once, whatever was released of it since.
        assert read_losses(folder) == [(3.0, 1e-5, 1)] * (number + 1)
    assert [model.n_partitions for model in models] == [1, 2, 3]
    for before, after in pairwise(models):
        known, now = before.list_sums(), after.list_sums()
        assert all(np.array_equal(known[run], now[run]) for run in known.keys() & now.keys())
        assert after.steps[:-1] == before.steps
    # What was read of each partition is what was held: the noisy number of records.
    for n_records, model in zip((1000, 2070, 3210), models, strict=True):
        count, deviation = model.moments[3, 3], model.deviations[3, 3]
        assert abs(count - 0.7 * n_records) < 5 * deviation + 3 * (0.21 * n_records) ** 0.5
    # The same again uses the same model; no partition loses anything.
    assert np.array_equal(grow(folder, "again").moments, models[2].moments)
    assert read_losses(folder) == [(3.0, 1e-5, 1)] * 3


def test_run__that_continues_a_model_twice_is_charged_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions of the second night are two draws of noise for the same first one."""
    monkeypatch.setattr(audit_surrogates, "audit_canaries", lambda _: None)
    for number in range(2):
        append(folder, number)
        grow(folder, f"release_{number}")
    append(folder, 1, seed=9)
    with pytest.raises(GuaranteeError, match="lost delta 2e-05 in 2 releases"):
        grow(folder, "other")
    assert {epsilon for epsilon, _, n in read_losses(folder) if n} == {3.0}
    grow(folder, "other", privacy={"limit": (8.0, 1e-4)})
    assert sorted(read_losses(folder))[-1] == (6.0, 2e-5, 2)
    # And what continues that one belongs to it.
    append(folder, 2)
    grow(folder, "third", privacy={"limit": (8.0, 1e-4)})
    assert sorted(read_losses(folder))[-1] == (6.0, 2e-5, 2)


@pytest.mark.parametrize("limit", [(1.0, 1.5), (1.0,), (-1.0, 1e-5), "3"])
def test_limit__takes_one_number_or_two(folder: Path, limit: Any) -> None:
    with pytest.raises((OptionError, ValueError)):
        options(folder, "one", privacy={"limit": limit})


def test_write_options__of_bounds_reads_as_they_are(folder: Path) -> None:
    """A diagnosis wrote a table that no one could read: its keys were no strings."""
    chosen = options(folder, "one", method={"bound": {"*": (-400.0, 4.5), "late": (0.0, 1.0)}})
    (path := folder / "run.toml").write_text(write_options(chosen, "bounds"))
    assert read_options(str(path)) == chosen
