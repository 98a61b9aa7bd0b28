"""What the library does not need and a cluster, a schedule or a page does: extras, and their names.

``pip install privpipe`` is the library: records in memory, fitted maps, models and releases on
disk. Chunks on workers, foreign files and compiled loops come with ``privpipe[cluster]``; the
command, flows and pages with ``privpipe[flows]``.
"""

import atexit
import gc
import importlib
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

EXTRAS = tomllib.loads(Path(__file__).with_name("extras.toml").read_text("utf-8"))
"""Packages by import name; the requirements are in pyproject.toml."""


def name_extra(module: str) -> str | None:
    """The extra that brings a module; None where no extra does.

    >>> name_extra("dask.array"), name_extra("numpy")
    ('cluster', None)
    """
    # What fails to import may be a part of the package.
    top = module.partition(".")[0]
    return next((extra for extra, names in EXTRAS.items() if top in names), None)


def explain_missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error, which says what to install where an extra brings the module.

    >>> print(explain_missing(ModuleNotFoundError(name="pyarrow")))
    pyarrow is not installed. Install it with: pip install 'privpipe[cluster]'
    """
    extra = name_extra(error.name or "")
    if extra is None:
        return error
    message = f"{error.name} is not installed. Install it with: pip install 'privpipe[{extra}]'"
    return ModuleNotFoundError(message, name=error.name)


def is_installed(module: str) -> bool:
    """Whether a module can be imported, without importing it."""
    return find_spec(module) is not None


def run_command() -> None:
    """The command ``privpipe``; without its extra it says what to install."""
    try:
        command = importlib.import_module("privpipe.command")
    except ModuleNotFoundError as error:
        sys.exit(str(explain_missing(error)))
    # Python ends by looking for cycles in all that was ever imported: .8 s after the last line.
    atexit.register(gc.freeze)
    command.main()
