"""All of it at once, with real processes: a schedule, a gate, a cancelled run, and a kill of each.

Minutes on a small machine: runs where PRIVPIPE_TEST_WHOLE is set, to a number of records for
another size. `PRIVPIPE_TEST_S3` names another S3 server than moto; one that keeps its objects in
``{folder}`` is killed as well.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from privpipe.store.keyring.account_chain import append_link
from tests.flows.canaries import Canaries, search_bytes, search_tree
from tests.operations.whole_cluster import POSTGRES, WholeCluster, wait_for
from tests.operations.whole_runs import (
    SECRETS,
    check_same,
    is_published,
    name_of,
    open_installation,
    pause,
    read_keys,
    schedule,
    wait_cleaning,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("PRIVPIPE_TEST_WHOLE" not in os.environ, reason="PRIVPIPE_TEST_WHOLE"),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeCluster]:
    with open_installation(tmp_path_factory.mktemp("whole")) as whole:
        yield whole


TIMES = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(1000))


def test_schedule__fires_by_itself_cleans_and_publishes(cluster: WholeCluster) -> None:
    schedule(cluster, "* * * * *", active=True)
    cluster.command("deploy", "prefect.yaml")

    def find_scheduled() -> str | None:
        made = [key for key in read_keys(cluster, "20") if key.endswith(".zarr/zarr.json")]
        made = [key for key in made if ".model." not in key]
        return made[0].partition(".")[0] if made else None

    name = wait_for("a scheduled release", find_scheduled, 240)
    check_same(cluster, name)
    if POSTGRES is not None:
        assert not list((cluster.folder / "prefect").glob("*.db"))
    # A release is visible a little before its run has ended.
    completed = {"flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}}}
    wait_for(
        "a scheduled run that ended well",
        lambda: any(run["auto_scheduled"] for run in cluster.ask("/flow_runs/filter", completed)),
        120,
    )
    pause(cluster)


def test_gate__that_is_closed_fails_the_run_and_says_so(cluster: WholeCluster) -> None:
    at = next(TIMES)
    kind, message = cluster.wait_end(cluster.begin("gated.toml", at.isoformat()))
    assert kind == "FAILED"
    assert "GateError" in message
    assert "The gate stays closed" in message
    shown = cluster.read_page("metrics").decode()
    assert re.search(r'privpipe_run_gate\{.*gate="failed".*\} 1.0', shown)
    assert not is_published(cluster, f"gated-{name_of(at)}")


def test_run__that_was_cancelled_goes_on(cluster: WholeCluster) -> None:
    at = next(TIMES)
    run = cluster.begin("run.toml", at.isoformat())
    wait_cleaning(cluster, name_of(at))
    cluster.cancel(run)
    assert cluster.wait_end(run)[0] == "CANCELLED"
    assert not is_published(cluster, name_of(at))
    assert read_keys(cluster, f".{name_of(at)}.zarr.privpipe/ledger/")
    finish(cluster, at)


def finish(cluster: WholeCluster, at: datetime) -> None:
    """A run of the same logical time ends well; a dead one's lease must run out first."""
    run = cluster.begin("run.toml", at.isoformat())
    wait_completed(cluster, run)
    check_same(cluster, name_of(at))


def wait_completed(cluster: WholeCluster, run: str, seconds: float = 420.0) -> None:
    """Until the run has ended well by itself, whatever it was called in between."""
    wait_for(f"end of {run}", lambda: cluster.state(run)[0] == "COMPLETED", seconds)


def test_queue__starts_runs_one_by_one_in_the_order_of_their_times(cluster: WholeCluster) -> None:
    times = [next(TIMES) for _ in range(3)]
    runs = [cluster.begin("run.toml", at.isoformat()) for at in times]
    for run in runs:
        wait_completed(cluster, run)
    found = [cluster.ask(f"/flow_runs/{run}") for run in runs]
    assert all(one["name"] == f"run-{at:%Y-%m-%d}" for one, at in zip(found, times, strict=True))
    said = cluster.ask("/logs/filter", {"logs": {"flow_run_id": {"any_": runs[:1]}}})
    assert any(re.match(r"clean    [0-9,]+ records in .* s$", one["message"]) for one in said)
    spans = [(one["start_time"], one["end_time"]) for one in found]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans)), spans
    # The lease of such a slot ends sound runs where the server is away.
    assert not any(
        one["state"]["state_details"]["deployment_concurrency_lease_id"] for one in found
    )


VICTIMS = ("worker-1", "scheduler", "runs", "driver", "server", "database", "s3")


@pytest.mark.parametrize("victim", VICTIMS)
def test_kill__of_any_process_makes_the_same_release(cluster: WholeCluster, victim: str) -> None:
    if victim == "database" and POSTGRES is None:
        pytest.skip("there is no PostgreSQL here")
    if victim == "s3" and not cluster.keeps_objects:
        pytest.skip("this S3 server keeps its objects in memory")
    at = next(TIMES)
    run = cluster.begin("run.toml", at.isoformat())
    wait_cleaning(cluster, name_of(at))
    if victim == "driver":
        os.kill(cluster.find_driver(run), signal.SIGKILL)
    else:
        cluster.kill(victim)
        # What supervisors do: workers end with their scheduler and are started again with it.
        again = ["worker-1", "worker-2"] if victim == "scheduler" else []
        for name in again:
            wait_for(f"{name} ends", lambda name=name: cluster.processes[name].poll() is not None)
        cluster.start(victim, *again)
    wait_completed(cluster, run)  # nothing by hand
    check_same(cluster, name_of(at))


