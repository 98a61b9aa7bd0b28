"""What is learned and what it promises: options, fits, frozen maps; a wing per family of methods.

`METHODS` is the one table that flows, stores, contract tests and documentation read. It is loaded
when first read, so that one method is used without loading the others.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privpipe.sanitizers.method_table import METHODS as METHODS
    from privpipe.sanitizers.method_table import RECORD_MAPS as RECORD_MAPS
    from privpipe.sanitizers.method_table import STATISTICS as STATISTICS


def __getattr__(name: str) -> Any:
    if name not in {"METHODS", "RECORD_MAPS", "STATISTICS"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.method_table"), name)
