"""Sparse privacy mappings: categorical profiles are released as others, at random.

Salamatian et al., SPPM: Sparse Privacy Preserving Mappings. Of all mappings within a budget of
distortion the one is taken whose release reveals least, in mutual information, of the private
values. `privacy_mapping` counts `profiles` over shards, `solving.law_fit` fits within its seconds,
and `profile_forecast` says before a run what to expect. `solving` goes from a joint distribution
and an `alphabet` to a certified `sparse_mapping`, released by keyed draws. With a public variable
there is one for each of its values. `solving.assurance` bounds what they reveal under the law
behind the counts. Search and certificate are in `privpipe.numerics.mapping`.

Start reading at `privacy_mapping`, then `solving.solve`.
"""

from privpipe.protocols import Method
from privpipe.sanitizers.mapping.mapping_options import PrivacyMappingOptions
from privpipe.sanitizers.mapping.privacy_mapping import check_mapping, fit_privacy_mapping
from privpipe.sanitizers.mapping.profile_forecast import forecast_profiles
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping, StratifiedMapping

METHOD = Method(
    options=PrivacyMappingOptions,
    fit=fit_privacy_mapping,
    source="Salamatian et al., SPPM, Algorithms 1 and 2; certified search",
    maps=(SparseMapping, StratifiedMapping),
    check=check_mapping,
    promise="mutual information under the law of the records, with confidence",
    statistics=(ProfileCounts,),
    forecast=forecast_profiles,
)

METHODS = (METHOD,)
"""The rows of this wing."""
