"""How a command warns and fails: code, what, what to do; never a traceback or a record's value."""

from __future__ import annotations

import warnings
from typing import Any, TextIO

from privpipe.cluster.workers.boundary import seal
from privpipe.errors import GuessWarning, LeftOutWarning, PrivacyWarning, PrivpipeError
from privpipe.report.console import say

OURS = {PrivacyWarning: "privacy", GuessWarning: "guess", LeftOutWarning: "left-out"}


def report_warnings() -> None:
    """From now on print our own warnings as one line each, without a place in the code."""
    usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        name = next((name for kind, name in OURS.items() if issubclass(category, kind)), None)
        if name is None:
            usual(message, category, filename, lineno, file, line)
            return
        say(f"warning[{name}]: {message}", style="yellow", stderr=True)

    warnings.showwarning = show


def as_ours(error: Exception) -> PrivpipeError:
    """The error as one of ours, which holds no foreign text."""
    return error if isinstance(error, PrivpipeError) else seal(error, "privpipe")


def describe_failure(error: PrivpipeError) -> dict[str, Any]:
    """The error for machines."""
    return {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": error.message,
        "remedy": error.remedy.strip(),
    }


def show_failure(error: PrivpipeError) -> None:
    """Print the error on stderr."""
    say(f"error[{error.code}]: {error.message}", style="red", stderr=True)
    if error.remedy:
        say(error.remedy.strip(), stderr=True)
