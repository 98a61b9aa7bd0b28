"""The command `privpipe`: a module per subcommand, loaded only when it is called."""

from __future__ import annotations

import os
import sys

from flows.command.app import app

__all__ = ["main"]


def main() -> None:
    """Run the command; errors become one message on stderr and an exit code by class."""
    os.umask(0o077)  # whatever a run writes is private until its owner says otherwise
    debug = "--debug" in sys.argv
    if debug:
        sys.argv.remove("--debug")
        app()
        return
    from flows.command.failure import report_failure, report_warnings

    report_warnings()
    try:
        app()
    except Exception as error:
        code = report_failure(error)
    else:
        code = 0
    sys.exit(code)
