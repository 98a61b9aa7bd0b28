"""All records but one: their second moments, taken from those of the surrogates, leave that one."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame, report_recovery

__all__ = ["attack"]

MOST_TARGETS = 100
"""Records that are attacked in turn."""


def attack(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "all_but_one" of the kinds of attack."""
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    assert sample.gram is not None
    frame = find_frame(sample.released)
    left = frame @ (sample.released.T @ sample.released - sample.gram) @ frame.T
    targets = sample.members[:MOST_TARGETS] @ frame.T
    _, vectors = np.linalg.eigh(left + targets[:, :, None] * targets[:, None, :])
    guesses = vectors[:, :, -1][:, None, :]
    return report_recovery(targets, sample.others @ frame.T, guesses, level=options.level)
