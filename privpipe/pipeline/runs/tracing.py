"""A run as spans of OpenTelemetry and as events of OpenLineage, for whoever has set these up.

Stages, places and codes of errors leave the process. No text of an exception does: it may hold
values of records.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import trace

from privpipe.errors import PrivpipeError
from privpipe.extras import explain_missing
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.location import local_path
from privpipe.store.arrays.layout import companion_url

PRODUCER = "urn:privpipe"

SET_UP_BY = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
"""Variables of the environment by which OpenLineage's client finds who listens."""


@contextmanager
def open_span(name: str, **attributes: str) -> Iterator[None]:
    """A span of OpenTelemetry, which costs nothing where no SDK is configured."""
    given: dict[str, Any] = {f"privpipe.{key}": text for key, text in attributes.items() if text}
    with trace.get_tracer("privpipe").start_as_current_span(
        name, attributes=given, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield
        except BaseException as error:
            # Its code alone, or its type: what the exception says is not ours to send.
            code = error.code if isinstance(error, PrivpipeError) else type(error).__name__
            span.set_status(trace.StatusCode.ERROR, code)
            raise


Say = Callable[[str], object]
"""Prints a line."""


@contextmanager
def reporting_lineage(options: RunOptions, job: str, say: Say) -> Iterator[None]:
    """Events of OpenLineage: what a run reads and makes, that it began, and how it ended.

    Parameters
    ----------
    options
        Of the run: collection and training records are read, release and model are made.
    job
        Name of the job: the deployment's, or the release's.
    say
        Prints a line, where no event can be sent.
    """
    # Most runs have no one who listens.
    send = _sending(options, job, say) if any(map(os.environ.get, SET_UP_BY)) else str
    send("START")
    try:
        yield
    except BaseException as error:
        send("FAIL" if isinstance(error, Exception) else "ABORT")
        raise
    send("COMPLETE")


def _sending(options: RunOptions, job: str, say: Say) -> Callable[[str], object]:
    """What sends an event; whoever does not listen is never a reason for a run to fail."""
    try:
        emit = _plan_events(options, job)
    except ModuleNotFoundError as error:
        say(f"lineage  no event is sent: {explain_missing(error)}")
        return str
    except Exception as error:  # a configuration of theirs, which may hold a password
        say(f"lineage  no event is sent: {type(error).__name__} in OpenLineage's configuration")
        return str

    def send(state: str) -> None:
        with suppress(Exception):
            emit(state)

    return send


def _plan_events(options: RunOptions, job: str) -> Callable[[str], None]:
    """What sends an event of a state; all have the identifier of one run."""
    from openlineage.client import OpenLineageClient, event_v2
    from openlineage.client.uuid import generate_new_uuid

    release = options.release.path
    read = dict.fromkeys((options.collection.path, options.training_path))
    about: dict[str, Any] = {
        "run": event_v2.Run(runId=str(generate_new_uuid())),
        "job": event_v2.Job(namespace="privpipe", name=job),
        "producer": PRODUCER,
        "inputs": [event_v2.InputDataset(*name_dataset(url)) for url in read],
        "outputs": [
            event_v2.OutputDataset(*name_dataset(url))
            for url in (release, companion_url(release, "model.zarr"))
        ],
    }
    client = OpenLineageClient()

    def emit(state: str) -> None:
        kind = event_v2.RunState[state]
        time = datetime.now(UTC).isoformat(timespec="seconds")
        client.emit(event_v2.RunEvent(eventType=kind, eventTime=time, **about))

    return emit


def name_dataset(url: str) -> tuple[str, str]:
    """Namespace and name of a place, by OpenLineage's rules.

    >>> name_dataset("s3://bucket/people.zarr"), name_dataset("/data/people.zarr")
    (('s3://bucket', 'people.zarr'), ('file', '/data/people.zarr'))
    """
    path = local_path(url)
    if path is not None:
        return "file", path
    parts = urlsplit(url)
    # Without a user or password that a URL may hold.
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}", parts.path.lstrip("/")
