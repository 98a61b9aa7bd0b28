"""Releases the partitions of a span of time.

From a checkout: ``prefect deploy flows/backfill.py:backfill``. ``deploy/prefect.yaml``
names the same flow where it is installed, `privpipe.flows.deployments`.
"""

from privpipe.flows.deployments import backfill as backfill
