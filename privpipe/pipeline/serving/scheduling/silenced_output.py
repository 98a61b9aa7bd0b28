"""Going on without a reader of stdout and stderr, as the runs of a Prefect worker that died must.

A worker reads what its runs print; when it is killed, the next line is written to a pipe without a
reader. Rich, which prints for Prefect and for us, then ends the process with SystemExit: a sound
run whose lease and workspace stay behind. Nobody reads the lines any more, and nothing else is
lost with them.
"""

from __future__ import annotations

import os
from contextlib import suppress

from rich.console import Console  # noqa: TID251 - makes none


def outlive_reader() -> None:
    """From now on no console of this process ends it for want of a reader."""
    Console.on_broken_pipe = _fall_silent  # type: ignore[assignment,method-assign]


def _fall_silent(console: Console) -> None:
    """In the place of `rich.console.Console.on_broken_pipe`: later lines go nowhere."""
    with suppress(OSError, ValueError):  # a file that is closed, or none of the system's
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, console.file.fileno())
        os.close(nowhere)
