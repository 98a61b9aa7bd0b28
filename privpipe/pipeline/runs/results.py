"""``run_results.json``: what a run did and how it ended, written also when it failed."""

import json
from contextlib import suppress
from typing import Any

import fsspec

from privpipe.cluster.workers.boundary import seal
from privpipe.errors import PrivpipeError
from privpipe.pipeline.runs.run import now
from privpipe.pipeline.runs.watch import Watch
from privpipe.store.access.location import join
from privpipe.store.access.objects import write_file
from privpipe.store.arrays.layout import companion_url


def write_results(
    release_url: str, watch: Watch | None, outcome: str, error: Exception | None = None
) -> None:
    """Write the results beside the release, in the folder of its report.

    Parameters
    ----------
    release_url
        The release.
    watch
        Has seen the stages; None when a run ended before its first.
    outcome
        "published", "stopped" (as ordered, before the last stage), "nothing to do", "failed" or
        "interrupted".
    error
        Why it failed; only what an error of ours says is written.
    """
    stages = watch.stages if watch else ()
    content: dict[str, Any] = {
        "format_version": 1,
        "release": release_url,
        "model": companion_url(release_url, "model.zarr"),
        "report": companion_url(release_url, "report"),
        "run": watch.run_id if watch else None,
        "outcome": outcome,
        "finished": now(),
        "stages": [{"stage": name, "seconds": round(spent, 3)} for name, spent in stages],
        "error": None,
    }
    if error is not None:
        # The text of a foreign exception may hold values of records.
        sealed = seal(error, "privpipe")
        content["error"] = {
            "code": sealed.code,
            "exit_code": sealed.exit_code,
            "message": sealed.message,
            "remedy": sealed.remedy.strip(),
            "stage": watch.current if watch else "check",
        }
    write_file(_place(release_url), json.dumps(content, indent=1))


def write_failure(release_url: str, watch: Watch | None, error: Exception) -> None:
    """Write why a run failed; what hinders that must not hide why the run failed.

    Nothing is written where the release shall not be: within its own source.
    """
    if getattr(error, "code", "") != "output-inside-input":
        with suppress(OSError, PrivpipeError):
            write_results(release_url, watch, "failed", error)


def read_results(release_url: str) -> dict[str, Any]:
    """What the last run of a release left."""
    with fsspec.open(_place(release_url)) as file:
        content: dict[str, Any] = json.load(file)
    return content


def _place(release_url: str) -> str:
    return join(companion_url(release_url, "report"), "run_results.json")
