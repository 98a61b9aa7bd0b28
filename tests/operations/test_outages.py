"""Each process of an installation is away for minutes in the middle of a run, then comes back.

The schedule goes on meanwhile. Nothing is done by hand but what a supervisor does. Afterwards each
release that the schedule promised is there, once, in order, with the same bytes. An hour on a small
machine: runs where PRIVPIPE_TEST_WHOLE is set. PRIVPIPE_TEST_OUTAGE is seconds of an outage: by
default more than all that ends by itself within (a lease of 120 s, heartbeats of 120 s, connections
of 60 s, a slot's lease of 225 s, a worker's life of 300 s).
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from privpipe.flows.deployments import OUTAGES
from tests.operations.whole_cluster import POSTGRES, WORKERS, WholeCluster, stopped, wait_for
from tests.operations.whole_runs import (
    check_same,
    is_published,
    name_of,
    open_installation,
    read_writes,
    schedule,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif("PRIVPIPE_TEST_WHOLE" not in os.environ, reason="PRIVPIPE_TEST_WHOLE"),
]

OUTAGE = float(os.environ.get("PRIVPIPE_TEST_OUTAGE", "310"))
EVERY = 2
"""Minutes between two releases of the schedule."""


@dataclass(frozen=True)
class Accident:
    """What goes away.

    Parameters
    ----------
    killed
        Processes; "driver" is that of the run.
    frozen
        The driver is stopped, as a machine that is suspended, and goes on later.
    held
        The work is held up as well, so that the run lasts longer than the outage.
    at_once
        What is killed is started again at once.
    deploys
        Instead of an outage somebody deploys again, which deletes the runs to come.
    """

    killed: tuple[str, ...] = ()
    frozen: bool = False
    held: bool = False
    at_once: bool = False
    deploys: bool = False


ACCIDENTS = {
    "server": Accident(("server",), held=True),
    "database": Accident(("database",), held=True),
    "runs": Accident(("runs",), held=True),
    "scheduler": Accident(("scheduler",)),
    "worker": Accident(("worker-1",)),
    "workers": Accident(WORKERS),
    "s3": Accident(("s3",)),
    "machine of the runs": Accident(("runs", "driver")),
    "suspended driver": Accident(frozen=True),
    # Its worker waits for the process that it started; a new one starts a second process.
    "suspended driver and a second": Accident(("runs",), frozen=True, at_once=True),
    "deployed again": Accident(deploys=True),
    "everything": Accident(("runs", "driver", *WORKERS, "scheduler", "server", "database", "s3")),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeCluster]:
    """An installation whose schedule fires through all accidents."""
    with open_installation(tmp_path_factory.mktemp("outages")) as whole:
        schedule(whole, f"*/{EVERY} * * * *", active=True)
        whole.command("deploy", "prefect.yaml")
        yield whole


def find_cleaning(cluster: WholeCluster) -> tuple[str, datetime, int] | None:
    """A scheduled run that cleans, its logical time, and its process."""
    # By its lines: a busy object store lists chunks when the run has long been done.
    _, begins, said = (cluster.folder / "runs.log").read_text().rpartition("Beginning flow run")
    is_trained = re.search(r"^train    [0-9,]+ records  ", said, re.MULTILINE)
    if not begins or not is_trained or "\nclean    " in said:
        return None
    asked = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
    for run in cluster.ask("/flow_runs/filter", asked):
        at, made = (datetime.fromisoformat(run[x]) for x in ("expected_start_time", "created"))
        # Sooner after it was scheduled Prefect's automations are late; see the RUNBOOK, Order.
        if at > made + timedelta(minutes=6):
            return str(run["id"]), at, cluster.find_driver(run["id"])
    return None


def play(cluster: WholeCluster, accident: Accident, driver: int) -> None:
    """Away, and back."""
    held = [cluster.processes[name].pid for name in WORKERS] if accident.held else []
    if accident.frozen:
        held.append(os.getpgid(driver))
    with stopped(held):
        for name in accident.killed:
            if name == "driver":
                os.kill(driver, signal.SIGKILL)
            elif name in cluster.processes:
                cluster.kill(name)
        if accident.at_once:
            cluster.start(*accident.killed)
        if accident.deploys:
            for _ in range(2):
                cluster.command("deploy", "prefect.yaml")
        else:
            time.sleep(OUTAGE)
    with open(cluster.folder / "runs.log", "a") as log:
        log.write("Beginning flow run\n")  # what was said of the struck run is no run to strike
    # What a supervisor starts again: what was killed, and what ended by itself meanwhile.
    alive = {name for name, process in cluster.processes.items() if process.poll() is None}
    cluster.start(*(name for name in cluster.commands if name not in alive))


def list_times(first: datetime, last: datetime) -> list[datetime]:
    """What the schedule promised."""
    n = int((last - first) / timedelta(minutes=EVERY))
    return [first + timedelta(minutes=EVERY * k) for k in range(n + 1)]


@pytest.mark.parametrize("name", ACCIDENTS)
def test_outage__each_promised_release_comes_once_in_order(
    cluster: WholeCluster, name: str, record_property
) -> None:
    accident = ACCIDENTS[name]
    if "database" in accident.killed and POSTGRES is None:
        pytest.skip("there is no PostgreSQL here")
    if "s3" in accident.killed and not cluster.keeps_objects:
        pytest.skip("this S3 server keeps its objects in memory")
    run, at, driver = wait_for("a run that cleans", lambda: find_cleaning(cluster), 900)
    begun, log = time.time(), cluster.folder / "runs.log"
    n_before = len(log.read_text())
    play(cluster, accident, driver)
    back = datetime.now(UTC)
    times = list_times(at, back)
    for time_ in times:
        wait_for(f"{time_}", lambda at=time_: is_published(cluster, name_of(at)), 1500)
    cluster.command("gaps", "release", "--since", at.isoformat())  # fails where there is one
    wait_for("the run's state", lambda: cluster.state(run)[0] == "COMPLETED", 600)
    written = [read_writes(cluster, f"{name_of(at)}.zarr/") for at in times]
    roots = [
        found[f"{name_of(at)}.zarr/zarr.json"] for at, found in zip(times, written, strict=True)
    ]
    # Chunks are written where a release is staged.
    staged = [read_writes(cluster, f".{name_of(at)}.zarr.privpipe/release/") for at in times]
    redone = [sum(len(one) - 1 for key, one in found.items() if "/c/" in key) for found in staged]
    after = ", ".join(f"{(one[0] - back).total_seconds():.0f}" for one in roots)
    codes = set(re.findall(r"^retry    ([\w-]+): ", log.read_text()[n_before:], re.MULTILINE))
    fired = sorted({alert for alert, _ in cluster.list_fired(begun)})
    record_property(
        "seen",
        f"s from its end to each release: {after}; chunks again: {redone}; tried again for: "
        f"{', '.join(sorted(codes))}; alerts: {', '.join(fired)}",
    )
    # An hour is no more than these minutes: what is away is waited for three hours by its code.
    # Other codes are tried again three times only.
    assert codes <= OUTAGES
    for time_ in times:
        check_same(cluster, name_of(time_))
    assert [len(one) for one in roots] == [1] * len(times)  # two never write
    # The first was struck. One that is started again waits behind those that were late by then.
    assert all(one <= other for one, other in itertools.pairwise(roots[1:])), "in order"
    asked = {
        "flow_runs": {
            "expected_start_time": {"after_": at.isoformat(), "before_": back.isoformat()}
        }
    }
    runs = cluster.ask("/flow_runs/filter", asked)
    assert sorted(one["expected_start_time"] for one in runs) == sorted(
        {one["expected_start_time"] for one in runs}
    )
    assert {one["state"]["type"] for one in runs} == {"COMPLETED"}
