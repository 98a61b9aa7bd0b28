"""What a command leaves: text for people, one JSON document for machines, and how it fails.

A failure has a code, what is wrong and what to do; it is never a traceback or a record's value.
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any

from privpipe.cluster.executors.boundary import seal
from privpipe.errors import PrivpipeError, PrivpipeWarning, StoreError
from privpipe.report.console import say, say_raw
from privpipe.store.access.location import explain_file_error, shown


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Whatever is printed goes to stderr, also by libraries and child processes."""
    # What is in Python's buffer must not come out on the other side of the change.
    sys.stdout.flush()
    saved = os.dup(1)
    # The descriptor, not the Python object alone: child processes and C libraries write too.
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)


@contextmanager
def talking_on_stderr() -> Iterator[None]:
    """The same for what is said to people, which `printing_to_stderr` leaves out."""
    with printing_to_stderr(), open(2, "w", closefd=False) as stream, redirect_stdout(stream):
        yield


def print_document(content: Any) -> None:
    """Print the one document of a command; who stops reading early, as `head`, has had enough."""
    try:
        say_raw(json.dumps(content, indent=1), flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def report_warnings() -> None:
    """From now on print our own warnings as one line each, without a place in the code."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, PrivpipeWarning):
            say(f"warning[{category.code}]: {message}", style="yellow", stderr=True)
        else:
            usual(message, category, *place, **more)

    warnings.showwarning = show


def as_ours(error: Exception) -> PrivpipeError:
    """The error as one of ours, which holds no foreign text."""
    name, of_file = getattr(error, "filename", None), None
    if isinstance(name, str):
        of_file = explain_file_error(error, shown(name))
    # The text of a foreign exception may hold a record's value.
    return error if isinstance(error, PrivpipeError) else of_file or seal(error, "privpipe")


def show_failure(error: PrivpipeError) -> None:
    """Print the error on stderr."""
    say(f"error[{error.code}]: {error.message}", style="red", stderr=True)
    if error.remedy:
        say(error.remedy.strip(), stderr=True)


def check_new(out: str) -> None:
    """Raise StoreError where a file is, or its folder is not: before what would take minutes."""
    if os.path.lexists(out):
        raise StoreError(f"{out} exists.", remedy="Choose another place.", code="exists")
    if not os.path.isdir(os.path.dirname(out) or "."):
        problem = f"{out} cannot be written: its folder is not there."
        raise StoreError(problem, remedy="Make the folder, or choose another.", code="refused")


def write_new(out: str, text: str) -> None:
    """Write a file where there is none.

    Raises
    ------
    StoreError
        If there is one, or it cannot be written.
    """
    try:
        # "x": never over a configuration that is there, also where two processes write.
        with open(out, "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise StoreError(f"{out} exists.", remedy="Choose another place.", code="exists") from None
    except OSError as error:
        with suppress(OSError):  # what a full disk left of it would be in the way of the next
            os.unlink(out)
        problem = f"{out} cannot be written ({error.strerror})."
        raise explain_file_error(error, out) or StoreError(
            problem, remedy="Choose another place.", code="refused"
        ) from None
