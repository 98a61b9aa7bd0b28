"""How a failed command ends: code, what, what to do; never a traceback or a record's value."""

from __future__ import annotations

from rich.console import Console

from privpipe.dist.boundary import seal
from privpipe.errors import PrivpipeError

__all__ = ["report_failure"]


def report_failure(error: Exception) -> int:
    """Print the error and return the exit code of its class."""
    sealed = error if isinstance(error, PrivpipeError) else seal(error, "privpipe")
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(f"error[{sealed.code}]: {sealed.message}", style="red", markup=False)
    if sealed.remedy:
        console.print(sealed.remedy.strip(), markup=False)
    return sealed.exit_code if isinstance(error, PrivpipeError) else PrivpipeError.exit_code
