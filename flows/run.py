"""A run as a value: what was asked, what was found out before any work, and who it is."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from pydantic import TypeAdapter

from flows.options import RunOptions
from privpipe.dist.cluster import ClusterOptions
from privpipe.protocols import Method
from privpipe.records.splits import Split
from privpipe.store.collection import Collection
from privpipe.store.location import join
from privpipe.store.release import companion_url, workspace_url

__all__ = ["Run", "cluster_options", "digest_options", "list_versions", "make_run_id", "now"]


@dataclass(frozen=True)
class Run:
    """What the check stage hands to all others.

    Parameters
    ----------
    run_id
        8 hexadecimal digits; in every Dask key and receipt.
    options
        The configuration.
    method
        The method's row of the table.
    collection, training
        Opened, with the variables they are read for; often the same.
    split
        Which training records are held out.
    started
        UTC.
    """

    run_id: str
    options: RunOptions
    method: Method[Any]
    collection: Collection
    training: Collection
    split: Split
    started: str

    @property
    def release_url(self) -> str:
        return self.options.release.path

    @property
    def work_model_url(self) -> str:
        """Where the model is kept until the release is published."""
        return join(workspace_url(self.release_url), "model.zarr")

    @property
    def model_url(self) -> str:
        """Where the model will be."""
        return companion_url(self.release_url, "model.zarr")

    @property
    def report_url(self) -> str:
        """Folder of the report."""
        return companion_url(self.release_url, "report")

    @property
    def trains_on_itself(self) -> bool:
        """Whether the released records are the training records."""
        return self.training.url == self.collection.url

    def method_options(self) -> dict[str, Any]:
        """The method's options as the header shows them."""
        method = self.options.method
        dumped: dict[str, Any] = TypeAdapter(type(method)).dump_python(method, mode="json")
        return dumped


def make_run_id() -> str:
    """A new identifier."""
    return secrets.token_hex(4)


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def digest_options(options: RunOptions) -> str:
    """SHA-256 of everything in the configuration that can change the release."""
    content = options.model_dump(mode="json", exclude={"cluster"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def cluster_options(options: RunOptions) -> ClusterOptions:
    """The ``[cluster]`` section as `privpipe.dist` takes it."""
    section = options.cluster
    return ClusterOptions(
        address=section.address,
        workers=section.workers,
        memory_limit=section.memory_limit,
        dashboard=section.dashboard,
        wait_seconds=section.wait_seconds,
    )


def list_versions() -> dict[str, str]:
    """Versions of what shapes a release."""
    return {name: version(name) for name in ("privpipe", "numpy", "scipy", "zarr", "dask")}
