"""Logs as JSON lines, and gauges of a driver, where the environment asks for them.

``PRIVPIPE_LOG=json`` writes a line per stage and verdict to stderr; ``PRIVPIPE_METRICS_FILE`` keeps
a file for node_exporter, ``PRIVPIPE_METRICS_GATEWAY`` pushes to a gateway. Lines hold numbers and
words of a fixed vocabulary: no path, no name of a user's, no value of a record.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime

from privpipe.cluster.workers.monitoring.progress import Progress

EXPORT_EVERY = 5.0
"""Seconds between two exports, each of which is a file or a request."""


class Telling:
    """Tells whoever reads logs and metrics of the driver."""

    def __init__(self) -> None:
        self._exported = -EXPORT_EVERY

    def say(self, what: str, now: Progress, seconds: float | None = None) -> None:
        """One line, if lines are asked for."""
        if os.environ.get("PRIVPIPE_LOG") != "json":
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "event": what,
            **now.encode(),
            "seconds": None if seconds is None else round(seconds, 3),
        }
        with suppress(OSError):  # nobody reads any more
            sys.stderr.write(json.dumps(line) + "\n")

    def export(self, now: Progress, *, at_once: bool = False) -> None:
        """Write or push the gauges, if somebody wants them; never a reason for a run to fail.

        Now and then, but for what must not be missed: a stage, a verdict.
        """
        path = os.environ.get("PRIVPIPE_METRICS_FILE")
        gateway = os.environ.get("PRIVPIPE_METRICS_GATEWAY")
        moment = time.monotonic()
        if not (path or gateway):
            return
        if not at_once and moment - self._exported < EXPORT_EVERY:
            return
        self._exported = moment
        from privpipe.cluster.workers.monitoring.metrics import push_progress, write_progress

        with suppress(Exception):
            if path:
                write_progress(now, path)
            if gateway:
                push_progress(now, gateway)
