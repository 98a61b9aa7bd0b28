"""The outlying record: one that is far from all others is the strongest direction of their sums."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame, report_recovery

__all__ = ["attack"]


def attack(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "outlying_record" of the kinds of attack: the top singular vector of the surrogates.

    The attacked record is the farthest one of those in the sample, before standardising: a
    standardised outlier is none any more.
    """
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    find_frame(sample.released)  # refuses what cannot be attacked
    moments = sample.released.T @ sample.released
    centred = np.eye(len(moments))
    centred[:-1, -1] = -moments[-1, :-1] / moments[-1, -1]
    # Units of the bulk: medians are not moved by the record that is looked for.
    spread = np.median(np.abs(sample.others @ centred.T), axis=0)
    shape = centred / np.where(spread > 0, spread, 1.0)[:, None]
    members, others = sample.members @ shape.T, sample.others @ shape.T
    farthest = np.argsort(np.linalg.norm(members, axis=1))[-1:]
    _, _, vectors = np.linalg.svd(sample.released @ shape.T, full_matrices=False)
    return report_recovery(members[farthest], others, vectors[:1], level=options.level)
