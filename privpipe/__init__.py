"""Sanitise very large record collections; see README.md.

The public names below are loaded when first used, so that ``import privpipe`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Guarantee": "privpipe.protocols",
    "IngestOptions": "privpipe.store.ingest",
    "KeyBinding": "privpipe.store.keys",
    "KeyedStream": "privpipe.numerics.streams",
    "NullSpaceCleaner": "privpipe.sanitizers.nullspace",
    "PrivpipeError": "privpipe.errors",
    "Records": "privpipe.records.memory",
    "SourceLayout": "privpipe.store.sources.source",
    "apply_dataset": "privpipe.dist.lazy",
    "export_release": "privpipe.store.export",
    "fit_null_space_cleaner": "privpipe.sanitizers.nullspace",
    "forget_key": "privpipe.store.keys",
    "ingest": "privpipe.store.ingest",
    "list_keys": "privpipe.store.keys",
    "make_key": "privpipe.store.keys",
    "open_collection": "privpipe.store.collection",
    "open_model": "privpipe.store.artifacts",
    "open_release": "privpipe.store.published",
    "solve_augmented_knapsack": "privpipe.numerics.knapsack",
    "write_model": "privpipe.store.artifacts",
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
    from privpipe.dist.lazy import apply_dataset as apply_dataset
    from privpipe.errors import PrivpipeError as PrivpipeError
    from privpipe.numerics.knapsack import solve_augmented_knapsack as solve_augmented_knapsack
    from privpipe.numerics.streams import KeyedStream as KeyedStream
    from privpipe.protocols import Guarantee as Guarantee
    from privpipe.records.memory import Records as Records
    from privpipe.sanitizers.nullspace import NullSpaceCleaner as NullSpaceCleaner
    from privpipe.sanitizers.nullspace import fit_null_space_cleaner as fit_null_space_cleaner
    from privpipe.store.artifacts import open_model as open_model
    from privpipe.store.artifacts import write_model as write_model
    from privpipe.store.collection import open_collection as open_collection
    from privpipe.store.export import export_release as export_release
    from privpipe.store.ingest import IngestOptions as IngestOptions
    from privpipe.store.ingest import ingest as ingest
    from privpipe.store.keys import KeyBinding as KeyBinding
    from privpipe.store.keys import forget_key as forget_key
    from privpipe.store.keys import list_keys as list_keys
    from privpipe.store.keys import make_key as make_key
    from privpipe.store.published import open_release as open_release
    from privpipe.store.sources.source import SourceLayout as SourceLayout
