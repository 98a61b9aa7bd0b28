"""Telling Prefect how a run goes: tried a few times, and never a reason for the run to fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from privpipe.report.console import say

PAUSES = (0.2, 1.0)
"""Seconds between attempts. Prefect's client has tried each request several times by then."""


def tell_prefect(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What the function answers; None, and one line, where Prefect's server does not take it."""
    for pause in (*PAUSES, None):
        try:
            return function(*given, **named)
        except Exception as error:  # many kinds: HTTP statuses, lost connections, time-outs
            problem = type(error).__name__
        if pause is not None:
            time.sleep(pause)
    say(f"prefect  does not take {function.__name__} ({problem}); the run goes on", stderr=True)
    return None
