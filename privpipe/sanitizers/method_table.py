"""The one table of methods that flows, stores, contract tests and documentation read.

It collects the rows of the wings; a new method is a module with a row in its wing (see
CONTRIBUTING.md). Reading it loads every wing, hence it is loaded when first read.
"""

from typing import Any

from privpipe.protocols import Method, RecordMap
from privpipe.sanitizers import mapping, masking, minimax, null_space
from privpipe.sanitizers.chain import Chain, Standardiser
from privpipe.sanitizers.minimax.linear_filter import MaskFilter
from privpipe.sanitizers.noise.fit_noisy import list_methods

_WINGS = (null_space, mapping, minimax, masking)
_FILTERS: dict[str, Method] = {method.name: method for wing in _WINGS for method in wing.METHODS}

METHODS: dict[str, Method] = _FILTERS | {method.name: method for method in list_methods(_FILTERS)}
"""Every method by its name in a configuration."""

_MAPS: tuple[type[RecordMap], ...] = (
    *(each for method in METHODS.values() for each in method.maps),
    Chain,
    Standardiser,
    MaskFilter,  # of stored models: the method that made them is in the papers' reproductions
)

RECORD_MAPS: dict[str, type[RecordMap]] = {each.kind: each for each in _MAPS}
"""Every fitted map by the kind that artifacts store."""

STATISTICS: tuple[type[Any], ...] = tuple(
    dict.fromkeys(each for method in METHODS.values() for each in method.statistics)
)
"""Every class of sums that a fit may checkpoint."""
