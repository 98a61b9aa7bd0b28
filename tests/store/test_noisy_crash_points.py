"""A noisy run that dies at any change of what is stored, and goes on: equal bytes, one charge.

Changes of the account count as those of the release do. Where anything of a record was written,
its loss stands in the account, also before the run goes on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from privpipe.errors import StoreError
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.keyring.account import Account, Loss
from privpipe.store.releases.published import check_release
from tests.store.serial_run import read_tree, run_serially, serial_flows, write_small_collection
from tests.store.test_crash_points import MANIFEST, CrashingStorage, KilledError

EVERY = 1 if os.environ.get("PRIVPIPE_FULL_PROOFS") else 29
"""All points, or some and those of the account."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source, public records, and a home for keys: the same draws for every run."""
    write_small_collection(str(tmp_path / "records.zarr"))
    write_small_collection(str(tmp_path / "public.zarr"), seed=8)
    monkeypatch.setenv("PRIVPIPE_KEYS", str(tmp_path / "keys"))
    return tmp_path


def make_noisy(home: Path, folder: Path) -> RunOptions:
    """A filter learned on public records, discrete noise, an account beside the release."""
    folder.mkdir()
    return RunOptions(
        collection={
            "path": str(home / "records.zarr"),
            "desired": ["wanted"],
            "confidential": ["secret"],
        },
        training={"path": str(home / "public.zarr"), "public": True},
        method={
            "name": "noisy",
            "epsilon": 1.5,
            "noise": "discrete",
            "filter": {"name": "pca", "n_filtered": 3},
        },
        release={"path": str(folder / "release.zarr")},
        privacy={"account": str(folder / "account"), "limit": 2.0},
        audit={"holdout": 0.4, "adversaries": []},
        gate={"enforce": False},
    )


@contextmanager
def watch_links(storage: CrashingStorage, places: list[int] | None = None) -> Iterator[None]:
    """Entries of the account are links: changes like any other."""
    link = os.link

    def noted(source: str, target: str, **more: object) -> None:
        if places is not None and str(source).startswith(str(storage.folder)):
            places.append(storage.changes)
        guarded(source, target, **more)

    guarded = storage.guard(link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", noted)
        yield


def read_loss(folder: Path) -> Loss | None:
    found = list(Account(str(folder / "account")).read_all())
    assert len(found) <= 1
    return found[0] if found else None


def read_bytes(folder: Path) -> dict[str, bytes]:
    """All of a release and its model but the roots, which hold times, runs and the audit.

    An audit draws noise of its own: its records are others.
    """
    return {
        name: content
        for place in ("release.zarr", "release.model.zarr")
        for name, content in read_tree(folder / place).items()
        if name != MANIFEST
    }


@pytest.mark.slow
def test_noisy_run__dead_at_any_point_goes_on_to_the_same_bytes_for_one_charge(home: Path) -> None:
    reference = home / "reference"
    storage, places = CrashingStorage(reference), list[int]()
    options = make_noisy(home, reference)
    with serial_flows(), storage(), watch_links(storage, places):
        run_serially(options)
    wanted = read_bytes(reference)
    assert len(wanted) > 20
    [_, *places] = places  # the first makes the frame of the records' sketch
    assert len(places) == 8  # reserved, confirmed, registered; links of the account's chain
    points = {*range(7, storage.changes, EVERY), *places, places[0] + 1, storage.changes - 1}
    seen = set()
    for point in sorted(points):
        folder = home / f"{point:03d}"
        options = make_noisy(home, folder)
        crash = CrashingStorage(folder, dies_at=point)
        with serial_flows(), crash(), watch_links(crash):
            with pytest.raises((StoreError, KilledError)):
                run_serially(options)
        assert crash.is_dead
        written = any("features/c/" in str(path) for path in folder.rglob("*") if path.is_file())
        loss = read_loss(folder)
        seen.add((written, loss is not None and loss.epsilon > 0))
        if written:
            assert loss is not None
            assert loss.epsilon == 1.5
        with serial_flows():
            run_serially(options)
        loss = read_loss(folder)
        assert loss is not None
        assert (loss.epsilon, loss.n_charges, loss.n_open) == (1.5, 1, 0), point
        check_release(str(folder / "release.zarr"), verify=True)
        assert read_bytes(folder) == wanted, point
    assert seen == {(False, False), (False, True), (True, True)}
