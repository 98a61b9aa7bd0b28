"""Surrogates as a value, whichever method made them."""

from __future__ import annotations

from dataclasses import dataclass

from privpipe.described import described
from privpipe.protocols import FloatArray, Guarantee


def _facts(made: MaskedRecords) -> dict[str, str]:
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
    features : (n_surrogates, n_features + 1)
        The last is the bias feature: regress without an intercept of your own.
    responses : (n_surrogates, n_responses)
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
