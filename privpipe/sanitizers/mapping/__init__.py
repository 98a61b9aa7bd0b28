"""Sparse privacy mappings: categorical profiles are released as others, at random.

Salamatian et al., SPPM: Sparse Privacy Preserving Mappings: of all mappings within a budget of
distortion the one whose release reveals least, in mutual information, of the private values.
`privacy_mapping` counts `profiles` over shards, `law_fit` fits within its seconds, and
`profile_forecast` says before a run what to expect. `solving` goes from a joint distribution
and an `alphabet` to a certified `sparse_mapping`, released by keyed draws; `stratified_mapping` is
one for each value of a public variable; `assurance` bounds what they reveal under the law behind
the counts.
Search and certificate are in `privpipe.numerics.mapping`.

Start reading at `privacy_mapping`, then `solving.solve`.
"""

from privpipe.sanitizers.mapping import privacy_mapping

METHODS = (privacy_mapping.METHOD,)
"""The rows of this wing."""
