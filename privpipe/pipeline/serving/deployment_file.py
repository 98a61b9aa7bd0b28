"""What a file of deployments may say; read and refused before a server hears of it.

Prefect takes a schedule without a zone, a parameter that the flow does not know and a limit that
piles runs up, and each is noticed at night.
"""

from __future__ import annotations

import importlib
import inspect
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
    pool
        Its work pool.
    schedules
        (cron, zone, active).
    config
        Configuration of its runs; None where they are given one each time.
    """

    name: str
    flow: str
    pool: str
    schedules: tuple[tuple[str, str, bool], ...]
    config: str | None


def read_deployments(path: str) -> list[Deployment]:
    """Read and check a file of deployments.

    Raises
    ------
    OptionError
        With the deployment, what is wrong with it, and what is allowed.
    """
    content = _load(path)
    items = content.get("deployments")
    if not isinstance(items, list) or not items:
        raise _refuse(path, "", "has no deployments", "List them below `deployments:`.")
    return [_read(path, item) for item in items]


def read_automations(path: str) -> list[dict[str, Any]]:
    """The automations of a file, each with a name."""
    found = _load(path).get("automations", [])
    for item in found:
        if not isinstance(item, dict) or not item.get("name"):
            raise _refuse(path, "", "has an automation without a name", "Name it.")
    return list(found)


def _load(path: str) -> dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.safe_load(file)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = type(error).__name__
    else:
        if isinstance(content, dict):
            return content
        problem = "no table"
    raise _refuse(path, "", f"cannot be read ({problem})", "Give a YAML file.")


def _read(path: str, item: Mapping[str, Any]) -> Deployment:
    name = str(item.get("name", "(no name)"))
    flow = _load_flow(path, name, str(item.get("entrypoint", "")))
    for problem, remedy in (*_check_parameters(item, flow), *_check_schedules(item)):
        raise _refuse(path, name, problem, remedy)
    limit = item.get("concurrency_limit")
    if not isinstance(limit, Mapping) or limit.get("collision_strategy") != "CANCEL_NEW":
        raise _refuse(
            path,
            name,
            "does not say what happens to a run that finds another at work",
            "Give concurrency_limit: {limit: 1, collision_strategy: CANCEL_NEW}; ENQUEUE piles "
            "runs up and starts them out of order.",
        )
    pool = item.get("work_pool") or {}
    return Deployment(
        name,
        flow.name,
        str(pool.get("name", "")),
        tuple((s["cron"], s["timezone"], s.get("active", True)) for s in _schedules(item)),
        (item.get("parameters") or {}).get("config_path"),
    )


def _load_flow(path: str, name: str, entrypoint: str) -> Any:
    module, _, function = entrypoint.rpartition(".")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError):
        raise _refuse(
            path,
            name,
            f"names the entrypoint {entrypoint!r}, which is not installed",
            "Use privpipe.flows.deployments.release, or another flow of that module.",
        ) from None


def _check_parameters(item: Mapping[str, Any], flow: Any) -> Iterator[tuple[str, str]]:
    known = list(inspect.signature(flow.fn).parameters)
    for name in item.get("parameters") or {}:
        if name not in known:
            yield (
                f"gives the parameter {name!r}, which its flow does not know{suggest(name, known)}",
                f"Use {', '.join(known)}.",
            )
    if item.get("enforce_parameter_schema") is False:
        yield "does not check parameters", "Leave out enforce_parameter_schema: false."


def _check_schedules(item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for schedule in _schedules(item):
        zone = schedule.get("timezone")
        if zone not in available_timezones():
            given = "names no time zone" if zone is None else f"names the zone {zone!r}, unknown"
            yield (
                f"has a schedule that {given}",
                "Give an IANA zone, as timezone: Europe/Berlin, or Etc/UTC.",
            )
        if not isinstance(schedule.get("cron"), str):
            yield "has a schedule without cron", 'Give five fields, as cron: "0 2 * * *".'


def _schedules(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = item.get("schedules") or ([item["schedule"]] if item.get("schedule") else [])
    return list(found)


def _refuse(path: str, name: str, problem: str, remedy: str) -> OptionError:
    of = f": the deployment {name!r}" if name else ""
    return OptionError(f"{path}{of} {problem.rstrip('.')}.", remedy=remedy, code="deployment-file")
