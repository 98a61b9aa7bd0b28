"""What a command leaves on stdout: text for people, or exactly one JSON document for machines."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from privpipe.report.console import say_raw


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Whatever is printed goes to stderr, also by libraries and child processes."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def print_document(content: Any) -> None:
    """Print the one document of a command; who stops reading early, as `head`, has had enough."""
    try:
        say_raw(json.dumps(content, indent=1), flush=True)
    except BrokenPipeError:
        # Python flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
