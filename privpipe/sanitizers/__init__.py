"""One module per method: its options, its fit functions, its frozen fitted map.

`METHODS` is the one table that flows, contract tests and documentation read; a new method is a
module and a row.
"""

from __future__ import annotations

from typing import Any

from privpipe.protocols import Method, RecordMap, Role
from privpipe.sanitizers import baselines, ddd, minimax, minimax_neural, ppls
from privpipe.sanitizers.cleaner import NullSpaceCleaner
from privpipe.sanitizers.ddd import MaskFilter
from privpipe.sanitizers.factored import FactoredCleaner
from privpipe.sanitizers.laplace import LaplaceMechanism
from privpipe.sanitizers.leace import LeaceEraser, LeaceOptions, fit_leace
from privpipe.sanitizers.linear import LinearFilter, MinimaxFilter
from privpipe.sanitizers.mapping import SparseMapping
from privpipe.sanitizers.mapping_fit import PRIVACY_MAPPING
from privpipe.sanitizers.minimax_neural import NeuralFilter
from privpipe.sanitizers.nullspace import NullSpaceOptions, fit_null_space
from privpipe.sanitizers.printed import PrintedCleaner
from privpipe.sanitizers.targeted import TargetedCleaner
from privpipe.sanitizers.targeted_fit import TargetedOptions, fit_targeted

__all__ = ["METHODS", "RECORD_MAPS"]


def _needs_of_targeted(options: TargetedOptions) -> frozenset[Role]:
    needs = set[Role]()
    if not options.predictor:
        needs.add("desired")
    if not options.confidential_predictor:
        needs.add("confidential")
    return frozenset(needs)


def _files_of_targeted(options: TargetedOptions) -> dict[str, str]:
    named = {
        "predictor": options.predictor,
        "confidential_predictor": options.confidential_predictor,
    }
    return {name: url for name, url in named.items() if url}


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
            factored=True,
            weighs=True,
        ),
        Method(
            name="null_space_targeted",
            options=TargetedOptions,
            needs=_needs_of_targeted,
            releases="rows",
            fit=fit_targeted,
            source="Xu et al. 2017, Cleaning the Null Space, algorithm 2",
            files=_files_of_targeted,
            factored=True,
            weighs=True,
        ),
        Method(
            name="leace",
            options=LeaceOptions,
            needs=lambda _: frozenset({"confidential"}),
            releases="rows",
            fit=fit_leace,
            source="Belrose et al. 2023, LEACE: Perfect linear concept erasure in closed form",
            weighs=True,
        ),
        PRIVACY_MAPPING,
        *minimax.METHODS,
        *minimax_neural.METHODS,
        *baselines.METHODS,
        *ppls.METHODS,
        *ddd.METHODS,
    )
}
"""Every method by its name in a configuration."""

RECORD_MAPS: dict[str, type[RecordMap]] = {
    kind.kind: kind
    for kind in (
        NullSpaceCleaner,
        SparseMapping,
        LinearFilter,
        MinimaxFilter,
        NeuralFilter,
        MaskFilter,
        TargetedCleaner,
        PrintedCleaner,
        FactoredCleaner,
        LeaceEraser,
        LaplaceMechanism,
    )
}
"""Every fitted map by the kind that artifacts store."""
