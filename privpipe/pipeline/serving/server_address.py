"""Which Prefect servers are trusted: with a password, and beyond this machine behind TLS.

Whoever may create a flow run on a server chooses which configuration a worker reads, and may give a
worker code of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from privpipe.cluster.workers.listener_owner import guard_address, is_loopback
from privpipe.errors import ClusterError, OptionError


def check_server(settings: Mapping[str, str] = os.environ) -> str:
    """The API's address, if work may be taken from it.

    Parameters
    ----------
    settings
        ``PREFECT_API_URL``, ``PREFECT_API_AUTH_STRING``, ``PREFECT_API_KEY``.

    Raises
    ------
    ClusterError
        If no server is named.
    OptionError
        If the server is beyond this machine, and is asked in the clear or without a password; if
        it is on this machine, asked in the clear, and another user listens there.
    """
    url = settings.get("PREFECT_API_URL", "")
    parts = urlsplit(url)
    if not parts.hostname:
        raise ClusterError(
            "PREFECT_API_URL names no Prefect server.",
            remedy="Start one (deploy/RUNBOOK.md, first page) and set PREFECT_API_URL to "
            "http://127.0.0.1:4200/api.",
            code="no-server",
        )
    if is_loopback(parts.hostname):
        guard_address(url)
        return url
    known = settings.get("PREFECT_API_AUTH_STRING") or settings.get("PREFECT_API_KEY")
    problem = ""
    if not known:
        problem = "is asked without a password: whoever reaches it chooses what workers run"
    elif parts.scheme != "https":
        problem = f"is asked by {parts.scheme or 'no scheme'}: the password travels in the clear"
    if problem:
        raise OptionError(
            f"The Prefect server {parts.hostname} is not on this machine and {problem}.",
            remedy="Use an https:// address, start the server with "
            "PREFECT_SERVER_API_AUTH_STRING=user:secret and set PREFECT_API_AUTH_STRING to it.",
            code="open-server",
        )
    return url
