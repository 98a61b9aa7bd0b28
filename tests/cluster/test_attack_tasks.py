"""Attacks on a small cluster: the same report as in one process, and failures are unknown."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import cloudpickle
import dask
import numpy as np
import pytest
from distributed import Client, LocalCluster

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.preparation import prepare_evidence
from privpipe.attacks.threats import inference
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.cluster.executors.dask_executor import DaskExecutor
from privpipe.cluster.executors.executor import Event, WorkerMemory
from privpipe.cluster.passes import attack_tasks as attacks
from privpipe.cluster.passes.attack_tasks import (
    EvidenceSummary,
    check_worker_memory,
    distribute_attacks,
)
from privpipe.cluster.passes.evidence_sample import AuditSources
from privpipe.cluster.passes.sample_drawing import Published
from privpipe.errors import InputError, MemoryBudgetError
from privpipe.protocols import Shard

# Workers are threads of this process here, whose lists of warnings undo one another: whatever else
# catches warnings (a server's thread, joblib) brings back those that a fit has silenced.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

OPTIONS = AttackOptions(adversaries=("least_squares", "logistic", "naive_bayes"))


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


def draw(n_classes: int = 2) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    secret = random.integers(0, n_classes, 400)
    return random.normal(size=(400, 4)) + secret[:, None], secret


def given(evidence: Evidence) -> Evidence:
    return evidence


def prepare(n_classes: int) -> Evidence:
    return prepare_evidence(*draw(n_classes), options=OPTIONS)


def test_distribute_attacks__reports_what_one_process_reports(client: Client) -> None:
    released, secret = draw()
    alone = measure_attacks(released, secret, raw=released, options=OPTIONS)
    evidence = prepare_evidence(released, secret, raw=released, options=OPTIONS)
    heard: list[Event] = []
    executor = DaskExecutor(client, listener=heard.append)
    ours = distribute_attacks(executor, functools.partial(given, evidence), options=OPTIONS)
    assert [outcome.reason for outcome in ours.outcomes if outcome.status != "measured"] == []
    assert ours.table.drop(columns="seconds").equals(alone.table.drop(columns="seconds"))
    assert ours.decisions.equals(alone.decisions)
    assert [(e.what, e.amount) for e in heard if e.work == "attack"] == [
        ("begins", 6),
        *[("advances", 1)] * 6,
        ("ends", 0),
    ]


def test_distribute_attacks__prepares_on_a_worker_and_uses_readable_keys(
    client: Client, monkeypatch
) -> None:
    keys = []
    submit = client.submit

    def watch(*args: object, **kwargs: object) -> object:
        keys.append((kwargs["key"], kwargs["pure"]))
        return submit(*args, **kwargs)

    monkeypatch.setattr(client, "submit", watch)
    report = distribute_attacks(
        DaskExecutor(client, "cafe0123"), functools.partial(prepare, 2), options=OPTIONS
    )
    assert report.n_records == report.n_given == 400
    assert report.verdict == "leaks"
    assert ("attack-cafe0123-released-logistic-confidential", False) in keys
    assert all(not pure for _, pure in keys)
    assert len({key for key, _ in keys}) == len(keys) == 6


def test_distribute_attacks__hands_on_what_preparing_raised(client: Client) -> None:
    with pytest.raises(InputError, match="single class") as caught:
        distribute_attacks(DaskExecutor(client), functools.partial(prepare, 1), options=OPTIONS)
    assert caught.value.__context__ is None


def test_distribute_attacks__calls_a_lost_task_unknown_and_tells_no_text(
    client: Client, monkeypatch
) -> None:
    def lose(evidence: Evidence, attack: inference.Attack, options: AttackOptions) -> object:
        if attack.adversary == "logistic":
            raise RuntimeError("value quince of record 7")
        return inference.run_attack(evidence, attack, options)

    monkeypatch.setattr(attacks, "run_attack", lose)
    options = replace(OPTIONS, max_advantage=1.0, max_exposed=1.0)
    report = distribute_attacks(
        DaskExecutor(client), functools.partial(prepare, 2), options=options
    )
    assert report.verdict == "unknown"
    lost = report.table.query("status == 'unknown'")
    assert list(lost["adversary"]) == ["logistic"]
    assert "quince" not in report.to_json()
    assert "worker failed" in lost["reason"].item()


def test_read_pairs__has_what_is_released_as_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Subject and place, which stand behind it, are not released."""
    random = np.random.default_rng(0)
    features, labels = random.normal(size=(300, 3)), random.normal(size=(300, 5))
    shard = Shard(features, confidential=labels, released=random.normal(size=(300, 2)))
    monkeypatch.setattr(attacks, "_draw", lambda *_: shard)
    judged = SimpleNamespace(confidential=("secret",), indicators=False)
    published = Published(included=("salary", "town"), group="who")
    sources = cast(AuditSources, SimpleNamespace(judged=judged, published=published))
    found = json.loads(attacks.attack_by_name(sources, "linkage", AttackOptions()))
    assert found["n_included"] == 2
    assert found["attacks"][0]["top_1"]["estimate"] == 1.0
    included = attacks._read_pairs(sources, AttackOptions()).included
    np.testing.assert_array_equal(included, labels[:, 1:3])


def test_check_worker_memory__refuses_before_any_attack_runs() -> None:
    mib = 1 << 20
    workers = WorkerMemory(
        n_workers=2, n_threads=4, smallest=1000 * mib, total=2000 * mib, threads=2
    )
    check_worker_memory(EvidenceSummary((), {}, 100 * mib, 400 * mib), workers)
    with pytest.raises(MemoryBudgetError, match=r"need 1002 MiB on a worker of 2 threads"):
        check_worker_memory(EvidenceSummary((), {}, 101 * mib, 400 * mib), workers)
    unlimited = replace(workers, smallest=0)
    check_worker_memory(EvidenceSummary((), {}, 10**15, 0), unlimited)


@pytest.mark.slow
def test_distribute_attacks__survives_workers_that_die() -> None:
    # Workers are other processes, which may not find this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    evidence = functools.partial(prepare_and_die, 2)
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as connected,
    ):
        report = distribute_attacks(DaskExecutor(connected), evidence, options=OPTIONS)
    assert report.verdict == "unknown"
    assert (report.table["status"] == "unknown").all()


class Deadly(dict):
    """Sources that end the process when an attack reads them."""

    def __getitem__(self, name: str) -> object:
        os._exit(1)


def prepare_and_die(n_classes: int) -> Evidence:
    evidence = prepare(n_classes)
    return replace(evidence, sources=Deadly(evidence.sources))
