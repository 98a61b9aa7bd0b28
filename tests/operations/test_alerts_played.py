"""Each alert fires in its accident, played on an installation that runs, and in a sound one none.

Server, scheduler, workers, Prefect's worker, Prometheus and its exporter are those of
`deploy/compose.yaml`, the rules those of `deploy/alerts.yaml` with shorter times. `make test-whole`
calls it: twenty minutes on a small machine.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from tests.operations.boards import BOARDS, draw_board, list_words, read_panel
from tests.operations.deploy_words import DEPLOY
from tests.operations.whole_cluster import (
    POSTGRES,
    PROMETHEUS,
    WORKERS,
    WholeCluster,
    stopped,
    wait_for,
)
from tests.operations.whole_runs import (
    check_same,
    configure,
    ingest,
    name_of,
    open_installation,
    pause,
    schedule,
    store,
    wait_cleaning,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(PROMETHEUS is None or POSTGRES is None, reason="make prometheus"),
    # Longer than all of CI on two cores.
    pytest.mark.skipif("PRIVPIPE_TEST_WHOLE" not in os.environ, reason="make test-whole"),
]

OPEN = """enforce = true
confidential_advantage_max = 0.9
exposed_max = 0.9
must_find = 1.0
"""
"""Limits that the sound release keeps."""
SOUND = {"adversaries": '["least_squares"]', "gate": OPEN}
NOISY = {
    "method": '[training]\npath = "s3://records/public.zarr"\npublic = true\n'
    '[privacy]\nlimit = 1.2\n[method]\nname = "noisy"\nepsilon = 1.0\n'
    '[method.filter]\nname = "pca"\nn_filtered = 3'
}
TIMES = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(1000))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeCluster]:
    """An installation with what the accidents need."""
    with open_installation(tmp_path_factory.mktemp("alerts")) as whole:
        prepare(whole)
        yield whole


def prepare(whole: WholeCluster) -> None:
    """Configurations and collections: a sound one, one with holes, one that will be damaged."""
    configure(whole, "run", **SOUND)
    configure(whole, "noisy", place="noisy-{logical_time}", **NOISY)
    holes = {"records": "holes", "withheld": "nonfinite = 'withhold'"}
    configure(whole, "holes", place="holes-{logical_time}", **holes)
    configure(whole, "damaged", place="damaged-{logical_time}", records="damaged", **SOUND)
    with np.load(whole.folder / "records.npz") as records:
        found = dict(records)
    np.savez(whole.folder / "damaged.npz", **found)
    np.savez(whole.folder / "public.npz", **found | {"x": found["x"][::-1] / 2})
    # Other records: beside a release of nine tenths of the same, no sound run is let through.
    found["x"] = np.where(np.arange(len(found["x"]))[:, None] % 10 == 0, np.nan, 2 * found["x"])
    np.savez(whole.folder / "holes.npz", **found)
    for name in ("public", "holes", "damaged"):
        ingest(whole, name)


@dataclass(frozen=True)
class Accident:
    """What is played.

    Parameters
    ----------
    play
        Is a context: the accident lasts while it is open, and is over when it is left.
    fires
        Alerts that fire while it lasts.
    may
        Alerts that an accident before it, or its end, lets fire as well.
    """

    play: Callable[[WholeCluster], Iterator[None]]
    fires: set[str]
    may: frozenset[str] = frozenset()


def wait_done(whole: WholeCluster, run: str, at: datetime) -> None:
    wait_for("the run ends", lambda: whole.state(run)[0] == "COMPLETED", 600)
    check_same(whole, name_of(at))


def rest(whole: WholeCluster) -> None:
    """No run by the schedule any more, nor one of those that are late by now."""
    schedule(whole, "* * * * *", active=False)
    whole.command("deploy", "prefect.yaml")
    late = {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}
    for run in whole.ask("/flow_runs/filter", late):
        cancelled = {"state": {"type": "CANCELLED"}, "force": True}
        whole.ask(f"/flow_runs/{run['id']}/set_state", cancelled)
    pause(whole)


def play_refusal(whole: WholeCluster) -> Iterator[None]:
    """The nightly configuration is edited, and the gate refuses what the schedule promised."""
    sound = (whole.folder / "run.toml").read_text()
    (whole.folder / "run.toml").write_text((whole.folder / "gated.toml").read_text())
    schedule(whole, "* * * * *", active=True)
    whole.command("deploy", "prefect.yaml")
    yield
    rest(whole)
    (whole.folder / "run.toml").write_text(sound)
    whole.command("gaps", "release", "--waive")


def play_spending(whole: WholeCluster) -> Iterator[None]:
    """A private release takes most of the budget, and somebody opened the gate."""
    run = whole.begin("noisy.toml", next(TIMES).isoformat())
    assert whole.wait_end(run, 600)[0] == "COMPLETED", whole.state(run)
    yield


def play_holes(whole: WholeCluster) -> Iterator[None]:
    """One record in ten of the source holds nothing."""
    at = next(TIMES)
    run = whole.begin("holes.toml", at.isoformat())
    withheld = f'privpipe_withheld_records{{release="holes-{name_of(at)}.zarr"}} > 12'
    wait_for("records are withheld", lambda: whole.query(withheld), 300)
    # Held for seconds, so that it cleans for longer than the alert waits.
    with stopped([whole.processes[name].pid for name in WORKERS]):
        time.sleep(20)
    yield
    assert whole.wait_end(run, 600)[0] == "COMPLETED", whole.state(run)


def play_damage(whole: WholeCluster) -> Iterator[None]:
    """A chunk of the collection is overwritten in its bucket."""
    client = store(whole)
    found = client.list_objects_v2(Bucket="records", Prefix="damaged.zarr/features/c/")["Contents"]
    client.put_object(Bucket="records", Key=found[len(found) // 2]["Key"], Body=b"\0" * 64)
    run = whole.begin("damaged.toml", next(TIMES).isoformat())
    yield
    whole.cancel(run)
    whole.wait_end(run, 300)


def play_stall(whole: WholeCluster) -> Iterator[None]:
    """The workers' machines hang."""
    at = next(TIMES)
    run = whole.begin("run.toml", at.isoformat())
    wait_cleaning(whole, name_of(at))
    with stopped([whole.processes[name].pid for name in WORKERS]):
        yield
    wait_done(whole, run, at)


