"""The release protocol where nothing can be renamed or locked: in memory and in a bucket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pytest
import zarr.storage

from privpipe.errors import OptionError, StoreError
from privpipe.store.access import lease
from privpipe.store.access.location import copy_objects, create_bytes
from privpipe.store.access.objects import delete_tree, list_keys, open_store, read_bytes
from privpipe.store.access.workspace import has_workspace, hold_workspace
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release
from privpipe.store.releases.published import check_release
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection


def test_create_bytes__only_the_first_of_many_writes(place: str):
    won: list[int] = []

    def create(number: int) -> None:
        if create_bytes(f"{place}/object", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert read_bytes(open_store(place, read_only=True), "object") == str(won[0]).encode()


@pytest.mark.slow
def test_run__publishes_and_runs_again_as_a_no_op(place: str):
    write_small_collection(f"{place}/records.zarr", n_records=110)
    options = make_options(f"{place}/records.zarr", f"{place}/release.zarr")
    with serial_flows():
        run_serially(options)
        header = check_release(f"{place}/release.zarr", verify=True)
        assert not has_workspace(f"{place}/release.zarr")
        run_serially(options)
    assert check_release(f"{place}/release.zarr", verify=True) == header
    model = open_model(f"{place}/release.model.zarr")
    # Not on workers of a cluster that another test has open: neither this memory nor these
    # credentials are theirs.
    here = dask.config.set(scheduler="synchronous")
    with here, open_release(f"{place}/release.zarr") as release:
        assert release.features.shape == (110, model.n_features_out)
        assert np.isfinite(release.features.values).all()


@pytest.mark.slow
def test_run__crashed_at_any_write_resumes_and_nothing_is_visible_before(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Some early writes and the last ones, where model and release appear."""
    # The server of the bucket is slow: three chunks there, six in memory, the last one not full.
    in_memory = place.startswith("memory")
    write_small_collection(f"{place}/records.zarr", n_records=260 if in_memory else 110)
    counted, dies_at = 0, 10**9

    def guard(change):
        async def guarded(self, key, *args, **kwargs):
            nonlocal counted
            counted += 1
            if counted > dies_at:
                raise OSError(5, "killed by the test")
            return await change(self, key, *args, **kwargs)

        return guarded

    def guarded_create(url: str, value: bytes) -> bool:
        nonlocal counted
        counted += 1
        if counted > dies_at:
            raise OSError(5, "killed by the test")
        return create_bytes(url, value)

    for name in ("set", "delete"):
        change = getattr(zarr.storage.FsspecStore, name)
        monkeypatch.setattr(zarr.storage.FsspecStore, name, guard(change))

    def guarded_copy(source: str, target: str, keys: list[str]) -> None:
        for key in keys:  # each of them may be the last
            nonlocal counted
            counted += 1
            if counted > dies_at:
                raise OSError(5, "killed by the test")
            copy_objects(source, target, [key])

    monkeypatch.setattr("privpipe.store.access.location.copy_objects", guarded_copy)
    monkeypatch.setattr("privpipe.store.access.location.create_bytes", guarded_create)
    source, reference = f"{place}/records.zarr", f"{place}/reference.zarr"
    with serial_flows():
        counted = 0
        monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / "account"))
        run_serially(make_options(source, reference))
        total = counted
        wanted = _objects(reference)
        some = (9, 1) if in_memory else (60, 9)  # each point is two runs
        for point in sorted(
            {*range(0, total, some[0]), *range(total - 24, total, some[1]), total - 1}
        ):
            release = f"{place}/{point}.zarr"
            # Releases of the points before are no earlier releases of this one.
            monkeypatch.setenv("PRIVPIPE_ACCOUNT", str(tmp_path / f"account-{point}"))
            options = make_options(source, release)
            counted, dies_at = 0, point
            with pytest.raises((StoreError, OSError)):
                run_serially(options)
            dies_at = 10**9
            if read_bytes(open_store(release, read_only=True), "zarr.json") is None:
                with pytest.raises(StoreError):
                    open_release(release)
            else:
                check_release(release, verify=True)
            run_serially(options)
            assert _objects(release) == wanted
            assert not has_workspace(release)
            check_release(release, verify=True)
    assert total > 50


def _objects(url: str) -> dict[str, bytes | None]:
    store = open_store(url, read_only=True)
    return {key: read_bytes(store, key) for key in list_keys(store) if key != "zarr.json"}


@pytest.mark.slow
def test_run__another_release_published_meanwhile_is_not_replaced(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    """Between the last check and the root document somebody else was faster."""
    write_small_collection(f"{place}/records.zarr", n_records=110)
    url = f"{place}/release.zarr"

    def lose(place_of_root: str, value: bytes) -> bool:
        if place_of_root == f"{url}/zarr.json":
            assert create_bytes(place_of_root, b'{"other": 1}')
        return create_bytes(place_of_root, value)

    monkeypatch.setattr("privpipe.store.arrays.destination.create_bytes", lose)
    with serial_flows(), pytest.raises(StoreError, match="nothing is ever overwritten") as caught:
        run_serially(make_options(f"{place}/records.zarr", url))
    assert caught.value.code == "exists"
    assert read_bytes(open_store(url, read_only=True), "zarr.json") == b'{"other": 1}'


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("s3", marks=pytest.mark.slow)], indirect=True
)
def test_run__release_inside_the_collection_is_refused(place: str):
    write_small_collection(f"{place}/records.zarr", n_records=110)
    for inside in ("records.zarr", "records.zarr/release.zarr"):
        with serial_flows(), pytest.raises(OptionError, match="share a place"):
            run_serially(make_options(f"{place}/records.zarr", f"{place}/{inside}"))


