"""The deployed flows by their old entry point, ``privpipe_flows.deployments``."""

from __future__ import annotations

from privpipe.flows.deployments import backfill, increment, release

__all__ = ["backfill", "increment", "release"]
