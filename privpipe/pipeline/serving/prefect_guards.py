"""Telling Prefect how a run goes: tried a few times, and never a reason for the run to fail."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from rich.console import Console  # noqa: TID251 - makes none

from privpipe.errors import ClusterError
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


def outlive_reader() -> None:
    """From now on no console of this process ends it for want of a reader."""
    Console.on_broken_pipe = _fall_silent  # type: ignore[assignment,method-assign]


def _fall_silent(console: Console) -> None:
    """In the place of `rich.console.Console.on_broken_pipe`: later lines go nowhere."""
    with suppress(OSError, ValueError):  # a file that is closed, or none of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, console.file.fileno())
        os.close(nowhere)


def refuse_stored_results() -> None:
    """From now on this process reads no result that Prefect names.

    For processes that run our flows alone: the command, and a deployed flow run.
    """
    # Classmethods both, and the only places where Prefect (3.8) makes an object of stored bytes.
    from prefect._internal.result_records import ResultRecord

    for name in ("deserialize", "deserialize_from_result_and_metadata"):
        if not callable(getattr(ResultRecord, name, None)):
            raise _refuse("Prefect reads stored results in another way than this version knows.")
        setattr(ResultRecord, name, classmethod(_refuse_reading))


def _refuse_reading(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
    raise _refuse("Prefect's server names a stored result of this run, and the run stored none.")


def _refuse(problem: str) -> ClusterError:
    return ClusterError(
        f"{problem} Nothing was read.",
        remedy="Look who answers at PREFECT_API_URL; if it is your server, install the versions of "
        "constraints.txt.",
        code="foreign-result",
    )
