"""How a failed command ends: code, what, what to do; never a traceback or a record's value."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from privpipe.dist.boundary import seal
from privpipe.errors import PrivpipeError

__all__ = ["as_ours", "describe_failure", "show_failure"]


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
