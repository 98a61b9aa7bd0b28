"""``privpipe gaps``: promised releases that are not there, and runs that make them."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from privpipe.cluster.workers.progress import PromiseCollector
from privpipe.errors import ClusterError, OptionError, PrivpipeError
from privpipe.pipeline.operations import prefect_server
from privpipe.pipeline.operations import promised_releases as promises
from privpipe.pipeline.operations.deployment_file import Deployment
from privpipe.pipeline.runs.configuration_file import read_time
from privpipe.pipeline.runs.watch import export_gauges
from privpipe.report import audit_text
from privpipe.report.console import say

PAGE = 200
"""Runs of a deployment that the server names at once."""


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
    export_gauges(PromiseCollector(deployment, whole, newest or begun), promised=deployment)
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
    promises.note_promises([Deployment(name, "", "", "", config, ())], now)
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
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import DeploymentFilter

    prefect_server.check_server()
    named = DeploymentFilter.model_validate({"name": {"any_": [name]}})
    with prefect_server.blaming_prefect(), get_client(sync_client=True) as client:
        return list(client.read_deployments(deployment_filter=named))


def list_waiting(name: str) -> dict[datetime, str]:
    """Logical times of runs that have not ended; empty where no server answers."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas import filters, objects, sorting

    active = [kind for kind in objects.StateType if kind not in objects.TERMINAL_STATES]
    runs = filters.FlowRunFilter.model_validate({"state": {"type": {"any_": active}}})
    with_name = filters.DeploymentFilter.model_validate({"name": {"any_": [name]}})
    order = sorting.FlowRunSort.EXPECTED_START_TIME_DESC
    try:
        prefect_server.check_server()
        with prefect_server.blaming_prefect(), get_client(sync_client=True) as client:
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
    from prefect.client.orchestration import get_client

    times = [f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in due]
    found = find_deployments(name)
    if len(found) != 1:
        problem = f"The server has {len(found)} deployments {name!r}."
        remedy = "Remove one of them: prefect deployment delete FLOW/NAME."
        if not found:
            remedy = "Run `privpipe deploy`, or privpipe run CONFIG --time TIME for each of them."
        raise ClusterError(problem, remedy=remedy)
    [deployment] = found
    with prefect_server.blaming_prefect(), get_client(sync_client=True) as client:
        if deployment.flow_id and "incremental" in (deployment.tags or ()):
            times = times[-1:]  # one run takes all partitions up to its time
        for time in times:
            client.create_flow_run_from_deployment(deployment.id, parameters={"logical_time": time})
            say(f"queued   {time}")
    return times
