"""``privpipe certs``: keys and certificates of a Dask cluster, and the configuration for them."""

from __future__ import annotations

from typing import Any

from privpipe.report.console import say


def certs_command(folder: str, hosts: tuple[str, ...], days: int, *, renew: bool) -> dict[str, Any]:
    """Make or renew them; see `make_certificates`."""
    from privpipe.cluster.workers.certificates import make_certificates
    from privpipe.cluster.workers.deployed import write_configuration

    made = make_certificates(folder, hosts, days, renew=renew)
    config = write_configuration(folder)
    for one in made:
        say(f"made     {one.path}  until {one.expires:%Y-%m-%d}")
    say(f"use      export DASK_CONFIG={config}")
    return {
        "certificates": {
            str(one.path): {"expires": one.expires.isoformat(), "hosts": list(one.hosts)}
            for one in made
        },
        "dask_config": str(config),
    }
