"""Sanitise very large record collections; see README.md.

The public names below are loaded when first used, so that ``import privpipe`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "AttackOptions": "privpipe.attacks.options",
    "AttackReport": "privpipe.attacks.verdicts",
    "ClusterPricing": "privpipe.dist.pricing",
    "Guarantee": "privpipe.protocols",
    "IngestOptions": "privpipe.store.ingest",
    "KeyBinding": "privpipe.store.keys",
    "KeyedStream": "privpipe.numerics.streams",
    "LaplaceMechanism": "privpipe.sanitizers.laplace",
    "LinearFilter": "privpipe.sanitizers.linear",
    "MinimaxFilter": "privpipe.sanitizers.linear",
    "MinimaxNeuralOptions": "privpipe.sanitizers.minimax_neural",
    "MinimaxOptions": "privpipe.sanitizers.minimax",
    "NeuralFilter": "privpipe.sanitizers.minimax_neural",
    "NullSpaceCleaner": "privpipe.sanitizers.cleaner",
    "PrivacyMappingOptions": "privpipe.sanitizers.mapping_fit",
    "PrivpipeError": "privpipe.errors",
    "Records": "privpipe.records.memory",
    "SourceLayout": "privpipe.store.sources.source",
    "SparseMapping": "privpipe.sanitizers.mapping",
    "TargetedCleaner": "privpipe.sanitizers.targeted",
    "apply_dataset": "privpipe.dist.lazy",
    "apply_lazily": "privpipe.dist.lazy",
    "certify_mapping": "privpipe.numerics.certify",
    "export_release": "privpipe.store.export",
    "fit_exponential_mechanism": "privpipe.sanitizers.exponential",
    "fit_leace_eraser": "privpipe.sanitizers.leace",
    "fit_minimax_family": "privpipe.sanitizers.minimax_family",
    "fit_minimax_filter": "privpipe.sanitizers.minimax",
    "fit_minimax_neural_filter": "privpipe.sanitizers.minimax_neural",
    "fit_null_space_cleaner": "privpipe.sanitizers.nullspace",
    "fit_privacy_mapping": "privpipe.sanitizers.mapping_fit",
    "fit_targeted_cleaner": "privpipe.sanitizers.targeted_fit",
    "forget_key": "privpipe.store.keys",
    "ingest": "privpipe.store.ingest",
    "list_keys": "privpipe.store.keys",
    "make_key": "privpipe.store.keys",
    "measure_attacks": "privpipe.attacks.inference",
    "measure_information": "privpipe.attacks.information",
    "measure_linkage": "privpipe.attacks.linkage",
    "measure_membership": "privpipe.attacks.membership",
    "measure_null_space_privacy": "privpipe.attacks.nullspace",
    "measure_reconstruction": "privpipe.attacks.reconstruction",
    "measure_roc": "privpipe.attacks.roc",
    "open_collection": "privpipe.store.collection",
    "open_model": "privpipe.store.artifacts",
    "open_release": "privpipe.store.published",
    "solve_augmented_knapsack": "privpipe.numerics.knapsack",
    "solve_least_distortion": "privpipe.sanitizers.tradeoff",
    "solve_privacy_mapping": "privpipe.sanitizers.mapping_solve",
    "solve_tradeoff": "privpipe.sanitizers.tradeoff",
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
    from privpipe.attacks.inference import measure_attacks as measure_attacks
    from privpipe.attacks.information import measure_information as measure_information
    from privpipe.attacks.linkage import measure_linkage as measure_linkage
    from privpipe.attacks.membership import measure_membership as measure_membership
    from privpipe.attacks.nullspace import measure_null_space_privacy as measure_null_space_privacy
    from privpipe.attacks.options import AttackOptions as AttackOptions
    from privpipe.attacks.reconstruction import measure_reconstruction as measure_reconstruction
    from privpipe.attacks.roc import measure_roc as measure_roc
    from privpipe.attacks.verdicts import AttackReport as AttackReport
    from privpipe.dist.lazy import apply_dataset as apply_dataset
    from privpipe.dist.lazy import apply_lazily as apply_lazily
    from privpipe.dist.pricing import ClusterPricing as ClusterPricing
    from privpipe.errors import PrivpipeError as PrivpipeError
    from privpipe.numerics.certify import certify_mapping as certify_mapping
    from privpipe.numerics.knapsack import solve_augmented_knapsack as solve_augmented_knapsack
    from privpipe.numerics.streams import KeyedStream as KeyedStream
    from privpipe.protocols import Guarantee as Guarantee
    from privpipe.records.memory import Records as Records
    from privpipe.sanitizers.cleaner import NullSpaceCleaner as NullSpaceCleaner
    from privpipe.sanitizers.exponential import (
        fit_exponential_mechanism as fit_exponential_mechanism,
    )
    from privpipe.sanitizers.laplace import LaplaceMechanism as LaplaceMechanism
    from privpipe.sanitizers.leace import fit_leace_eraser as fit_leace_eraser
    from privpipe.sanitizers.linear import LinearFilter as LinearFilter
    from privpipe.sanitizers.linear import MinimaxFilter as MinimaxFilter
    from privpipe.sanitizers.mapping import SparseMapping as SparseMapping
    from privpipe.sanitizers.mapping_fit import PrivacyMappingOptions as PrivacyMappingOptions
    from privpipe.sanitizers.mapping_fit import fit_privacy_mapping as fit_privacy_mapping
    from privpipe.sanitizers.mapping_solve import solve_privacy_mapping as solve_privacy_mapping
    from privpipe.sanitizers.minimax import MinimaxOptions as MinimaxOptions
    from privpipe.sanitizers.minimax import fit_minimax_filter as fit_minimax_filter
    from privpipe.sanitizers.minimax_family import fit_minimax_family as fit_minimax_family
    from privpipe.sanitizers.minimax_neural import MinimaxNeuralOptions as MinimaxNeuralOptions
    from privpipe.sanitizers.minimax_neural import NeuralFilter as NeuralFilter
    from privpipe.sanitizers.minimax_neural import (
        fit_minimax_neural_filter as fit_minimax_neural_filter,
    )
    from privpipe.sanitizers.nullspace import fit_null_space_cleaner as fit_null_space_cleaner
    from privpipe.sanitizers.targeted import TargetedCleaner as TargetedCleaner
    from privpipe.sanitizers.targeted_fit import fit_targeted_cleaner as fit_targeted_cleaner
    from privpipe.sanitizers.tradeoff import solve_least_distortion as solve_least_distortion
    from privpipe.sanitizers.tradeoff import solve_tradeoff as solve_tradeoff
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
