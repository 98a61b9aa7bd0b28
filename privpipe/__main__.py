"""The command ``privpipe``, or ``python -m privpipe``; says what to install where it must."""

from __future__ import annotations

import sys

from privpipe.extras import explain_missing


def main() -> None:
    """Run a command."""
    try:
        from privpipe.command import main as run
    except ModuleNotFoundError as error:
        sys.exit(str(explain_missing(error)))
    run()


if __name__ == "__main__":
    main()
