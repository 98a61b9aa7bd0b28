"""Tracing: was a record among those whose second moments a surrogate release gives away?

The statistic of Homer et al. 2008 for second moments: along directions in which the surrogates'
moments differ from those of the population, members lie further than others.
"""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.membership import MembershipReport, measure_membership
from privpipe.attacks.kinds.recovery import find_frame
from privpipe.errors import InputError
from privpipe.protocols import FloatArray

__all__ = ["attack", "trace"]


def attack(sample: Sample, options: AttackOptions) -> MembershipReport:
    """The row "tracing" of the kinds of attack.

    Raises
    ------
    InputError
        If there are fewer than twenty other records.
    """
    inside, outside = trace(sample)
    return measure_membership(inside, outside, level=options.level, seed=options.seed)


def trace(sample: Sample) -> tuple[FloatArray, FloatArray]:
    """Surprise at members, and at every second of the other records; the rest are the population.

    Returns
    -------
    members : (n_members,)
    others : (n_others // 2,)
    """
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    if len(sample.others) < 20:
        raise InputError(
            f"{len(sample.others)} records that are not in are too few to trace by.",
            remedy="Hold out more.",
        )
    frame = find_frame(sample.released)
    members, known, judged = (
        rows @ frame.T for rows in (sample.members, sample.others[::2], sample.others[1::2])
    )
    released = frame @ (sample.released.T @ sample.released) @ frame.T
    population = known.T @ known
    gap = released / released[-1, -1] - population / population[-1, -1]
    whitened = np.linalg.pinv(population / len(known), 1e-10, hermitian=True)
    direction = whitened @ gap @ whitened
    inside, outside = (-np.sum((rows @ direction) * rows, axis=1) for rows in (members, judged))
    return inside, outside
