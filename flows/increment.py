"""Releases the partitions that came since.

From a checkout: ``prefect deploy flows/increment.py:increment``. ``deploy/prefect.yaml``
names the same flow where it is installed, `privpipe.flows.deployments`.
"""

from privpipe.flows.deployments import increment as increment
