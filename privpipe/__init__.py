"""Sanitise very large record collections; see README.md.

The public names below are loaded when first used, so that ``import privpipe`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privpipe.extras import explain_missing

_HOME = {
    "AttackOptions": "privpipe.attacks.adversaries.attack_options",
    "AttackReport": "privpipe.attacks.threats.verdicts.attack_report",
    "ClusterPricing": "privpipe.cluster.passes.pricing_rounds",
    "Guarantee": "privpipe.protocols",
    "IngestOptions": "privpipe.store.collections.ingest",
    "KeyBinding": "privpipe.store.keyring.keys",
    "KeyedStream": "privpipe.numerics.random.streams",
    "LaplaceMechanism": "privpipe.sanitizers.null_space.laplace",
    "LinearFilter": "privpipe.sanitizers.minimax.linear_filter",
    "MaskedRecords": "privpipe.sanitizers.masking.masked_records",
    "MaskingModel": "privpipe.sanitizers.masking.masking_model",
    "MaskingOptions": "privpipe.sanitizers.masking.surrogates",
    "MinimaxFilter": "privpipe.sanitizers.minimax.linear_filter",
    "MinimaxNeuralOptions": "privpipe.sanitizers.minimax.neural_minimax",
    "MinimaxCustomOptions": "privpipe.sanitizers.minimax.custom_filter",
    "MinimaxOptions": "privpipe.sanitizers.minimax.linear_minimax",
    "NamedCodes": "privpipe.fitted_schema",
    "NeuralFilter": "privpipe.sanitizers.minimax.neural_minimax",
    "NullSpaceCleaner": "privpipe.sanitizers.null_space.null_space_cleaner",
    "PrivacyMappingOptions": "privpipe.sanitizers.mapping.mapping_options",
    "PrivpipeError": "privpipe.errors",
    "Records": "privpipe.records.memory",
    "SourceLayout": "privpipe.store.sources.reading.source",
    "SparseMapping": "privpipe.sanitizers.mapping.sparse_mapping",
    "TargetedCleaner": "privpipe.sanitizers.null_space.targeted_cleaner",
    "apply_dataset": "privpipe.cluster.lazy",
    "apply_lazily": "privpipe.cluster.lazy",
    "certify_mapping": "privpipe.numerics.mapping.certificate",
    "draw_masked_records": "privpipe.sanitizers.masking.masked_records",
    "export_release": "privpipe.store.releases.export",
    "fit_exponential_mechanism": "privpipe.sanitizers.mapping.exponential",
    "fit_leace_eraser": "privpipe.sanitizers.null_space.leace",
    "fit_masking": "privpipe.sanitizers.masking.surrogates",
    "fit_minimax_family": "privpipe.sanitizers.minimax.family_training",
    "fit_minimax_filter": "privpipe.sanitizers.minimax.linear_minimax",
    "fit_minimax_neural_filter": "privpipe.sanitizers.minimax.neural_minimax",
    "fit_minimax_custom_filter": "privpipe.sanitizers.minimax.custom_filter",
    "fit_null_space_cleaner": "privpipe.sanitizers.null_space.algorithm_1",
    "fit_privacy_mapping": "privpipe.sanitizers.mapping.privacy_mapping",
    "fit_target_only": "privpipe.sanitizers.null_space.target_only",
    "fit_targeted_cleaner": "privpipe.sanitizers.null_space.algorithm_2",
    "forget_key": "privpipe.store.keyring.keys",
    "ingest": "privpipe.store.collections.ingest",
    "list_keys": "privpipe.store.keyring.keys",
    "make_key": "privpipe.store.keyring.keys",
    "measure_attacks": "privpipe.attacks.threats.inference",
    "measure_information": "privpipe.attacks.threats.information",
    "measure_linkage": "privpipe.attacks.threats.linkage",
    "measure_membership": "privpipe.attacks.threats.membership",
    "measure_null_space_privacy": "privpipe.attacks.null_space_privacy",
    "measure_reconstruction": "privpipe.attacks.threats.reconstruction",
    "measure_roc": "privpipe.attacks.statistics.roc",
    "open_collection": "privpipe.store.collections.collection",
    "open_model": "privpipe.store.models",
    "open_release": "privpipe.store.releases.lazy_release",
    "solve_augmented_knapsack": "privpipe.numerics.null_space.knapsack",
    "solve_least_distortion": "privpipe.sanitizers.mapping.tradeoff",
    "solve_privacy_mapping": "privpipe.sanitizers.mapping.solving.solve",
    "solve_tradeoff": "privpipe.sanitizers.mapping.tradeoff",
    "trust_filter": "privpipe.sanitizers.minimax.custom_code",
    "write_model": "privpipe.store.models",
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


if TYPE_CHECKING:
    from privpipe.attacks.adversaries.attack_options import AttackOptions as AttackOptions
    from privpipe.attacks.null_space_privacy import (
        measure_null_space_privacy as measure_null_space_privacy,
    )
    from privpipe.attacks.statistics.roc import measure_roc as measure_roc
    from privpipe.attacks.threats.inference import measure_attacks as measure_attacks
    from privpipe.attacks.threats.information import measure_information as measure_information
    from privpipe.attacks.threats.linkage import measure_linkage as measure_linkage
    from privpipe.attacks.threats.membership import measure_membership as measure_membership
    from privpipe.attacks.threats.reconstruction import (
        measure_reconstruction as measure_reconstruction,
    )
    from privpipe.attacks.threats.verdicts.attack_report import AttackReport as AttackReport
    from privpipe.cluster.lazy import apply_dataset as apply_dataset
    from privpipe.cluster.lazy import apply_lazily as apply_lazily
    from privpipe.cluster.passes.pricing_rounds import ClusterPricing as ClusterPricing
    from privpipe.errors import PrivpipeError as PrivpipeError
    from privpipe.fitted_schema import NamedCodes as NamedCodes
    from privpipe.numerics.mapping.certificate import certify_mapping as certify_mapping
    from privpipe.numerics.null_space.knapsack import (
        solve_augmented_knapsack as solve_augmented_knapsack,
    )
    from privpipe.numerics.random.streams import KeyedStream as KeyedStream
    from privpipe.protocols import Guarantee as Guarantee
    from privpipe.records.memory import Records as Records
    from privpipe.sanitizers.mapping.exponential import (
        fit_exponential_mechanism as fit_exponential_mechanism,
    )
    from privpipe.sanitizers.mapping.mapping_options import (
        PrivacyMappingOptions as PrivacyMappingOptions,
    )
    from privpipe.sanitizers.mapping.privacy_mapping import (
        fit_privacy_mapping as fit_privacy_mapping,
    )
    from privpipe.sanitizers.mapping.solving.solve import (
        solve_privacy_mapping as solve_privacy_mapping,
    )
    from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping as SparseMapping
    from privpipe.sanitizers.mapping.tradeoff import (
        solve_least_distortion as solve_least_distortion,
    )
    from privpipe.sanitizers.mapping.tradeoff import solve_tradeoff as solve_tradeoff
    from privpipe.sanitizers.masking.masked_records import MaskedRecords as MaskedRecords
    from privpipe.sanitizers.masking.masked_records import (
        draw_masked_records as draw_masked_records,
    )
    from privpipe.sanitizers.masking.masking_model import MaskingModel as MaskingModel
    from privpipe.sanitizers.masking.surrogates import MaskingOptions as MaskingOptions
    from privpipe.sanitizers.masking.surrogates import fit_masking as fit_masking
    from privpipe.sanitizers.minimax.custom_code import trust_filter as trust_filter
    from privpipe.sanitizers.minimax.custom_filter import (
        MinimaxCustomOptions as MinimaxCustomOptions,
    )
    from privpipe.sanitizers.minimax.custom_filter import (
        fit_minimax_custom_filter as fit_minimax_custom_filter,
    )
    from privpipe.sanitizers.minimax.family_training import fit_minimax_family as fit_minimax_family
    from privpipe.sanitizers.minimax.linear_filter import LinearFilter as LinearFilter
    from privpipe.sanitizers.minimax.linear_filter import MinimaxFilter as MinimaxFilter
    from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions as MinimaxOptions
    from privpipe.sanitizers.minimax.linear_minimax import fit_minimax_filter as fit_minimax_filter
    from privpipe.sanitizers.minimax.neural_minimax import (
        MinimaxNeuralOptions as MinimaxNeuralOptions,
    )
    from privpipe.sanitizers.minimax.neural_minimax import NeuralFilter as NeuralFilter
    from privpipe.sanitizers.minimax.neural_minimax import (
        fit_minimax_neural_filter as fit_minimax_neural_filter,
    )
    from privpipe.sanitizers.null_space.algorithm_1 import (
        fit_null_space_cleaner as fit_null_space_cleaner,
    )
    from privpipe.sanitizers.null_space.algorithm_2 import (
        fit_targeted_cleaner as fit_targeted_cleaner,
    )
    from privpipe.sanitizers.null_space.laplace import LaplaceMechanism as LaplaceMechanism
    from privpipe.sanitizers.null_space.leace import fit_leace_eraser as fit_leace_eraser
    from privpipe.sanitizers.null_space.null_space_cleaner import (
        NullSpaceCleaner as NullSpaceCleaner,
    )
    from privpipe.sanitizers.null_space.target_only import fit_target_only as fit_target_only
    from privpipe.sanitizers.null_space.targeted_cleaner import TargetedCleaner as TargetedCleaner
    from privpipe.store.collections.collection import open_collection as open_collection
    from privpipe.store.collections.ingest import IngestOptions as IngestOptions
    from privpipe.store.collections.ingest import ingest as ingest
    from privpipe.store.keyring.keyfiles import KeyBinding as KeyBinding
    from privpipe.store.keyring.keys import forget_key as forget_key
    from privpipe.store.keyring.keys import list_keys as list_keys
    from privpipe.store.keyring.keys import make_key as make_key
    from privpipe.store.models import open_model as open_model
    from privpipe.store.models import write_model as write_model
    from privpipe.store.releases.export import export_release as export_release
    from privpipe.store.releases.lazy_release import open_release as open_release
    from privpipe.store.sources.reading.source import SourceLayout as SourceLayout
