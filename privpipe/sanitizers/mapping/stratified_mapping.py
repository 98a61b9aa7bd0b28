"""StratifiedMapping: a mapping for each value of a public variable, which is released as it is.

Given the value, a record is one of its stratum's law and released by its stratum's mapping. So what
each of the mappings promises holds given the value, and what the release reveals beyond the value
is the mean over the values.
"""

from typing import ClassVar

import numpy as np
import scipy.sparse as sp

from privpipe.described import record_map
from privpipe.errors import InputError, OptionError
from privpipe.promises import check_promise
from privpipe.protocols import Guarantee, IntArray, WordArray
from privpipe.sanitizers.mapping.sparse_mapping import DrawnCategories, SparseMapping


@record_map
class StratifiedMapping(DrawnCategories):
    """One mapping per value of the last attribute.

    Parameters
    ----------
    strata : (n_strata,)
        Codes of the values, ascending; -1 where the value is missing.
    maps
        The mapping of each, of all attributes but the last.
    guarantee
        About the worst of the strata, and about the mean over them; see `assurance.promise_strata`.

    Raises
    ------
    OptionError
        If mappings and values do not fit.
    GuaranteeError
        If less is promised than by the worst of the mappings.
    """

    kind: ClassVar[str] = "stratified_mapping"

    strata: IntArray
    maps: tuple[SparseMapping, ...]
    guarantee: Guarantee

    def __post_init__(self) -> None:
        fits = len({each.n_features_in for each in self.maps}) == 1
        if not fits or self.strata.shape != (len(self.maps),) or (np.diff(self.strata) <= 0).any():
            raise OptionError(
                f"{len(self.maps)} mappings and values of shape {self.strata.shape} do not fit.",
                remedy="Give a mapping of the same attributes for each value, in ascending order.",
            )
        worst = max(float(each.guarantee.number or 0.0) for each in self.maps)
        check_promise(self.guarantee, {"information_bound": worst})

    @property
    def n_features_in(self) -> int:
        return self.maps[0].n_features_in + 1

    n_features_out = n_features_in

    @property
    def law(self) -> tuple[IntArray, sp.csc_array]:
        pairs = zip(self.maps, self.strata.tolist(), strict=True)
        codes = [np.insert(one.codes, one.n_features_in, code, axis=1) for one, code in pairs]
        return np.vstack(codes), sp.block_diag([one.mapping for one in self.maps], "csc")

    def release_codes(self, codes: IntArray, words: WordArray) -> tuple[IntArray, int]:
        """See `DrawnCategories.release_codes`; the last attribute stays what it is."""
        place = np.minimum(np.searchsorted(self.strata, codes[:, -1]), len(self.maps) - 1)
        if n_strange := int((self.strata[place] != codes[:, -1]).sum()):
            raise InputError(
                f"{n_strange} of {len(codes)} records have a value of the public variable ([method]"
                " by) for which there is no mapping: no training record has it.",
                remedy="Train on records that have it, or leave these records out.",
                code="stratum-unknown",
            )
        released, n_unseen = codes.astype(np.int64), 0
        for k in np.unique(place):
            rows = np.flatnonzero(place == k)
            drawn, unseen = self.maps[k].release_codes(codes[rows, :-1], words[rows])
            released[rows, :-1], n_unseen = drawn, n_unseen + unseen
        return released, n_unseen
