"""What a mapping promises about each of several private variables, and about all of them together.

The chance to fail is shared evenly among the promises, so that they hold together: one for each
variable, one for their combination.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from privpipe.numerics.mapping.problem.mutual_information import measure_information
from privpipe.protocols import FloatArray, Guarantee, IntArray, ShardSchema
from privpipe.sanitizers.mapping.assurance import assure_mapping, round_up
from privpipe.sanitizers.mapping.profiles import ProfileCounts
from privpipe.sanitizers.mapping.sparse_mapping import SparseMapping


def assure_each_variable(
    mapping: SparseMapping,
    joint: FloatArray,
    private: IntArray,
    fitted: ProfileCounts,
    fresh: ProfileCounts,
    schema: ShardSchema,
    *,
    confidence: float,
    held_out: float = 0.5,
) -> SparseMapping:
    """The mapping with a promise about each private variable.

    Parameters
    ----------
    mapping, joint, private, fitted, fresh, schema, confidence, held_out
        As of `assure_mapping`; the confidence is of all promises together.

    Returns
    -------
    mapping
        Its guarantee's number bounds the information about all variables together, nats; the
        parameters `<variable>_plug_in` and `<variable>_at_most` are those of each.
    """
    n_variables = private.shape[1]
    level = 1 - (1 - confidence) / (n_variables + 1)
    whole = assure_mapping(
        mapping, joint, private, fitted, fresh, schema, confidence=level, held_out=held_out
    )
    found: dict[str, float] = {}
    words = []
    for k, column in enumerate(schema.confidential[:n_variables]):
        values, place = np.unique(private[:, k], return_inverse=True)
        rows = np.zeros((len(values), joint.shape[1]))
        np.add.at(rows, place.ravel(), joint)
        alone = assure_mapping(
            replace(mapping, information=_measure(mapping, rows)),
            rows,
            values[:, None],
            select_variable(fitted, k),
            select_variable(fresh, k),
            replace(schema, confidential=(column,)),
            confidence=level,
            held_out=held_out,
        )
        number = float(alone.guarantee.number or 0.0)
        found[f"{column.name}_plug_in"] = dict(alone.guarantee.parameters)["plug_in"]
        found[f"{column.name}_at_most"] = number
        words.append(f"{round_up(number)} about {column.name}")
    return replace(whole, guarantee=_say(whole.guarantee, confidence, found, words))


def select_variable(counts: ProfileCounts, variable: int) -> ProfileCounts:
    """Counts by profile and one of the private variables."""
    own = [*range(counts.n_attributes), counts.n_attributes + variable]
    keys, place = np.unique(counts.keys[:, own], axis=0, return_inverse=True)
    summed = np.zeros(len(keys), np.int64)
    np.add.at(summed, place.ravel(), counts.counts)
    return replace(counts, keys=keys, counts=summed)


def _measure(mapping: SparseMapping, joint: FloatArray) -> float:
    return measure_information(np.asarray(mapping.mapping @ joint.T))


def _say(
    given: Guarantee, confidence: float, found: dict[str, float], words: list[str]
) -> Guarantee:
    numbers = {**dict(given.parameters), "confidence": confidence, **found}
    level = f"{confidence:.4g}".removeprefix("0")
    number = round_up(float(given.number or 0.0))
    return replace(
        given,
        parameters=tuple(numbers.items()),
        statement=f"with confidence {level} about the law of these records at most "
        f"{', '.join(words)} and {number} nats about all of them together",
    )
