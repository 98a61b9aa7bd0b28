"""Runs of a whole installation: what is configured, deployed and stored, and what is looked at.

`PRIVPIPE_TEST_WHOLE` is a number of records for another size.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import boto3
import numpy as np

from tests.operations.whole_cluster import ROOT, WholeCluster, wait_for

N_RECORDS = max(int(os.environ.get("PRIVPIPE_TEST_WHOLE", "1")), 1_200)

SECRETS = ("SECRETmalaria", "SECRETnothing")

CONFIG = """
[collection]
path = "s3://records/{records}.zarr"
desired = ["wanted"]
confidential = ["{hidden}"]
{method}
[release]
path = "s3://releases/{place}.zarr"
{withheld}
[cluster]
{cluster}
[audit]
holdout = 0.5
adversaries = {adversaries}
[gate]
{gate}
"""

CLOSED = """enforce = true
confidential_advantage_max = 0.45
exposed_max = 0.15
"""
"""Limits that 600 held-out records can show, and that what the wanted answer tells is beyond."""


@contextmanager
def open_installation(
    folder: Path, make: Callable[[Path], WholeCluster] = WholeCluster
) -> Iterator[WholeCluster]:
    """Everything started and deployed, and a release to compare with, made in one process."""
    whole = make(folder)
    closed = {"hidden": "told", "adversaries": '["least_squares"]', "gate": CLOSED}
    configure(whole, "run")
    configure(whole, "gated", place="gated-{logical_time}", **closed)
    configure(whole, "reference", place="reference", cluster="workers = 0")
    write_records(whole.folder / "records.npz")
    schedule(whole, "* * * * *", active=False)
    (whole.folder / "automations.yaml").write_text((ROOT / "deploy/automations.yaml").read_text())
    try:
        whole.start(*(name for name in whole.commands if name != "runs"))
        made = {one["Name"] for one in store(whole).list_buckets()["Buckets"]}
        for bucket in ("records", "releases"):
            if bucket not in made:
                store(whole).create_bucket(Bucket=bucket)
            # Who writes twice is seen: each write stays as a version.
            store(whole).put_bucket_versioning(
                Bucket=bucket, VersioningConfiguration={"Status": "Enabled"}
            )
        ingest(whole, "records")
        whole.command("run", "reference.toml")
        whole.command("deploy", "prefect.yaml")
        whole.start("runs")
        yield whole
    finally:
        whole.stop()


METHOD = """[method]
name = "null_space"
utility_budget = 0.05
ridge = 0.01"""


def configure(whole: WholeCluster, name: str, **other: str) -> None:
    """Write a configuration; by default of a release of all records that no gate judges."""
    usual = {
        "records": "records",
        "hidden": "secret",
        "method": METHOD,
        "place": "{logical_time}",
        "withheld": "",
        "cluster": f'address = "tls://127.0.0.1:{whole.ports["scheduler"]}"',
        "adversaries": "[]",
        "gate": "enforce = false",
    }
    (whole.folder / f"{name}.toml").write_text(CONFIG.format(**{**usual, **other}))


def ingest(whole: WholeCluster, name: str) -> None:
    """A collection of small chunks in the bucket, of a file of that name."""
    features = "--features x --labels wanted,secret,told --categorical secret,told"
    small = ("--chunk-mib", "0.001")
    whole.command("ingest", f"{name}.npz", f"s3://records/{name}.zarr", *features.split(), *small)


def schedule(cluster: WholeCluster, cron: str, *, active: bool) -> None:
    """Write the deployments, the nightly one with another schedule."""
    text = (ROOT / "deploy" / "prefect.yaml").read_text()
    nightly = '{ cron: "0 2 * * *", timezone: Europe/Berlin, active: true }'
    assert nightly in text
    state = str(active).lower()
    instead = f'{{ cron: "{cron}", timezone: Europe/Berlin, active: {state} }}'
    (cluster.folder / "prefect.yaml").write_text(text.replace(nightly, instead))


def write_records(path: Path) -> None:
    random = np.random.default_rng(5)
    x = random.normal(size=(N_RECORDS, 5))
    secret = np.where(x @ [0.0, 1.0, 1.0, -1.0, 0.3] > 0, *SECRETS)
    wanted = x @ [1.0, -1.0, 0.5, 0.0, 0.0] + random.normal(size=N_RECORDS) / 10
    np.savez(path, x=x, wanted=wanted, secret=secret, told=np.where(wanted > 0, "high", "low"))


def store(cluster: WholeCluster):
    names = cluster.environment
    return boto3.client(
        "s3",
        endpoint_url=names["AWS_ENDPOINT_URL"],
        aws_access_key_id=names["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=names["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )


def read_keys(cluster: WholeCluster, prefix: str = "") -> list[str]:
    pages = (
        store(cluster).get_paginator("list_objects_v2").paginate(Bucket="releases", Prefix=prefix)
    )
    return [item["Key"] for page in pages for item in page.get("Contents", ())]


def read_release(cluster: WholeCluster, name: str) -> dict[str, bytes]:
    """Objects of a release but for its root, which holds run and times."""
    client = store(cluster)
    return {
        key.removeprefix(f"{name}.zarr/"): client.get_object(Bucket="releases", Key=key)[
            "Body"
        ].read()
        for key in read_keys(cluster, f"{name}.zarr/")
        if key != f"{name}.zarr/zarr.json"
    }


def read_writes(cluster: WholeCluster, prefix: str) -> dict[str, list[datetime]]:
    """When each object of a prefix was written, in order."""
    pages = store(cluster).get_paginator("list_object_versions")
    found = defaultdict[str, list[datetime]](list)
    for page in pages.paginate(Bucket="releases", Prefix=prefix):
        for item in page.get("Versions", ()):
            found[item["Key"]].append(item["LastModified"])
    return {key: sorted(times) for key, times in found.items()}


def is_published(cluster: WholeCluster, name: str) -> bool:
    return f"{name}.zarr/zarr.json" in read_keys(cluster, f"{name}.zarr/zarr.json")


def check_same(cluster: WholeCluster, name: str) -> None:
    wanted, found = read_release(cluster, "reference"), read_release(cluster, name)
    assert len(wanted) > 20
    assert found.keys() == wanted.keys()
    assert found == wanted


def name_of(at: datetime) -> str:
    return at.strftime("%Y%m%dT%H%M%SZ")


def wait_cleaning(cluster: WholeCluster, name: str) -> None:
    """Until the run has written some chunks, and by far not all."""
    place = f".{name}.zarr.privpipe/release/features/c/"
    wait_for("chunks", lambda: len(read_keys(cluster, place)) >= 5, seconds=300)
    assert not is_published(cluster, name)


def pause(cluster: WholeCluster) -> None:
    """No more by the schedule: the runs of the other tests would wait for them."""
    schedule(cluster, "* * * * *", active=False)
    cluster.command("deploy", "prefect.yaml")

    def is_free() -> bool:
        asked = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}}
        return not cluster.ask("/flow_runs/filter", asked)

    wait_for("the last scheduled run ends", is_free, 600)
