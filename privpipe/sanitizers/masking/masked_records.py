"""Surrogates as a value, whichever method made them, and the base of the models that make them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privpipe.described import described
from privpipe.errors import OptionError
from privpipe.protocols import FloatArray, Guarantee, RecordStream
from privpipe.sanitizers.feature_map import FeatureMap


def _facts(made: "MaskedRecords") -> dict[str, str]:
    return {
        "surrogates": f"{len(made.features):,}",
        "features": f"{made.features.shape[1]:,}",
        "responses": ", ".join(made.response_names),
        "promise": f"{made.guarantee.kind}, {made.guarantee.scope}",
    }


@described(_facts)
@dataclass(frozen=True, eq=False)
class MaskedRecords:
    """Surrogate records: with a count of their own, and none is a person's.

    Parameters
    ----------
    features : (n_rows, n_features + 1)
        The last is the bias feature: regress without an intercept of your own.
    responses : (n_rows, n_responses)
        ``features @ coefficients``: they hold the model and no residual.
    feature_names, response_names
    guarantee
        What is promised, and what is not.
    """

    features: FloatArray
    responses: FloatArray
    feature_names: tuple[str, ...]
    response_names: tuple[str, ...]
    guarantee: Guarantee


class SurrogateModel(FeatureMap):
    """Makes surrogates tile by tile, and none of a single record."""

    way: ClassVar[str]
    """How surrogates are made in Python, for a remedy."""

    n_records: Any
    tile_rows: Any
    feature_names: Any
    response_names: Any

    @property
    def n_features_out(self) -> int:
        return int(self.n_features_in) + 1

    @property
    def n_tiles(self) -> int:
        """In how many parts surrogates are made."""
        return int(-(-self.n_records // self.tile_rows))

    def apply(self, x: Any, stream: RecordStream | None = None) -> FloatArray:
        """Raise OptionError: no surrogate belongs to a record."""
        problem = "Masking releases surrogates, which belong to no record: none can be made of one."
        raise OptionError(problem, remedy=f"Use {self.way}, or `privpipe run`.", code="surrogate")

    def join_tiles(self, tiles: Iterable[tuple[FloatArray, FloatArray]]) -> MaskedRecords:
        """The surrogates of all tiles."""
        x, y = (np.concatenate(each) for each in zip(*tiles, strict=True))
        return MaskedRecords(x, y, self.feature_names, self.response_names, self.guarantee)