def test_kill__of_a_driver_before_its_first_heartbeat_makes_the_release(
    cluster: WholeCluster,
) -> None:
    at = next(TIMES)
    run = cluster.begin("run.toml", at.isoformat())
    wait_for("the run", lambda: cluster.state(run)[0] == "RUNNING", 180)
    os.kill(cluster.find_driver(run), signal.SIGKILL)
    wait_completed(cluster, run)
    check_same(cluster, name_of(at))


OUTAGE = float(os.environ.get("PRIVPIPE_TEST_OUTAGE", "290"))
"""Seconds without Prefect's server: more than the 225 s after which a lease is renewed."""


@pytest.mark.timeout(1800)  # five minutes without a server, a run, and what else the machine does
def test_outage__of_the_server_for_minutes_ends_no_run(cluster: WholeCluster) -> None:
    at, later = next(TIMES), next(TIMES)
    run = cluster.begin("run.toml", at.isoformat())
    wait_cleaning(cluster, name_of(at))
    waiting = cluster.begin("run.toml", later.isoformat())
    slow = [cluster.processes[name].pid for name in ("worker-1", "worker-2")]
    for group in slow:
        os.killpg(group, signal.SIGSTOP)
    cluster.kill("server")
    begun = time.monotonic()
    try:
        time.sleep(OUTAGE - 30)
    finally:
        for group in slow:
            os.killpg(group, signal.SIGCONT)
    wait_for("the release", lambda: is_published(cluster, name_of(at)), 120)
    time.sleep(max(0.0, begun + OUTAGE - time.monotonic()))
    cluster.start("server", *(["runs"] if cluster.processes["runs"].poll() is not None else []))
    wait_completed(cluster, run, 900)
    wait_completed(cluster, waiting, 900)
    check_same(cluster, name_of(at))
    check_same(cluster, name_of(later))


def test_gaps__are_said_and_filled_in_order(cluster: WholeCluster) -> None:
    """Three hours promised a release each while nothing ran."""
    since = datetime.now(UTC) - timedelta(hours=4, minutes=5)
    promise = {"since": since.isoformat(), "schedules": [["5 * * * *", "Etc/UTC"]]}
    promise["config"] = str(cluster.folder / "run.toml")
    noted = {"deployment": "release", "promises": [promise], "waived": []}
    append_link(cluster.environment["PRIVPIPE_ACCOUNT"], "promise", noted)
    with pytest.raises(AssertionError, match="promised releases of release are not there"):
        cluster.command("gaps", "release")
    queued = re.findall(r"queued   (\S+)", cluster.command("gaps", "release", "--fill"))
    assert len(queued) >= 3
    assert queued == sorted(queued)

    names = [name_of(datetime.fromisoformat(time_)) for time_ in queued]
    wait_for("all are made", lambda: all(is_published(cluster, name) for name in names), 600)
    for name in names:
        check_same(cluster, name)

    def is_filled() -> bool:
        try:
            return "missing" not in cluster.command("gaps", "release")
        except AssertionError as problem:  # a run's own gap between two states
            return "missing" not in str(problem)

    # The newest may be due for less than an hour, and have no run.
    wait_for("nothing is missing", is_filled, 60)


def test_canaries__are_in_no_log_database_or_page(cluster: WholeCluster) -> None:
    """Of records, after all of the above: logs, Prefect's folder and database, scratch, pages."""
    run = cluster.begin("run.toml", next(TIMES).isoformat())
    assert cluster.wait_end(run)[0] == "COMPLETED"
    with np.load(cluster.folder / "records.npz") as records:
        numbers = {name: records[name] for name in ("x", "wanted")}
    canaries = Canaries(numbers, {"secret": SECRETS})
    content = (cluster.folder / "records.npz").read_bytes()
    assert search_bytes(canaries, content) == {"x", "wanted", "secret"}
    seen = cluster.folder / "seen"
    seen.mkdir()
    for page in ("metrics", "privpipe", "info/main/workers.html", "info/main/logs.html"):
        (seen / page.replace("/", "-")).write_bytes(cluster.read_page(page))
    assert b"privpipe_chunks" in (seen / "metrics").read_bytes()
    if POSTGRES is not None:
        (seen / "database.sql").write_text(cluster.dump_database())
        assert "privpipe-release" in (seen / "database.sql").read_text()
    for log in cluster.folder.glob("*.log"):
        (seen / log.name).write_bytes(log.read_bytes())
    for name in ("prefect", "scratch-1", "scratch-2"):
        if (cluster.folder / name).exists():
            shutil.copytree(cluster.folder / name, seen / name)
    assert search_tree(canaries, seen) == {}
