"""How a command warns and fails: code, what, what to do; never a traceback or a record's value."""

from __future__ import annotations

import warnings
from typing import TextIO

from rich.console import Console

from privpipe.dist.boundary import seal
from privpipe.errors import PrivacyWarning, PrivpipeError

__all__ = ["report_failure", "report_warnings"]


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


def report_failure(error: Exception) -> int:
    """Print the error and return the exit code of its class."""
    sealed = error if isinstance(error, PrivpipeError) else seal(error, "privpipe")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"error[{sealed.code}]: {sealed.message}", style="red", markup=False)
    if sealed.remedy:
        console.print(sealed.remedy.strip(), markup=False)
    return sealed.exit_code if isinstance(error, PrivpipeError) else PrivpipeError.exit_code
