"""What a file of deployments may say; read and refused before a server hears of it.

Prefect takes a schedule without a zone, a parameter that the flow does not know and runs that
overlap, and each is noticed at night.
"""

import importlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import available_timezones

import yaml

from privpipe.errors import OptionError
from privpipe.records.schema import suggest


@dataclass(frozen=True)
class Deployment:
    """One deployment as the file says it.

    Parameters
    ----------
    name, flow
        ``flow/name`` is how Prefect calls it.
    pool, queue
        Its work pool, and the queue in it that starts its runs one by one.
    config
        Path of the configuration that its runs read.
    schedules
        (cron, zone, active).
    """

    name: str
    flow: str
    pool: str
    queue: str
    config: str
    schedules: tuple[tuple[str, str, bool], ...]


def read_deployments(path: str) -> list[Deployment]:
    """Read and check a file of deployments.

    Raises
    ------
    OptionError
        With the deployment, what is wrong with it, and what is allowed.
    """
    items = _load(path).get("deployments")
    if not isinstance(items, list) or not items:
        raise _refuse(path, "has no deployments", "List them below `deployments:`.")
    found = [_read(path, item) for item in items]
    queues: dict[str, Deployment] = {}
    names = [one.name for one in found]
    for one in found:
        if names.count(one.name) > 1:  # what is promised is noted by it
            remedy = "Give each a name of its own."
            raise _refuse(path, f"has several deployments named {one.name!r}", remedy)
        other = queues.setdefault(one.config, one)
        if (one.pool, one.queue) != (other.pool, other.queue):
            raise _refuse(
                f"{path}: the deployment {one.name!r}",
                f"writes the release of {one.config}, as {other.name!r} does, from another queue",
                f"Give both the work_queue_name {other.queue}: a queue starts one run at a time.",
            )
    return found


def read_automations(path: str) -> list[dict[str, Any]]:
    """The automations of a file, each with a name; none where there is no file."""
    found = _load(path).get("automations", []) if os.path.exists(path) else []
    if not all(isinstance(item, dict) and item.get("name") for item in found):
        raise _refuse(path, "has an automation without a name", "Name it.")
    return list(found)


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise _refuse(
            path, f"cannot be read ({type(error).__name__})", "Give a YAML file."
        ) from None
    if not isinstance(content, dict):
        raise _refuse(path, "cannot be read (no table)", "Give a YAML file.")
    return content


def _read(path: str, item: Mapping[str, Any]) -> Deployment:
    name, entrypoint = str(item.get("name", "(no name)")), str(item.get("entrypoint", ""))
    flow = _load_flow(entrypoint)
    for problem, remedy in _list_problems(item, entrypoint, flow):
        raise _refuse(f"{path}: the deployment {name!r}", problem, remedy)
    schedules = [(s["cron"], s["timezone"], s.get("active", True)) for s in _schedules(item)]
    pool, config = item["work_pool"], (item.get("parameters") or {}).get("config_path", "")
    place = (str(pool.get("name", "")), str(pool["work_queue_name"]))
    return Deployment(name, flow.name, *place, str(config), tuple(schedules))


def _load_flow(entrypoint: str) -> Any:
    """The flow; None where it is not installed."""
    module, _, function = entrypoint.rpartition(".")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        return None


def _list_problems(item: Mapping[str, Any], entry: str, flow: Any) -> Iterator[tuple[str, str]]:
    """What is wrong with a deployment, each with its remedy."""
    from prefect.server.schemas.schedules import CronSchedule

    if flow is None:
        remedy = "Use privpipe.flows.deployments.release, or another flow of that module."
        yield f"names the entrypoint {entry!r}, which is not installed", remedy
    if not re.fullmatch(r"[^/%\\]+", str(item.get("name") or "")):
        yield "has no name, or a / or % in it", "Give a name, as name: release."
    known = list(inspect.signature(flow.fn).parameters)
    for name in set(item.get("parameters") or {}) - set(known):
        problem = f"gives the parameter {name!r}, which its flow does not know"
        yield f"{problem}{suggest(name, known)}", f"Use {', '.join(known)}."
    # The types of the flow are what keeps a caller of the server to paths, names and times.
    if item.get("enforce_parameter_schema") is False:
        yield "does not check parameters", "Leave out enforce_parameter_schema: false."
    for schedule in _schedules(item):
        # Prefect takes a schedule without a zone for one in UTC.
        if (zone := schedule.get("timezone")) not in available_timezones():
            given = "names no time zone" if zone is None else f"names the zone {zone!r}, unknown"
            remedy = "Give an IANA zone, as timezone: Europe/Berlin, or Etc/UTC."
            yield f"has a schedule that {given}", remedy
        cron = schedule.get("cron")
        try:  # as Prefect reads it; what it refuses would be promised all the same
            CronSchedule(cron=cron, timezone="Etc/UTC")
        except ValueError:
            problem = (
                f"has the cron {cron!r}, which is none" if cron else "has a schedule without cron"
            )
            yield problem, 'Give five fields, as cron: "0 2 * * *".'
    if not (item.get("work_pool") or {}).get("work_queue_name"):
        remedy = "Give work_pool: {name: privpipe, work_queue_name: releases}."
        yield "names no queue, so that its runs may overlap and come out of order", remedy
    # Prefect's server holds such a slot by a lease of 300 s, which a run cannot renew while the
    # server is away: the sound run is ended.
    if item.get("concurrency_limit") is not None:
        remedy = "Leave it out: the queue of its work pool starts one run at a time."
        yield "has a concurrency_limit, which ends sound runs when Prefect's server is away", remedy


def _schedules(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(item.get("schedules") or ([item["schedule"]] if item.get("schedule") else []))


def _refuse(what: str, problem: str, remedy: str) -> OptionError:
    return OptionError(f"{what} {problem.rstrip('.')}.", remedy=remedy, code="deployment-file")
