"""What of a gate asks less than usual: a release within its limits is known by these alone.

Whoever runs the pipeline may set each limit to what was measured; whoever reads the release
must see that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from privpipe.pipeline.runs.lasting import is_promised_across_runs
from privpipe.pipeline.runs.run_options import GateSection, RunOptions

LARGER = {
    "gate": ("confidential_advantage_max", "exposed_max", "must_find", "linkage_max", "drift_max")
}
"""Keys of which a larger number, or none, asks less: more is allowed."""

SMALLER = {"audit": ("level", "holdout", "max_records")}
"""Keys of which a smaller number asks less."""

CHOICES = ("decides", "adversaries")
"""Keys of [audit] of which a shorter list asks less."""

NAMED = ("group", "uninformative", "vouched")
"""Keys of [audit] by which something is not asked at all: of records of one group who is who, of
variables whether raw records tell them, of what was not judged whether it leaks."""


def list_weaker_limits(options: RunOptions) -> list[str]:
    """Each key that asks less than its default, with its value and the usual one.

    Returns
    -------
    weaker
        As ``exposed_max 0.06 (usually 0.01)``; empty where all is as strict as usual.
    """
    found = []
    for section in ("gate", "audit"):
        mine = getattr(options, section)
        usual = type(mine)()
        found += [*_find_numbers(section, mine, usual)]
    usual = GateSection().single_records
    if (single := options.gate.single_records) != usual:
        found.append(f"single_records {single} (usually {usual})")
    choices = _find_choices(options.audit, type(options.audit)())
    return [*found, *choices, *_find_forgotten(options)]


def _find_forgotten(options: RunOptions) -> Iterator[str]:
    """What of earlier releases is left out of account, or will be of this one."""
    if options.privacy.ephemeral == "accept" and is_promised_across_runs(options):
        yield "ephemeral accept (usually refuse)"
    if options.release.anew:
        yield "a model learned anew beside earlier ones (usually the same)"
    if options.audit.unreachable == "report":
        yield "unreachable report (usually refuse)"
    if options.audit.disowned:
        yield f"earlier releases disowned: {', '.join(map(_name_last, options.audit.disowned))}"


def _name_last(disowned: str) -> str:
    """A run, or the last name of a place: no path."""
    return disowned.rstrip("/").rpartition("/")[2]


def _find_numbers(section: str, mine: Any, usual: Any) -> Iterator[str]:
    signs = [(name, 1) for name in LARGER.get(section, ())]
    signs += [(name, -1) for name in SMALLER.get(section, ())]
    for name, sign in signs:
        value, default = getattr(mine, name), getattr(usual, name)
        if default is not None and (value is None or sign * value > sign * default):
            yield f"{name} {'none' if value is None else f'{value:g}'} (usually {default:g})"


def _find_choices(mine: Any, usual: Any) -> Iterator[str]:
    for name in CHOICES:
        missing = [one for one in getattr(usual, name) if one not in getattr(mine, name)]
        if missing:
            yield f"{name} without {', '.join(missing)}"
    for name in NAMED:
        if value := getattr(mine, name):
            shown = value if isinstance(value, str) else ", ".join(value)
            yield f"{name} {shown} (usually none)"
