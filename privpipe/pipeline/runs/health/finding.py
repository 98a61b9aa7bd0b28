"""A check's answer, and how checks are run: one that breaks is a finding, not an end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from privpipe.cluster.workers.boundary import seal


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Parameters
    ----------
    state
        "ok", "warns" (works, and will not for long or not for everybody) or "fails".
    what
        The thing looked at, in two or three words.
    detail
        What was seen.
    remedy
        The way out; empty where nothing is wrong.
    """

    state: Literal["ok", "warns", "fails"]
    what: str
    detail: str
    remedy: str = ""


Check = Callable[[], Iterable[Finding]]


def run_checks(checks: Iterable[tuple[str, Check]]) -> Iterator[Finding]:
    """Findings of all checks, in order; a check that breaks fails with what it says."""
    for name, check in checks:
        found: list[Finding] = []
        try:
            found.extend(check())
        except Exception as error:
            sealed = seal(error, name)
            found.append(Finding("fails", name, sealed.message, sealed.remedy))
        yield from found
