"""Sanitise very large record collections; see README.md.

The public names below are loaded when first used, so that ``import privpipe`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "Guarantee": "privpipe.protocols",
    "PrivpipeError": "privpipe.errors",
    "ClusterPricing": "privpipe.dist.pricing",
    "PrivacyMappingOptions": "privpipe.sanitizers.mapping_fit",
    "Records": "privpipe.records.memory",
    "SparseMapping": "privpipe.sanitizers.mapping",
    "certify_mapping": "privpipe.numerics.certify",
    "fit_privacy_mapping": "privpipe.sanitizers.mapping_fit",
    "fit_exponential_mechanism": "privpipe.sanitizers.exponential",
    "solve_least_distortion": "privpipe.sanitizers.tradeoff",
    "solve_privacy_mapping": "privpipe.sanitizers.mapping_solve",
    "solve_tradeoff": "privpipe.sanitizers.tradeoff",
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
    from privpipe.dist.pricing import ClusterPricing as ClusterPricing
    from privpipe.errors import PrivpipeError as PrivpipeError
    from privpipe.numerics.certify import certify_mapping as certify_mapping
    from privpipe.protocols import Guarantee as Guarantee
    from privpipe.records.memory import Records as Records
    from privpipe.sanitizers.exponential import (
        fit_exponential_mechanism as fit_exponential_mechanism,
    )
    from privpipe.sanitizers.mapping import SparseMapping as SparseMapping
    from privpipe.sanitizers.mapping_fit import PrivacyMappingOptions as PrivacyMappingOptions
    from privpipe.sanitizers.mapping_fit import fit_privacy_mapping as fit_privacy_mapping
    from privpipe.sanitizers.mapping_solve import solve_privacy_mapping as solve_privacy_mapping
    from privpipe.sanitizers.tradeoff import solve_least_distortion as solve_least_distortion
    from privpipe.sanitizers.tradeoff import solve_tradeoff as solve_tradeoff
