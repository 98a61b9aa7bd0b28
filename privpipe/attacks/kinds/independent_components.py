"""Independent components: signed sums of few records are unmixed into the records."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.adversaries.quiet_fits import QUIET
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame, report_recovery
from privpipe.errors import InputError

__all__ = ["attack"]

MOST_SURROGATES = 20_000
"""Of those given; more add little to moments of the fourth order, and much time."""

MOST_ROUNDS = 300


def attack(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "independent_components" of the kinds of attack: FastICA of the surrogates.

    Raises
    ------
    InputError
        If it finds no components: what it would have found is unknown.
    """
    from sklearn.decomposition import FastICA

    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    frame = find_frame(sample.released)
    rows = sample.released[:MOST_SURROGATES] @ frame.T
    values = np.linalg.svd(rows, compute_uv=False)
    rank = int((values > 1e-8 * values[0]).sum())
    search = FastICA(
        rank,
        whiten="unit-variance",
        fun="cube",
        max_iter=MOST_ROUNDS,
        tol=1e-5,
        random_state=options.seed,
    )
    with QUIET:  # what it has found by then is judged
        search.fit(rows)
    guesses = search.mixing_.T
    if not np.isfinite(guesses).all():
        raise InputError(
            "Independent components of the surrogates could not be found.",
            remedy="Their records are unknown to this attack, not safe from it.",
        )
    members, others = sample.members @ frame.T, sample.others @ frame.T
    return report_recovery(members, others, guesses, level=options.level)
