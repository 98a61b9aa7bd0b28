"""Releases a collection.

From a checkout: ``prefect deploy flows/release.py:release``. ``deploy/prefect.yaml``
names the same flow where it is installed, `privpipe.flows.deployments`.
"""

from privpipe.flows.deployments import release as release
