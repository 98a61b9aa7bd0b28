"""What of a gate asks less than usual: a release within its limits is known by these alone.

Whoever runs the pipeline may set each limit to what was measured; whoever reads the release
must see that.
"""

from __future__ import annotations

from collections.abc import Iterator

from privpipe_flows.runs.configuration.run_options import AuditOptions, GateSection, RunOptions

__all__ = ["list_weaker_limits"]

LIMITS = (
    "confidential_advantage_max",
    "exposed_max",
    "must_find",
    "drift_max",
    "regression_max",
)
"""Keys of [gate] of which a larger number, or none, asks less."""

CHOICES = ("decides", "adversaries")
"""Keys of [audit] of which a shorter list asks less."""


def list_weaker_limits(options: RunOptions) -> list[str]:
    """Each key that asks less than its default, with its value and the usual one.

    Returns
    -------
    weaker
        As ``exposed_max 0.06 (usually 0.01)``; empty where all is as strict as usual.
    """
    return [*_find_limits(options.gate, GateSection()), *_find_audit(options.audit, AuditOptions())]


def _find_limits(section: GateSection, usual: GateSection) -> Iterator[str]:
    for name in LIMITS:
        value, default = getattr(section, name), getattr(usual, name)
        if value is None or value > default:
            yield f"{name} {'none' if value is None else f'{value:g}'} (usually {default:g})"


def _find_audit(section: AuditOptions, usual: AuditOptions) -> Iterator[str]:
    if section.level < usual.level:
        yield f"level {section.level:g} (usually {usual.level:g})"
    for name in CHOICES:
        missing = [one for one in getattr(usual, name) if one not in getattr(section, name)]
        if missing:
            yield f"{name} without {', '.join(missing)}"
