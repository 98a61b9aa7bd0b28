"""The command `privpipe`: a module per subcommand, loaded only when it is called."""

import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from privpipe.command.app import app

INTERRUPTED = 130
"""As shells say of what was stopped by Ctrl-C."""

# A newer typer brings a click of its own (typer._click); before, click's class is the base.
_UsageError: Any = typer.BadParameter.__base__
"""Wrong command lines, of the click that this typer brings along or depends on."""


def main(program: typer.Typer = app) -> None:
    """Run a command; errors become one message on stderr and an exit code by class.

    With ``--json`` stdout holds exactly one document, also when the command failed.
    """
    os.umask(0o077)  # whatever a run writes is private until its owner says otherwise
    # Taken out by hand: it must hold while the options themselves are read.
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
    if "--plain" in sys.argv:
        sys.argv.remove("--plain")
        os.environ["PRIVPIPE_PLAIN"] = "1"  # `console` reads it; importing that takes a while
    # Before the command is known: a wrong command line is one document as well.
    with interrupting():
        if "--json" not in sys.argv or "--help" in sys.argv:
            sys.exit(_run(program, debug)[0])
        from privpipe.command.output import print_document, printing_to_stderr

        with printing_to_stderr():
            code, answer = _run(program, debug)
        print_document(answer)
    sys.exit(code)


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP: handled as Ctrl-C is, so that everything is tidied up."""


@contextmanager
def interrupting() -> Iterator[None]:
    """Turn the signals that end a process at once into an exception, the first time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise Terminated(signal.Signals(number).name)

    usual = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        usual[number] = signal.getsignal(number)
        if usual[number] is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in usual.items():
            # Once the process ends, the rest of its end is not to be disturbed either.
            signal.signal(number, signal.SIG_IGN if received else handler)


def _run(program: typer.Typer, debug: bool) -> tuple[int, Any]:
    """Exit code, and what the command answers to a machine."""
    if not debug:
        from privpipe.command.output import report_warnings

        report_warnings()
    try:
        answer = program(standalone_mode=False)
    except _UsageError as error:
        message = error.format_message()
        _show_usage(error)
        return 2, _refuse("usage", 2, message, "See `privpipe COMMAND --help`.")
    except (typer.Abort, KeyboardInterrupt):
        answer = INTERRUPTED
    except Exception as error:
        if debug:
            raise
        from privpipe.command.output import as_ours, show_failure

        ours = as_ours(error)
        show_failure(ours)
        return ours.exit_code, {"error": ours.describe()}
    if answer == INTERRUPTED:
        message = "The command was interrupted."
        from privpipe.report.console import say

        say(message, stderr=True)
        remedy = "Run it again: an interrupted run resumes where it stopped."
        return INTERRUPTED, _refuse("interrupted", INTERRUPTED, message, remedy)
    # Only --help and its like end with a number of their own.
    return (answer, None) if isinstance(answer, int) else (0, answer)


def _show_usage(error: Any) -> None:
    """What click says of a wrong command line, which quotes it."""
    from privpipe.report.console import say

    said = io.StringIO()
    error.show(said)
    say(said.getvalue().rstrip("\n"), stderr=True)


def _refuse(code: str, exit_code: int, message: str, remedy: str) -> dict[str, Any]:
    return {"error": {"code": code, "exit_code": exit_code, "message": message, "remedy": remedy}}
