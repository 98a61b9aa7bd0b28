"""``privpipe deploy`` and ``doctor``: deployments, and all that their runs need."""

import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from privpipe.command.gaps_command import list_waiting, start_runs
from privpipe.errors import ClusterError
from privpipe.pipeline.operations import health, prefect_server
from privpipe.pipeline.operations.deployment_file import read_automations, read_deployments
from privpipe.pipeline.operations.promised_releases import list_due, note_promises
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.trusted_code import list_unrun
from privpipe.pipeline.stages.check import check_stage
from privpipe.report.console import say

NO_FILE = "Name the file that was deployed by --deployments: what fires is compared with it."

STYLES = {"ok": "green", "warns": "yellow", "fails": "red"}


def deploy_command(path: str) -> dict[str, Any]:
    """Deploy: pool, deployments with their schedules, automations that end dead runs.

    The automations are in ``automations.yaml`` beside the file; those of the same name are
    replaced.

    Raises
    ------
    OptionError
        If a deployment, or the server's address, is refused.
    ClusterError
        If the server does not take them.
    """
    prefect_server.prepare_prefect()
    deployments = read_deployments(path)
    automations = read_automations(str(Path(path).with_name("automations.yaml")))
    url = prefect_server.check_server()  # last: a file can be checked where no server is
    with prefect_server.blaming_prefect():
        for pool, queue in sorted({(one.pool, one.queue) for one in deployments}):
            _make_pool(pool)
            _make_queue(pool, queue)
        # Before a schedule fires: who is killed in between has promised what `gaps` looks for.
        begun = datetime.now(UTC)
        note_promises(deployments, begun)
        _deploy(path)
        for automation in automations:
            _replace_automation(automation)
    for one in deployments:
        # Prefect 3.8 deletes the runs to come and makes them anew a moment later: what became due
        # in between has none.
        if any(active for *_, active in one.schedules):
            now = datetime.now(UTC)
            due, waiting = list_due(one.name, begun, now), list_waiting(one.name)
            if missed := [time for time, _ in due if time not in waiting]:
                start_runs(one.name, missed)
            _make_runs(f"{one.flow}/{one.name}", now)
        when = ", ".join(f"{cron} {zone}" for cron, zone, active in one.schedules if active)
        say(f"deployed {one.flow}/{one.name}  {when or 'on request'}")
    for automation in automations:
        say(f"watches  {automation['name']}")
    names = [f"{one.flow}/{one.name}" for one in deployments]
    alerts = [automation["name"] for automation in automations]
    return {"server": url, "deployments": names, "automations": alerts}


def _make_pool(name: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
    with get_client(sync_client=True) as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(pool)


def _make_queue(pool: str, name: str) -> None:
    """A queue that starts one run at a time, the earliest first; a run that waits is not lost."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_queue(name, work_pool_name=pool)
        found = client.read_work_queue_by_name(name, work_pool_name=pool)
        client.update_work_queue(found.id, concurrency_limit=1)


def _deploy(path: str) -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    # Prefect 3.8 notes PWD as the place of the code, and a shell's may be another folder.
    env = {**os.environ, "PWD": os.getcwd()}
    call = [*command, "--prefect-file", path]
    done = subprocess.run(call, env=env, check=False, capture_output=True, text=True)
    if done.returncode:
        # The last line: Prefect prints a page of frames before it.
        said = (done.stderr or done.stdout).strip().splitlines()
        problem = f"Prefect did not take {path}: {said[-1] if said else 'no reason given'}."
        remedy = "Check that the server answers: `privpipe doctor`."
        raise ClusterError(problem, remedy=remedy, code="not-deployed")


def _make_runs(name: str, since: datetime) -> None:
    """Have the server make the runs to come, of what is due from then on.

    Its own loops do so after 5 s, or after a minute where it is busy, and never of what became due
    before. They know these runs again, and make none twice.
    """
    from prefect.client.orchestration import get_client

    with prefect_server.blaming_prefect(), get_client(sync_client=True) as client:
        place = {"id": client.read_deployment_by_name(name).id}
        body = {"start_time": since.isoformat()}
        client.request("POST", "/deployments/{id}/schedule", path_params=place, json=body)


def _replace_automation(automation: dict[str, Any]) -> None:
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    with get_client(sync_client=True) as client:
        # All of them: two of one name would both act.
        for old in client.read_automations_by_name(automation["name"]):
            client.delete_automation(old.id)
        client.create_automation(AutomationCore.model_validate(automation))


def doctor_command(config: str, deployments: str) -> dict[str, Any]:
    """Check everything that a scheduled run needs, before the night does; say each finding.

    Raises
    ------
    ClusterError
        If a check fails; the message names all that did.
    """
    prefect_server.prepare_prefect()
    options = read_options(config, datetime.now(UTC))

    def check_configuration() -> list[health.Finding]:
        check_stage(options)
        unread = [health.Finding("warns", "code", one) for one in list_unrun(options)]
        return [health.Finding("ok", "configuration", f"{config} fits its collection"), *unread]

    none = health.weigh("deployments", f"there is no {deployments}", NO_FILE, fails=False)
    automations = os.path.join(os.path.dirname(deployments), "automations.yaml")
    deployed = partial(health.check_deployed, deployments, automations)
    secure = str(options.cluster.address or "").startswith("tls://")
    # In the order in which one failure explains the next.
    checks: dict[str, health.Check] = {
        "configuration": check_configuration,
        "server": health.check_server_health,
        "deployments": deployed if os.path.exists(deployments) else lambda: [none],
        **({"certificates": health.check_certificates} if secure else {}),
        "cluster": partial(health.check_cluster, options),
        "places": partial(health.check_places, options),
        "account": partial(health.check_account, options),
        "keys": health.check_keys,
    }
    found = []
    for finding in health.run_checks(checks):
        found.append(finding)
        say(f"{finding.state:5s}  {finding.what}: {finding.detail}", style=STYLES[finding.state])
        if finding.remedy:
            say(f"       {finding.remedy}")
    failed = [finding for finding in found if finding.state == "fails"]
    if failed:
        problem = "; ".join(f"{one.what}: {one.detail.rstrip('.')}" for one in failed) + "."
        remedy = " ".join(dict.fromkeys(f"{one.remedy.rstrip('.')}." for one in failed))
        raise ClusterError(problem, remedy=remedy, code="doctor")
    warned = sum(finding.state == "warns" for finding in found)
    if warned:
        say(f"privpipe would run; {warned} of the above warn of what will not last.")
    else:
        say("privpipe is ready: schedules fire, workers reach their records.")
    return {"findings": [asdict(finding) for finding in found]}
