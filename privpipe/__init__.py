"""Sanitise very large record collections; see README.md.

The public names below are loaded when first used, so that ``import privpipe`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Guarantee": "privpipe.protocols",
    "PrivpipeError": "privpipe.errors",
    "write_model": "privpipe.store.artifacts",
    "open_release": "privpipe.store.published",
    "open_model": "privpipe.store.artifacts",
    "open_collection": "privpipe.store.collection",
    "solve_augmented_knapsack": "privpipe.numerics.knapsack",
    "fit_null_space_cleaner": "privpipe.sanitizers.nullspace",
    "NullSpaceCleaner": "privpipe.sanitizers.nullspace",
    "Records": "privpipe.records.memory",
}

__version__ = "0.1.0"
__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'privpipe' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from privpipe.errors import PrivpipeError as PrivpipeError
    from privpipe.numerics.knapsack import solve_augmented_knapsack as solve_augmented_knapsack
    from privpipe.protocols import Guarantee as Guarantee
    from privpipe.records.memory import Records as Records
    from privpipe.sanitizers.nullspace import NullSpaceCleaner as NullSpaceCleaner
    from privpipe.sanitizers.nullspace import fit_null_space_cleaner as fit_null_space_cleaner
    from privpipe.store.artifacts import open_model as open_model
    from privpipe.store.artifacts import write_model as write_model
    from privpipe.store.collection import open_collection as open_collection
    from privpipe.store.published import open_release as open_release
