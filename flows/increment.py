"""Releases the partitions that came since: ``prefect deploy flows/increment.py:increment``, from a checkout.

``deploy/prefect.yaml`` names the same flow where it is installed, `privpipe.flows.deployments`.
"""

from __future__ import annotations

from privpipe.flows.deployments import increment

__all__ = ["increment"]
