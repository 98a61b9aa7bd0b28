"""One module per method: its options, its fit functions, its frozen fitted map.

`METHODS` is the one table that flows, contract tests and documentation read; a new method is a
module and a row.
"""

from __future__ import annotations

from typing import Any

from privpipe.protocols import Method, RecordMap
from privpipe.sanitizers.mapping import SparseMapping
from privpipe.sanitizers.mapping_fit import PRIVACY_MAPPING
from privpipe.sanitizers.nullspace import NullSpaceCleaner, NullSpaceOptions, fit_null_space

__all__ = ["METHODS", "RECORD_MAPS"]

METHODS: dict[str, Method[Any]] = {
    method.name: method
    for method in (
        Method(
            name="null_space",
            options=NullSpaceOptions,
            needs=lambda options: frozenset() if options.predictor else frozenset({"desired"}),
            releases="rows",
            fit=fit_null_space,
            source="Xu et al. 2017, Cleaning the Null Space, algorithm 1",
            files=lambda options: {"predictor": options.predictor} if options.predictor else {},
        ),
        PRIVACY_MAPPING,
    )
}
"""Every method by its name in a configuration."""

RECORD_MAPS: dict[str, type[RecordMap]] = {
    kind.kind: kind for kind in (NullSpaceCleaner, SparseMapping)
}
"""Every fitted map by the kind that artifacts store."""
