"""``privpipe doctor``: look at everything that a scheduled run needs, before the night does."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from typing import Any

from privpipe.errors import ClusterError
from privpipe.pipeline.serving.prefect_home import prepare_prefect
from privpipe.report.console import say

STYLES = {"ok": "green", "warns": "yellow", "fails": "red"}


def doctor_command(config: str, deployments: str) -> dict[str, Any]:
    """Run all checks and say each finding.

    Raises
    ------
    ClusterError
        If a check fails; the message names all that did.
    """
    prepare_prefect()
    from privpipe.pipeline.operations.cluster_health import check_certificates, check_cluster
    from privpipe.pipeline.operations.place_health import (
        Finding,
        check_account,
        check_keys,
        check_places,
        run_checks,
    )
    from privpipe.pipeline.operations.server_health import check_deployed, check_server_health
    from privpipe.pipeline.runs.configuration_file import read_options
    from privpipe.pipeline.runs.trusted_code import list_unrun
    from privpipe.pipeline.stages.check import check_stage

    options = read_options(config, datetime.now(UTC))

    def check_configuration() -> list[Finding]:
        check_stage(options)
        unread = [Finding("warns", "code", one) for one in list_unrun(options)]
        return [Finding("ok", "configuration", f"{config} fits its collection"), *unread]

    checks: list[tuple[str, Any]] = [
        ("configuration", check_configuration),
        ("server", check_server_health),
    ]
    if os.path.exists(deployments):
        automations = os.path.join(os.path.dirname(deployments), "automations.yaml")
        checks.append(("deployments", partial(check_deployed, deployments, automations)))
    if str(options.cluster.address or "").startswith("tls://"):
        checks.append(("certificates", check_certificates))
    checks += [
        ("cluster", partial(check_cluster, options)),
        ("places", partial(check_places, options)),
        ("account", partial(check_account, options)),
        ("keys", check_keys),
    ]
    found = []
    for finding in run_checks(checks):
        found.append(finding)
        say(f"{finding.state:5s}  {finding.what}: {finding.detail}", style=STYLES[finding.state])
        if finding.remedy:
            say(f"       {finding.remedy}")
    failed = [finding for finding in found if finding.state == "fails"]
    if failed:
        raise ClusterError(
            "; ".join(f"{one.what}: {one.detail.rstrip('.')}" for one in failed) + ".",
            remedy=" ".join(dict.fromkeys(f"{one.remedy.rstrip('.')}." for one in failed)),
            code="doctor",
        )
    say("privpipe is ready: schedules fire, workers reach their records.")
    return {"findings": [asdict(finding) for finding in found]}
