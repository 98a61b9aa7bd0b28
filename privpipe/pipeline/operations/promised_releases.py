"""The ledger of promised releases: which a schedule says there should be, and what became of each.

``privpipe deploy`` notes the schedules of every deployment in the account's chain each time they
change. A promise lasts until another one takes its place, whatever Prefect's database forgets. A
promise that is taken back, or a release that is waived, has a link that says so. What became of it
is read where it counts: at the place of the release, and in the results of its last run. Prefect's
server, where it answers, says what still waits.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal

from privpipe.errors import OptionError, PrivpipeError
from privpipe.pipeline.operations.deployment_file import Deployment
from privpipe.pipeline.runs import configuration_file, watch
from privpipe.pipeline.runs.run_options import RunOptions
from privpipe.store.access.workspace import has_workspace, is_held
from privpipe.store.arrays.layout import exists
from privpipe.store.collections.growing_collection import read_partitions
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.account_chain import append_link, read_chain
from privpipe.store.releases.incremental_release import PrivateLedger, read_incremental

Outcome = Literal["made", "waiting", "refused", "failed", "missing", "waived"]
GAPS: tuple[Outcome, ...] = ("refused", "failed", "missing")
"""Outcomes that are no release, and will be none by themselves."""

GONE = "its configuration is gone"
"""Why a release is missing of which no place is known."""

GRACE = timedelta(hours=1)
"""After a release is due, while no run has left a trace."""


@dataclass(frozen=True)
class Promised:
    """A release, or a partition of an incremental one, that there should be.

    Parameters
    ----------
    time
        Its logical time.
    outcome, reason
        What became of it, and why.
    part
        Folder of a partition when it was appended, of which one time may have several.
    """

    time: datetime
    outcome: Outcome
    reason: str = ""
    part: str = ""

    def describe(self) -> dict[str, str]:
        """For machines."""
        return {**vars(self), "time": self.time.isoformat()}


def read_ledger(name: str, part: str = "promises") -> list[dict[str, Any]]:
    """What was promised of a deployment, the oldest first; empty where nothing was.

    The part "waived" has releases and partitions that will not be made: logical time, outcome,
    which partition, and when that was noted.

    Raises
    ------
    StoreError, FormatError
        As `read_chain`.
    """
    for one in reversed(read_chain(find_account()).links):
        if one.kind == "promise" and one.note["deployment"] == name:
            return list(one.note[part])
    return []


def note_promises(deployments: Sequence[Deployment], now: datetime) -> None:
    """Write down what is promised from now on, where it is not what was promised before."""
    for one in deployments:
        known = read_ledger(one.name)
        active = [[cron, zone] for cron, zone, is_active in one.schedules if is_active]
        promise = {"config": str(Path(one.config).absolute()), "schedules": active}
        if (known or active) and (not known or {**known[-1], **promise} != known[-1]):
            known.append({"since": now.isoformat(), **promise})
            _write(one.name, promises=known)


def note_waived(name: str, gaps: Sequence[Promised], now: datetime) -> None:
    """Write down which releases will not be made."""
    added = [one.describe() | {"noted": now.isoformat()} for one in gaps]
    _write(name, waived=read_ledger(name, "waived") + added)


def _write(name: str, **changed: Any) -> None:
    content = {part: read_ledger(name, part) for part in ("promises", "waived")} | changed
    # The whole of it, grown by what is new: no two such notes are equal.
    append_link(find_account(), "promise", {"deployment": name, **content})


def list_due(name: str, since: datetime | None, now: datetime) -> list[tuple[datetime, str]]:
    """Logical times that a deployment promised until now, each with its configuration.

    Raises
    ------
    OptionError
        If nothing was promised.
    """
    promises = read_ledger(name)
    if not promises:
        problem = f"Nothing is promised of a deployment {name!r}."
        remedy = "`privpipe deploy` notes schedules, where PRIVPIPE_ACCOUNT is."
        raise OptionError(problem, remedy=remedy, code="no-promise")
    ends = [*(datetime.fromisoformat(one["since"]) for one in promises[1:]), now]
    due: dict[datetime, str] = {}
    first = since or datetime.min.replace(tzinfo=UTC)
    for promise, end in zip(promises, ends, strict=True):
        begin = max(datetime.fromisoformat(promise["since"]), first)
        for cron, zone in promise["schedules"]:
            due |= dict.fromkeys(_list_times(cron, zone, begin, end), promise["config"])
    return sorted(due.items())


def _list_times(cron: str, zone: str, begin: datetime, end: datetime) -> Iterator[datetime]:
    # Prefect's own reading of a schedule, changes of the clock included; a thousand at a time.
    from prefect.server.schemas.schedules import CronSchedule

    schedule = CronSchedule(cron=cron, timezone=zone)
    while begin < end and (found := asyncio.run(schedule.get_dates(1000, begin, end))):
        for time in found:
            if time < end:
                # Pendulum's own times lose their zone in arithmetic.
                yield datetime.fromtimestamp(time.timestamp(), UTC)
        begin = found[-1] + timedelta(seconds=1)


def judge_promises(
    due: Sequence[tuple[datetime, str]],
    waiting: Mapping[datetime, str],
    now: datetime,
    waived: Collection[tuple[datetime, str]] = (),
) -> Iterator[Promised]:
    """What became of each.

    Parameters
    ----------
    due
        Of `list_due`.
    waiting
        Logical times for which Prefect's server has a run that has not ended, with its state.
    now
    waived
        Logical times and parts of what will not be made.
    """
    by_config = dict[str, list[datetime]]()
    for time, path in due:
        by_config.setdefault(path, []).append(time)
    found = list[Promised]()
    for path, times in by_config.items():
        if not Path(path).exists():  # who removed a deployment may have removed its file
            found += [Promised(time, "missing", GONE) for time in times]
            continue
        options = configuration_file.read_pattern(path)
        if options.release.incremental:
            found += judge_partitions(options, times[-1])
            continue
        pattern = options.release.path
        # At one place for all times there is one release, and the newest time says whether it is.
        some = times if configuration_file.PLACE in pattern else times[-1:]
        found += [_judge(pattern, time, waiting, now) for time in some]
    for one in sorted(found, key=lambda one: one.time):
        is_waived = one.outcome in GAPS and (one.time, one.part) in waived
        yield replace(one, outcome="waived") if is_waived else one


def _judge(
    pattern: str, time: datetime, waiting: Mapping[datetime, str], now: datetime
) -> Promised:
    url = configuration_file.fill_time(pattern, time)
    if exists(url) and not (url == pattern and _find_error(url)):
        return Promised(time, "made")
    if is_held(url) or time in waiting:
        return Promised(time, "waiting", waiting.get(time, "a run is at work"))
    return Promised(time, *_explain(url, time, now))


def _find_error(url: str) -> Any:
    """What the last run of a place failed by; nothing where it did not, or is not known."""
    with suppress(OSError, ValueError, PrivpipeError):
        return watch.read_results(url).get("error")
    return None


def _explain(url: str, time: datetime, now: datetime) -> tuple[Outcome, str]:
    """Why a release is not there, by what its last run left."""
    try:
        results = watch.read_results(url)
    except (OSError, ValueError, PrivpipeError):
        if has_workspace(url):
            return "missing", "a run began and its process died"
        return ("waiting", "is due") if now - time < GRACE else ("missing", "no run has begun")
    error = results.get("error")
    if not error:
        return "missing", f"the last run ended as: {results['outcome']}"
    refused = error["exit_code"] == 6  # a gate, or a promise that cannot be given
    return "refused" if refused else "failed", f"{error['code']}: {error['message']}"


def judge_partitions(options: RunOptions, until: datetime) -> Iterator[Promised]:
    """Likewise of the partitions of a growing collection, up to the last time that was due."""
    url = options.release.path
    found = read_incremental(url)
    released, withdrawn = set[str](), tuple[str, ...]()
    if found is not None:
        ledger = PrivateLedger(url)
        released = {str(ledger.read(part.id).get("content")) for part in found[1].parts}
        withdrawn = found[1].withdrawn
    for partition in read_partitions(options.collection.path):
        time = configuration_file.read_time(partition.time)
        if time > until:
            continue
        part = partition.known_by[1]
        if partition.content in released or (
            withdrawn and ledger.is_withdrawn(partition.known_by, withdrawn)
        ):
            yield Promised(time, "made", part=part)
        elif is_held(url):
            yield Promised(time, "waiting", "a run is at work", part)
        else:
            outcome, reason = _explain(url, time, until + GRACE)
            # Drift is of the partitions that it names, and stops no other.
            if reason.startswith("drift: ") and repr(partition.name) not in reason:
                outcome, reason = "missing", "no run has taken it"
            yield Promised(time, outcome, reason, part)


def find_newest(promised: Sequence[Promised], config: str) -> float:
    """When the newest release became visible, seconds since 1970; its logical time where only
    that is known, and 0 where there is none."""
    made = [one.time for one in promised if one.outcome == "made"]
    if not made:
        return 0.0
    with suppress(OSError, ValueError, KeyError, PrivpipeError):
        results = watch.read_results(configuration_file.read_options(config, made[-1]).release.path)
        if results["outcome"] == "published":
            return datetime.fromisoformat(results["finished"]).timestamp()
    return made[-1].timestamp()