def play_death(whole: WholeCluster) -> Iterator[None]:
    """A run's process is killed, and workers hang until the night of the test is over."""
    at = next(TIMES)
    run = whole.begin("run.toml", at.isoformat())
    wait_cleaning(whole, name_of(at))
    with stopped([whole.processes[name].pid for name in WORKERS]):
        os.kill(whole.find_driver(run), signal.SIGKILL)
        yield
    wait_done(whole, run, at)  # started again by its automation


def play_lost_workers(whole: WholeCluster) -> Iterator[None]:
    """One worker is killed again and again, as by the kernel where memory is short."""
    for _ in range(4):
        [lost] = wait_for("a worker", lambda: find_workers(whole, WORKERS[0]))
        lost.kill()
        wait_for("it is gone", lambda lost=lost: not read_words(lost))
        wait_for("both are there", lambda: count_workers(whole) == 2)
    yield


def find_workers(whole: WholeCluster, name: str) -> list[psutil.Process]:
    """Processes that a nanny of Dask started to work."""
    children = psutil.Process(whole.processes[name].pid).children()
    return [one for one in children if "spawn_main" in " ".join(read_words(one))]


def read_words(process: psutil.Process) -> list[str]:
    """Its command line; of one that is dead, and that nobody waited for, there is none."""
    with suppress(psutil.NoSuchProcess):  # of which a zombie's is one
        return process.cmdline()
    return []


def count_workers(whole: WholeCluster) -> float:
    found = whole.query("sum(dask_scheduler_workers)")
    return float(found[0]["value"][1]) if found else 0.0


def play_no_workers(whole: WholeCluster) -> Iterator[None]:
    """All workers are gone."""
    whole.kill(*WORKERS)
    yield
    whole.start(*WORKERS)
    wait_for("workers", lambda: count_workers(whole) == len(WORKERS))


def play_no_scheduler(whole: WholeCluster) -> Iterator[None]:
    """The scheduler is gone."""
    whole.kill("scheduler")
    yield
    ended = [name for name in WORKERS if whole.processes[name].poll() is not None]
    whole.start("scheduler", *ended)


