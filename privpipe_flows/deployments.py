"""The deployed flows by their old entry point, ``privpipe_flows.deployments``."""

from __future__ import annotations

from privpipe.flows.deployments import backfill as backfill
from privpipe.flows.deployments import increment as increment
from privpipe.flows.deployments import release as release
