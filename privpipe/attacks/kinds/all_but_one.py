"""All records but one: their second moments, taken from those of the surrogates, leave that one."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame, report_recovery

__all__ = ["attack", "count_targets"]

MOST_TARGETS = 2000
"""Records that are attacked in turn; a few are met by chance where features are few."""

MOST_WIDE_TARGETS = 800
"""Of records of more than `WIDE` features: none found of so many is less than one in a hundred."""

WIDE = 64
BATCH_BYTES = 2**25


def count_targets(width: int) -> int:
    """Most records of so many features, the bias one included, that are attacked."""
    return MOST_TARGETS if width <= WIDE else MOST_WIDE_TARGETS


def attack(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "all_but_one" of the kinds of attack."""
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    assert sample.gram is not None
    frame = find_frame(sample.released)
    left = frame @ (sample.released.T @ sample.released - sample.gram) @ frame.T
    q = len(frame)
    targets = sample.members[: count_targets(q)] @ frame.T
    guesses = np.empty((len(targets), 1, q))
    batch = max(1, BATCH_BYTES // (8 * q * q))
    for start in range(0, len(targets), batch):
        some = targets[start : start + batch]
        _, vectors = np.linalg.eigh(left + some[:, :, None] * some[:, None, :])
        guesses[start : start + batch, 0] = vectors[:, :, -1]
    return report_recovery(targets, sample.others @ frame.T, guesses, level=options.level)
