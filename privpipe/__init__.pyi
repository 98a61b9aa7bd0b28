"""Public names, each with its home; `__init__.py` reads them here, and type checkers do."""

from privpipe.attacks.adversaries.attack_options import AttackOptions as AttackOptions
from privpipe.attacks.threats.inference import measure_attacks as measure_attacks
from privpipe.attacks.threats.information import measure_information as measure_information
from privpipe.attacks.threats.linkage_reconstruction import measure_linkage as measure_linkage
from privpipe.attacks.threats.linkage_reconstruction import (
    measure_reconstruction as measure_reconstruction,
)
from privpipe.attacks.threats.membership import measure_membership as measure_membership
from privpipe.attacks.threats.verdicts.attack_report import AttackReport as AttackReport
from privpipe.cluster.estimate import estimate as estimate
from privpipe.cluster.lazy import apply_dataset as apply_dataset
from privpipe.cluster.lazy import apply_lazily as apply_lazily
from privpipe.cluster.passes.pricing_rounds import ClusterPricing as ClusterPricing
from privpipe.errors import PrivpipeError as PrivpipeError
from privpipe.fitted_schema import NamedCodes as NamedCodes
from privpipe.numerics.mapping.certificate import certify_mapping as certify_mapping
from privpipe.numerics.random.streams import KeyedStream as KeyedStream
from privpipe.protocols import Guarantee as Guarantee
from privpipe.records.memory import GrowingRecords as GrowingRecords
from privpipe.records.memory import Records as Records
from privpipe.sanitizers.mapping.mapping_options import (
    PrivacyMappingOptions as PrivacyMappingOptions,
)
from privpipe.sanitizers.mapping.privacy_mapping import fit_privacy_mapping as fit_privacy_mapping
from privpipe.sanitizers.mapping.solving.solve import solve_privacy_mapping as solve_privacy_mapping
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping as SparseMapping
from privpipe.sanitizers.masking.masked_records import MaskedRecords as MaskedRecords
from privpipe.sanitizers.masking.masking_model import MaskingModel as MaskingModel
from privpipe.sanitizers.masking.masking_model import draw_masked_records as draw_masked_records
from privpipe.sanitizers.masking.private_masking import (
    MaskingPrivateOptions as MaskingPrivateOptions,
)
from privpipe.sanitizers.masking.private_masking import fit_masking_private as fit_masking_private
from privpipe.sanitizers.masking.private_model import PrivateMaskingModel as PrivateMaskingModel
from privpipe.sanitizers.masking.surrogates import MaskingOptions as MaskingOptions
from privpipe.sanitizers.masking.surrogates import fit_masking as fit_masking
from privpipe.sanitizers.minimax.custom_filter import MinimaxCustomOptions as MinimaxCustomOptions
from privpipe.sanitizers.minimax.custom_filter import (
    fit_minimax_custom_filter as fit_minimax_custom_filter,
)
from privpipe.sanitizers.minimax.filter_certificate import Certificate as Certificate
from privpipe.sanitizers.minimax.filter_certificate import certify_filter as certify_filter
from privpipe.sanitizers.minimax.linear_filter import LinearFilter as LinearFilter
from privpipe.sanitizers.minimax.linear_filter import MinimaxFilter as MinimaxFilter
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions as MinimaxOptions
from privpipe.sanitizers.minimax.linear_minimax import fit_minimax_filter as fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import MinimaxNeuralOptions as MinimaxNeuralOptions
from privpipe.sanitizers.minimax.neural_minimax import NeuralFilter as NeuralFilter
from privpipe.sanitizers.minimax.neural_minimax import (
    fit_minimax_neural_filter as fit_minimax_neural_filter,
)
from privpipe.sanitizers.minimax.training.custom_code import trust_filter as trust_filter
from privpipe.sanitizers.null_space.algorithms import NullSpaceCleaner as NullSpaceCleaner
from privpipe.sanitizers.null_space.algorithms import TargetedCleaner as TargetedCleaner
from privpipe.sanitizers.null_space.algorithms import (
    fit_null_space_cleaner as fit_null_space_cleaner,
)
from privpipe.sanitizers.null_space.algorithms import fit_targeted_cleaner as fit_targeted_cleaner
from privpipe.sanitizers.null_space.leace import fit_leace_eraser as fit_leace_eraser
from privpipe.sanitizers.null_space.target_only import fit_target_only as fit_target_only
from privpipe.store.collections.collection import open_collection as open_collection
from privpipe.store.collections.frame_collection import from_dask as from_dask
from privpipe.store.collections.frame_collection import from_xarray as from_xarray
from privpipe.store.collections.ingest import IngestOptions as IngestOptions
from privpipe.store.collections.ingest import ingest as ingest
from privpipe.store.collections.proposal import TableSchema as TableSchema
from privpipe.store.collections.proposal import propose_schema as propose_schema
from privpipe.store.keyring.keyfiles import KeyBinding as KeyBinding
from privpipe.store.keyring.keys import forget_key as forget_key
from privpipe.store.keyring.keys import list_keys as list_keys
from privpipe.store.keyring.keys import make_key as make_key
from privpipe.store.models import open_model as open_model
from privpipe.store.models import write_model as write_model
from privpipe.store.releases.export import export_release as export_release
from privpipe.store.releases.lazy_release import open_release as open_release
from privpipe.store.sources.reading.source import SourceLayout as SourceLayout

__version__: str
__all__: list[str]
