"""Sanitise very large record collections; see README.md.

The public names are those of the stub ``__init__.pyi``. They are loaded when first used, so that
``import privpipe`` stays cheap.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

from privpipe.extras import explain_missing

# One list for type checkers and for what is loaded at first use.
_HOME = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, ast.ImportFrom)
    for alias in node.names
}

__version__ = "0.1.0"
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'privpipe' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        raise explain_missing(error) from None


def __dir__() -> list[str]:
    return sorted(__all__)
