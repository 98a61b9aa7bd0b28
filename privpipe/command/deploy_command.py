"""``privpipe deploy``, ``gaps`` and ``doctor``: deployments, their runs, what these promised."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from privpipe.cluster.workers.progress import PromiseCollector
from privpipe.errors import ClusterError, OptionError, PrivpipeError
from privpipe.pipeline.operations import deployment_file, health, prefect_server
from privpipe.pipeline.operations import promised_releases as promises
from privpipe.pipeline.runs import trusted_code, watch
from privpipe.pipeline.runs.configuration_file import read_options, read_time
from privpipe.pipeline.stages.check import check_stage
from privpipe.report import audit_text
from privpipe.report.console import say

NO_FILE = "Name the file that was deployed by --deployments: what fires is compared with it."

PAGE = 200
"""Runs of a deployment that the server names at once."""

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
    deployments = deployment_file.read_deployments(path)
    automations = deployment_file.read_automations(str(Path(path).with_name("automations.yaml")))
    url = prefect_server.check_server()  # last: a file can be checked where no server is
    with prefect_server.blaming_prefect():
        for pool, queue in sorted({(one.pool, one.queue) for one in deployments}):
            _make_pool(pool)
            _make_queue(pool, queue)
        # Before a schedule fires: who is killed in between has promised what `gaps` looks for.
        begun = datetime.now(UTC)
        promises.note_promises(deployments, begun)
        _deploy(path)
        for automation in automations:
            _replace_automation(automation)
    for one in deployments:
        # Prefect 3.8 deletes the runs to come and makes them anew a moment later: what became due
        # in between has none.
        if any(active for *_, active in one.schedules):
            now = datetime.now(UTC)
            due, waiting = promises.list_due(one.name, begun, now), list_waiting(one.name)
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


def _open_client() -> Any:
    """A client of Prefect, whose library is loaded only now."""
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)


def _make_pool(name: str) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=name, type="process", base_job_template=template)
    with _open_client() as client, suppress(ObjectAlreadyExists):
        client.create_work_pool(pool)


def _make_queue(pool: str, name: str) -> None:
    """A queue that starts one run at a time, the earliest first; a run that waits is not lost."""
    from prefect.exceptions import ObjectAlreadyExists

    with _open_client() as client:
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

    with prefect_server.blaming_prefect(), _open_client() as client:
        place = {"id": client.read_deployment_by_name(name).id}
        body = {"start_time": since.isoformat()}
        client.request("POST", "/deployments/{id}/schedule", path_params=place, json=body)


def _replace_automation(automation: dict[str, Any]) -> None:
    from prefect.events.schemas.automations import AutomationCore

    with _open_client() as client:
        # All of them: two of one name would both act.
        for old in client.read_automations_by_name(automation["name"]):
            client.delete_automation(old.id)
        client.create_automation(AutomationCore.model_validate(automation))


def gaps_command(
    deployment: str, since: str, fill: bool, end: bool = False, waive: bool = False
) -> dict[str, Any]:
    """Say what became of each promised release; with `fill` start those that are not there.

    Parameters
    ----------
    deployment
        Its name, as "release".
    since
        First logical time, ISO 8601; since it was first deployed where empty.
    fill
        In the order of their times, in the queue of the deployment. What was refused is not started
        again: whoever changes the limits or approves it knows.
    end
        Promise nothing from now on, as of the old name of a deployment that was renamed.
    waive
        Note of each gap that it will not be made: it is none from then on.

    Raises
    ------
    OptionError
        If nothing was promised, or two of the three are given.
    ClusterError
        If there are gaps, and they are not to be filled; if a promise is to end of a deployment
        that the server still has.
    """
    if fill + end + waive > 1:
        problem = "--fill, --end and --waive are three calls."
        raise OptionError(problem, remedy="Give one: first --end, then --waive.")
    prefect_server.prepare_prefect()
    now = datetime.now(UTC)
    if end:
        return _end_promise(deployment, now)
    due = promises.list_due(deployment, read_time(since) if since else None, now)
    noted = promises.read_ledger(deployment, "waived")
    waived = {(read_time(one["time"]), str(one.get("part", ""))) for one in noted}
    found = list(promises.judge_promises(due, list_waiting(deployment), now, waived))
    counts = Counter[str](one.outcome for one in found)
    gaps = [one for one in found if one.outcome in promises.GAPS]
    if waive:
        promises.note_waived(deployment, gaps, now)
        for one in gaps:
            say(f"waived   {one.time:%Y-%m-%dT%H:%M:%SZ}  {one.reason}")
        return gaps_command(deployment, since, False)
    for one in found:
        if one.outcome not in ("made", "waived"):
            say(f"{one.outcome:8s} {one.time:%Y-%m-%dT%H:%M:%SZ}  {one.reason}")
    say(f"promised {len(found)}: " + ", ".join(f"{n} {name}" for name, n in sorted(counts.items())))
    whole = dict.fromkeys(("made", "waiting", "waived", *map(str, promises.GAPS)), 0) | counts
    newest = promises.find_newest(found, due[-1][1]) if due else 0.0
    begun = datetime.fromisoformat(promises.read_ledger(deployment)[0]["since"]).timestamp()
    watch.export_gauges(PromiseCollector(deployment, whole, newest or begun), promised=deployment)
    case = "there"
    with suppress(PrivpipeError):  # no server that answers: said above
        if not find_deployments(deployment):
            case = "lost" if promises.read_ledger(deployment)[-1]["schedules"] else "gone"
    remedy = audit_text.say(f"gaps_{case}", name=deployment)
    if case == "lost" and (fill or not gaps):
        say(remedy)
    absent = [one.time for one in gaps if one.outcome != "refused" and one.reason != promises.GONE]
    filled = start_runs(deployment, absent) if fill else []
    if gaps and not fill:
        raise ClusterError(
            f"{len(gaps)} of {len(found)} promised releases of {deployment} are not there; the "
            f"first is that of {gaps[0].time:%Y-%m-%dT%H:%M:%SZ}, {gaps[0].outcome}.",
            remedy=remedy,
            code="gaps",
        )
    return {"promised": [one.describe() for one in found], "filled": filled}


def _end_promise(name: str, now: datetime) -> dict[str, Any]:
    """Promise nothing more of a deployment that the server does not have."""
    promises.list_due(name, now, now)
    if find_deployments(name):
        problem = f"The server has the deployment {name!r}, and starts its runs when they are due."
        remedy = f"Remove it first: prefect deployment delete FLOW/{name}."
        raise ClusterError(problem, remedy=remedy, code="deployed")
    config = promises.read_ledger(name)[-1]["config"]  # what was promised before stays promised
    promises.note_promises([deployment_file.Deployment(name, "", "", "", config, ())], now)
    say(f"ended    nothing is promised of {name} from {now:%Y-%m-%dT%H:%M:%SZ} on")
    say(f"`privpipe gaps {name}` says what was missed before; with --waive that is no gap any more")
    return {"deployment": name, "ended": now.isoformat()}


def find_deployments(name: str) -> list[Any]:
    """Those of the server with a name, of whatever flow.

    Raises
    ------
    ClusterError
        If no server answers.
    """
    from prefect.client.schemas.filters import DeploymentFilter

    prefect_server.check_server()
    named = DeploymentFilter.model_validate({"name": {"any_": [name]}})
    with prefect_server.blaming_prefect(), _open_client() as client:
        return list(client.read_deployments(deployment_filter=named))


def list_waiting(name: str) -> dict[datetime, str]:
    """Logical times of runs that have not ended; empty where no server answers."""
    from prefect.client.schemas import filters, objects, sorting

    active = [kind for kind in objects.StateType if kind not in objects.TERMINAL_STATES]
    runs = filters.FlowRunFilter.model_validate({"state": {"type": {"any_": active}}})
    with_name = filters.DeploymentFilter.model_validate({"name": {"any_": [name]}})
    order = sorting.FlowRunSort.EXPECTED_START_TIME_DESC
    try:
        prefect_server.check_server()
        with prefect_server.blaming_prefect(), _open_client() as client:
            found, n_more = list[objects.FlowRun](), PAGE
            while n_more == PAGE:
                page = client.read_flow_runs(
                    flow_run_filter=runs,
                    deployment_filter=with_name,
                    sort=order,
                    limit=PAGE,
                    offset=len(found),
                )
                found, n_more = found + page, len(page)
    except PrivpipeError as error:
        say(f"prefect  does not say what waits ({error.code})")
        return {}
    return {
        read_time(time): str(run.state_name or "")
        for run in found
        if (time := run.parameters.get("logical_time") or run.expected_start_time)
    }


def start_runs(name: str, due: Sequence[datetime]) -> list[str]:
    """Start a run for each logical time, the earliest first; of growing releases for the last."""

    times = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in due]
    found = find_deployments(name)
    if len(found) != 1:
        problem = f"The server has {len(found)} deployments {name!r}."
        remedy = "Remove one of them: prefect deployment delete FLOW/NAME."
        if not found:
            remedy = "Run `privpipe deploy`, or privpipe run CONFIG --time TIME for each of them."
        raise ClusterError(problem, remedy=remedy)
    [deployment] = found
    with prefect_server.blaming_prefect(), _open_client() as client:
        if deployment.flow_id and "incremental" in (deployment.tags or ()):
            times = times[-1:]  # one run takes all partitions up to its time
        for time in times:
            client.create_flow_run_from_deployment(deployment.id, parameters={"logical_time": time})
            say(f"queued   {time}")
    return times


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
        unread = [health.Finding("warns", "code", one) for one in trusted_code.list_unrun(options)]
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