ACCIDENTS = {
    "a closed gate each night": Accident(
        play_refusal, {"PrivpipeGateClosed", "PrivpipeFailed", "PrivpipeGaps"}
    ),
    "a budget spent without a gate": Accident(
        play_spending, {"PrivpipeBudget", "PrivpipeNotGated"}
    ),
    "a source with holes": Accident(play_holes, {"PrivpipeWithholds", "PrivpipeNotGated"}),
    "a damaged chunk": Accident(play_damage, {"PrivpipeTasksFail"}, frozenset({"PrivpipeFailed"})),
    "workers that hang": Accident(play_stall, {"PrivpipeStalled"}),
    "a killed driver": Accident(
        play_death, {"PrivpipeSilent", "PrivpipeNight"}, frozenset({"PrivpipeStalled"})
    ),
    "workers that die": Accident(play_lost_workers, {"PrivpipeWorkersDie"}),
    "no workers": Accident(
        play_no_workers, {"PrivpipeNoWorkers"}, frozenset({"PrivpipeWorkersDie"})
    ),
    "no scheduler": Accident(
        play_no_scheduler,
        {"PrivpipeNoScheduler"},
        frozenset({"PrivpipeNoWorkers", "PrivpipeWorkersDie"}),
    ),
}


def test_accidents__are_those_of_all_alerts() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    fired = set().union(*(one.fires for one in ACCIDENTS.values()))
    assert fired == {rule["alert"] for rule in rules}


@pytest.fixture(scope="module")
def soak(cluster: WholeCluster) -> tuple[float, float]:
    """When a sound installation began to make releases by its schedule, and when it had two."""
    begun = time.time()
    schedule(cluster, "* * * * *", active=True)
    cluster.command("deploy", "prefect.yaml")
    made = 'privpipe_promised_releases{outcome="made"} >= 2'
    wait_for("two releases", lambda: cluster.query(made), 900)
    rest(cluster)
    return begun, time.time()


def test_soak__of_a_sound_installation_fires_nothing(
    cluster: WholeCluster, soak: tuple[float, float]
) -> None:
    # What the rules look at is there, so that they could have fired.
    for name in ("run_state", "run_stage", "run_gate", "withheld_records", "lost_workers"):
        assert cluster.query(f"last_over_time(privpipe_{name}[20m])"), name
    assert cluster.query('last_over_time(privpipe_run_gate{gate="passed"}[20m])')
    assert cluster.list_fired(soak[0]) == set()


ONLY_IN_ACCIDENTS = set[str]()
"""Panels, each with the legend of a target, that have nothing to show of a sound run."""


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_boards__show_a_sound_run_in_every_panel(
    cluster: WholeCluster, soak: tuple[float, float], path: Path
) -> None:
    """As of a moment while a run was cleaning; the pictures are for who looks at them."""
    cleans = 'privpipe_run_stage{stage="clean"} == 1 and on (run) privpipe_chunks_done > 2'
    series = cluster.query(cleans, start=soak[0], end=soak[1], step=2.0)
    run = series[-1]["metric"]["run"]
    moment = float(series[-1]["values"][-1][0])
    folder = Path(os.environ.get("PRIVPIPE_TEST_BOARDS", cluster.folder))
    picture = folder / f"{path.stem}.png"
    empty = draw_board(path, run, cluster.query, (soak[0], moment), picture)
    assert set(empty) == ONLY_IN_ACCIDENTS
    for panel in json.loads(path.read_text())["panels"]:
        if panel["type"] == "timeseries":
            continue
        words = list_words(panel, read_panel(panel, run, cluster.query, (soak[0], moment)))
        # A bare 1 says nothing: what is a word is shown as one, and of several each has its name.
        assert len(words) <= 8, panel["title"]
        assert all(name for _, name in words) or len(words) == 1, panel["title"]
        assert "privpipe_run_" not in panel["targets"][0]["expr"] or not any(
            value for value, _ in words
        ), panel["title"]


@pytest.mark.parametrize("name", ACCIDENTS)
def test_accident__fires_its_alerts_and_no_others(
    cluster: WholeCluster,
    soak: tuple[float, float],
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    accident = ACCIDENTS[name]
    before = {(alert, run) for alert, run in cluster.list_fired(time.time() - 5) if run}
    begun = time.time()

    def list_new() -> set[str]:
        return {alert for alert, run in cluster.list_fired(begun) - before}

    with contextmanager(accident.play)(cluster):
        try:
            wait_for("its alerts", lambda: accident.fires <= list_new(), 480)
        finally:
            fired = list_new()
            record_property("seen", f"fired: {', '.join(sorted(fired))}")
    more = fired - accident.fires - accident.may
    assert more <= {"PrivpipeNight"}, "the night of the test is short"