def test_hold_workspace__second_run_is_refused_until_the_first_ends(place: str):
    url = f"{place}/release.zarr"
    with hold_workspace(url):
        with pytest.raises(StoreError, match="Another run holds") as caught, hold_workspace(url):
            pass
        assert caught.value.code == "busy"
    with hold_workspace(url):
        pass
    assert not has_workspace(url)


def test_hold_lease__of_a_killed_holder_expires_and_only_one_takes_it(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    work = f"{place}/work"
    create_bytes(
        f"{work}/lease/00000000.json",
        json.dumps({"holder": "dead", "expires": time.time() - 1}).encode(),
    )
    # Both see the same expired lease before either acts.
    barrier = threading.Barrier(2)
    expired = lease._has_expired

    def wait_for_both(url: str) -> bool:
        found = expired(url)
        if url.endswith("00000000.json") and barrier.n_waiting < 2 and not entered:
            barrier.wait(timeout=30)
        return found

    entered: list[str] = []
    refused: list[str] = []
    done = threading.Event()

    def hold(name: str) -> None:
        try:
            with lease.hold_lease(work, seconds=60):
                entered.append(name)
                done.wait(timeout=30)
        except StoreError as error:
            refused.append(error.code)
            done.set()

    monkeypatch.setattr(lease, "_has_expired", wait_for_both)
    threads = [threading.Thread(target=hold, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(entered) == 1
    assert refused == ["busy"]


@pytest.mark.slow
def test_hold_lease__is_renewed_while_held_and_reported_when_lost(place: str):
    work = f"{place}/work"
    with lease.hold_lease(work, seconds=1.0):
        time.sleep(2.0)
        with pytest.raises(StoreError, match="Another run holds"), lease.hold_lease(work):
            pass
    with (  # noqa: PT012 - what is raised comes when the lease is given back
        pytest.raises(StoreError, match="was lost to another run"),
        lease.hold_lease(work, seconds=1.0),
    ):
        create_bytes(f"{work}/lease/00000001.json", b"{}")
        time.sleep(1.0)
    delete_tree(open_store(work))


@pytest.mark.slow
def test_hold_lease__that_was_lost_ends_the_work_at_once(place: str):
    """Another works: the end of the work may be hours away, and errors would tell of its traces.

    In any thread, and where Ctrl-C is ignored, as in a shell's background process.
    """

    def hold(work: str, *, fails: bool) -> str:
        begun = time.monotonic()
        with (  # noqa: PT012 - what is raised comes when the lease is given back
            pytest.raises(StoreError, match="was lost to another run") as told,
            lease.hold_lease(work, seconds=60.0 if fails else 1.0),
        ):
            create_bytes(f"{work}/lease/00000001.json", b"{}")
            if fails:
                raise FileNotFoundError("the other one has tidied up")
            while time.monotonic() < begun + 30:
                time.sleep(0.01)
        assert time.monotonic() < begun + 20
        return told.value.code

    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ThreadPoolExecutor() as other:
            there = other.submit(hold, f"{place}/there", fails=False)
            assert hold(f"{place}/here", fails=False) == "busy"
            assert hold(f"{place}/fails", fails=True) == "busy"
            assert there.result() == "busy"
    finally:
        signal.signal(signal.SIGINT, usual)


AFTER = """
import sys
from privpipe.store.access import lease
with lease.hold_lease("memory://work"):
    pass
def call(): return "called"
sys.setprofile(lambda *event: None)
print(call())
"""


def test_hold_lease__leaves_nothing_that_the_interpreter_looks_for():
    """An error of NULL, taken back after each lease, was looked for for ever: under a profiler, a
    debugger or a tracer of lines the next call did not end."""
    given = [sys.executable, "-c", AFTER]
    done = subprocess.run(given, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "called\n"


@pytest.mark.slow
def test_hold_lease__that_ran_out_is_taken_anew_and_never_written_over(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    """A machine that was suspended: who found the lease expired may be about to take the next."""
    work, slept = f"{place}/work", threading.Event()
    away = SimpleNamespace(time=lambda: time.time() + 60 * slept.is_set())
    with lease.hold_lease(work, seconds=4.0):
        first = read_bytes(open_store(work), "lease/00000000.json")
        monkeypatch.setattr(lease, "time", away)
        slept.set()
        end = time.monotonic() + 30
        while lease._newest(work) != 1 and time.monotonic() < end:
            time.sleep(0.05)
        assert lease._newest(work) == 1
        assert read_bytes(open_store(work), "lease/00000000.json") == first
        # Whoever had read that the first one ran out comes too late.
        assert not create_bytes(f"{work}/lease/00000001.json", b"{}")
    assert list_keys(open_store(work, read_only=True)) == []


def test_hold_lease__by_a_clock_far_from_the_stores_is_refused(
    place: str, monkeypatch: pytest.MonkeyPatch
):
    """A lease of this holder would look expired, or last for ever, to all others."""
    real = time.time
    for skew, bears in ((20.0, True), (-20.0, True), (45.0, False), (-3600.0, False)):
        work = f"{place}/{skew}"
        with monkeypatch.context() as patch:
            patch.setattr(lease, "time", SimpleNamespace(time=lambda skew=skew: real() + skew))
            if bears:
                with lease.hold_lease(work):
                    pass
                continue
            with pytest.raises(StoreError, match="clock") as caught, lease.hold_lease(work):
                pass
        assert caught.value.code == "clock-skew"
        assert list_keys(open_store(work, read_only=True)) == []
