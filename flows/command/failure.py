"""How a command warns and fails: code, what, what to do; never a traceback or a record's value."""

from __future__ import annotations

import warnings
from typing import Any, TextIO

from rich.console import Console

from privpipe.dist.boundary import seal
from privpipe.errors import PrivacyWarning, PrivpipeError

__all__ = ["as_ours", "describe_failure", "report_warnings", "show_failure"]


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
        if not issubclass(category, PrivacyWarning):
            usual(message, category, filename, lineno, file, line)
            return
        console = Console(stderr=True, highlight=False, soft_wrap=True)
        console.print(f"warning[privacy]: {message}", style="yellow", markup=False)

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
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"error[{error.code}]: {error.message}", style="red", markup=False)
    if error.remedy:
        console.print(error.remedy.strip(), markup=False)
