"""Stores that throttle, lose answers, cut connections and sleep; credentials that expire.

With moto by default. `PRIVPIPE_TEST_S3` names another server, by a command that says ``{port}`` and
may say ``{folder}``: all is asked of it too, and whole runs go through faults (`make test-s3`).
`PRIVPIPE_TEST_S3_LAX` names one that ignores conditions, as s3rver does.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
import uuid
from pathlib import Path

import fsspec
import pytest

from privpipe.cluster.executors.boundary import run_sealed
from privpipe.errors import PrivpipeError, StoreError
from privpipe.flows.deployments import is_passing
from privpipe.pipeline.operations.health import tries_conditions
from privpipe.store.access.generation_log import publish_generation, read_newest
from privpipe.store.access.lease import LEASES, hold_lease
from privpipe.store.access.location import create_bytes
from privpipe.store.access.objects import list_keys, open_store, read_bytes
from privpipe.store.releases.published import check_release
from tests.store.conftest import _make_bucket, _use, serve_other
from tests.store.fault_proxy import Ask, Fault, FaultProxy
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection

Bucket = tuple[str, FaultProxy]
whole_runs = pytest.mark.skipif(
    "PRIVPIPE_TEST_S3" not in os.environ, reason="PRIVPIPE_TEST_S3: whole runs through faults"
)


@pytest.fixture
def place(faulty_bucket: Bucket) -> str:
    return f"{faulty_bucket[0]}/{uuid.uuid4().hex}"


@pytest.fixture
def proxy(faulty_bucket: Bucket) -> FaultProxy:
    faulty_bucket[1].seen.clear()
    return faulty_bucket[1]


def once(kind: str, when=lambda ask: True):
    """A fault that is done to the first request of a kind, and to no other."""
    left = [Fault(kind)]
    return lambda ask: left.pop() if left and when(ask) else None


def is_create(ask: Ask) -> bool:
    return ask.method == "PUT" and ask.conditional


def test_create__whose_answer_was_lost_is_known_to_be_ours(place: str, proxy: FaultProxy) -> None:
    """The client asks again and is told that there is an object: its own."""
    with proxy.faulty(once("lose", is_create)):
        assert create_bytes(f"{place}/object", b"first")
    assert proxy.count("lose") == 1
    assert not create_bytes(f"{place}/object", b"second")
    with proxy.faulty(once("lose", is_create)):
        assert not create_bytes(f"{place}/object", b"third")
    assert read_bytes(open_store(place, read_only=True), "object") == b"first"


def test_lease__taken_by_a_request_whose_answer_was_lost(place: str, proxy: FaultProxy) -> None:
    with proxy.faulty(once("lose", is_create)), hold_lease(place):
        with pytest.raises(StoreError, match="Another run holds"), hold_lease(place):
            pass
    with hold_lease(place):
        pass


@pytest.mark.slow
def test_lease__is_kept_through_a_store_that_throttles(place: str, proxy: FaultProxy) -> None:
    """Shorter than the lease; the thread that renews must live on."""
    until = time.monotonic() + 1.2

    def throttle(ask: Ask) -> Fault | None:
        return Fault("throttle") if time.monotonic() < until else None

    with hold_lease(place, seconds=2.0):
        with proxy.faulty(throttle):
            time.sleep(1.0)
        time.sleep(2.5)  # longer than the lease
        with pytest.raises(StoreError, match="Another run holds"), hold_lease(place):
            pass
    assert proxy.count("throttle") > 0


@pytest.mark.slow
def test_lease__of_a_holder_that_slept_is_anothers(place: str, proxy: FaultProxy) -> None:
    """Its renewal arrives when another holds the next one: that one stands, and it is told so."""

    def sleep(ask: Ask) -> Fault | None:
        renews = ask.method == "PUT" and not ask.conditional and "00000000.json" in ask.path
        return Fault(None, 2.5) if renews else None

    # The first lasts a second; it sleeps in its renewal while the second one takes over.
    with (  # noqa: PT012 - what is raised comes when the lease is given back
        proxy.faulty(sleep),
        pytest.raises(StoreError, match="was lost to another run") as told,
        hold_lease(place, seconds=1.0),
    ):
        time.sleep(1.2)
        with hold_lease(place, seconds=60.0):
            time.sleep(2.5)
            kept = list_keys(open_store(place, read_only=True), f"{LEASES}/")
            assert kept[-1].endswith("00000001.json")
    assert told.value.code == "busy"


def test_generations__whose_answers_were_lost_are_made_once(place: str, proxy: FaultProxy) -> None:
    with proxy.faulty(once("lose", is_create)):
        first = publish_generation(place, "release", {"n": 1}, None)
    made: list[int] = []
    refused: list[str] = []

    def write(number: int) -> None:
        try:
            publish_generation(place, "release", {"n": number}, first)
            made.append(number)
        except StoreError as error:
            refused.append(error.code)

    left = [Fault("lose")] * 4
    with proxy.faulty(lambda ask: left.pop() if is_create(ask) and left else None):
        rivals = [threading.Thread(target=write, args=(number,)) for number in (2, 3, 4)]
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join()
    newest = read_newest(place, "release")
    assert newest is not None
    assert (newest.number, newest.content["n"]) == (2, made[0])
    assert len(made) == 1
    assert refused == ["generation-taken"] * 2


def random_faults(seed: int):
    """Faults of every kind, a tenth of all requests; the same for a seed and an order."""
    chosen = random.Random(seed)

    def rule(ask: Ask) -> Fault | None:
        if chosen.random() > 0.1:
            return None
        kind = chosen.choice(["throttle", "lose", "reset", "cut"])
        return Fault(kind if ask.method != "HEAD" or kind != "cut" else "reset")

    return rule


@whole_runs
@pytest.mark.parametrize("seed", range(3))
def test_run__through_faults_makes_the_same_release(
    place: str, proxy: FaultProxy, seed: int
) -> None:
    """What the client does not bear ends the run by an error that passes; the next goes on."""
    write_small_collection(f"{place}/records.zarr")
    with serial_flows():
        run_serially(make_options(f"{place}/records.zarr", f"{place}/wanted.zarr"))
        options = make_options(f"{place}/records.zarr", f"{place}/release.zarr")
        attempts = 0
        with proxy.faulty(random_faults(seed)):
            while (attempts := attempts + 1) < 40:
                try:
                    run_sealed(run_serially, options)
                    break
                except PrivpipeError as error:
                    problem = error
                # Busy: its own lease, which it could not give back.
                assert is_passing(problem) or problem.code == "busy", problem.message
                _expire(place)
        assert proxy.count("lose")
        assert proxy.count("throttle")
    check_release(f"{place}/release.zarr", verify=True)
    assert _objects(f"{place}/release.zarr") == _objects(f"{place}/wanted.zarr")


def _expire(place: str) -> None:
    """Let the lease of a run that ended run out, as it would by waiting."""
    folder = f"{place}/.release.zarr.privpipe/{LEASES}"
    file_system, path = fsspec.core.url_to_fs(folder)
    for _ in range(20):
        try:
            file_system.invalidate_cache()
            for name in file_system.ls(path, detail=False):
                old = json.dumps({"holder": "dead", "expires": time.time() - 1}).encode()
                file_system.pipe_file(name, old)
            return
        except FileNotFoundError:
            return
        except Exception:
            continue


def _objects(url: str) -> dict[str, bytes | None]:
    store = open_store(url, read_only=True)
    return {key: read_bytes(store, key) for key in list_keys(store) if key != "zarr.json"}


@whole_runs
def test_run__whose_credentials_expire_says_so_and_goes_on_with_new_ones(
    place: str, proxy: FaultProxy
) -> None:
    write_small_collection(f"{place}/records.zarr")
    options = make_options(f"{place}/records.zarr", f"{place}/release.zarr")
    asked = [0]

    def expire(ask: Ask) -> Fault | None:
        asked[0] += 1
        return Fault("expire") if asked[0] > 60 else None

    with serial_flows():
        with proxy.faulty(expire), pytest.raises(StoreError) as told:
            run_sealed(run_serially, options)
        assert told.value.code == "credentials"
        assert "Renew" in told.value.remedy
        assert told.value.__context__ is None
        assert read_bytes(open_store(f"{place}/release.zarr", read_only=True), "zarr.json") is None
        _expire(place)
        run_serially(options)
    check_release(f"{place}/release.zarr", verify=True)


@pytest.mark.skipif("PRIVPIPE_TEST_S3_LAX" not in os.environ, reason="PRIVPIPE_TEST_S3_LAX")
def test_run__in_a_bucket_that_ignores_conditions_is_refused(tmp_path: Path) -> None:
    """A server as old stores are: it takes a second write of what must not exist."""
    with serve_other(os.environ["PRIVPIPE_TEST_S3_LAX"], tmp_path) as host, _use(f"http://{host}"):
        place = _make_bucket()
        assert not tries_conditions(place)
        with pytest.raises(StoreError, match="ignores conditions") as told, hold_lease(place):
            pytest.fail("was held")
        assert told.value.code == "conditions-ignored"
        assert list_keys(open_store(place, read_only=True)) == []


def test_lease__in_a_store_that_ignores_conditions_is_refused(
    place: str, proxy: FaultProxy
) -> None:
    with proxy.faulty(lambda ask: Fault("ignore") if is_create(ask) else None):
        assert not tries_conditions(place)
        with pytest.raises(StoreError, match="ignores conditions") as told, hold_lease(place):
            pytest.fail("was held")
    assert told.value.code == "conditions-ignored"
    assert list_keys(open_store(place, read_only=True)) == []
