"""Releases the partitions of a span of time: ``prefect deploy flows/backfill.py:backfill``, from a checkout.

``deploy/prefect.yaml`` names the same flow where it is installed, `privpipe.flows.deployments`.
"""

from __future__ import annotations

from privpipe.flows.deployments import backfill

__all__ = ["backfill"]
