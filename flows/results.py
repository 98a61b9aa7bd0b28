"""``run_results.json``: what a run did and how it ended, written also when it failed."""

from __future__ import annotations

import json
from typing import Any

from flows.run import now
from flows.watch import Watch
from privpipe.dist.boundary import seal
from privpipe.errors import PrivpipeError
from privpipe.store.location import join
from privpipe.store.release import companion_url
from privpipe.store.text import write_file

__all__ = ["write_results"]


def write_results(
    release_url: str, watch: Watch, outcome: str, error: Exception | None = None
) -> None:
    """Write the results beside the release, in the folder of its report.

    Parameters
    ----------
    release_url
        The release.
    watch
        Has seen the stages.
    outcome
        "published", "stopped" (as asked, before the last stage), "nothing to do" or "failed".
    error
        Why it failed; only what an error of ours says is written.
    """
    content: dict[str, Any] = {
        "format_version": 1,
        "release": release_url,
        "run": watch.run_id,
        "outcome": outcome,
        "finished": now(),
        "stages": [{"stage": name, "seconds": round(spent, 3)} for name, spent in watch.stages],
        "error": None,
    }
    if error is not None:
        sealed = error if isinstance(error, PrivpipeError) else seal(error, "privpipe")
        content["error"] = {
            "code": sealed.code,
            "exit_code": sealed.exit_code,
            "message": sealed.message,
            "remedy": sealed.remedy.strip(),
        }
    place = join(companion_url(release_url, "report"), "run_results.json")
    write_file(place, json.dumps(content, indent=1))
