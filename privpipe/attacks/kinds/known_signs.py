"""Known signs: whoever has P solves for the records, exactly from as many surrogates as records."""

from __future__ import annotations

import numpy as np

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.kinds.attack_table import Sample
from privpipe.attacks.kinds.recovery import RecoveryReport, find_frame, report_recovery

__all__ = ["attack"]


def attack(sample: Sample, options: AttackOptions) -> RecoveryReport:
    """The row "known_signs" of the kinds of attack: least squares of surrogates on the signs."""
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    assert sample.signs is not None
    frame = find_frame(sample.released)
    solved = np.linalg.lstsq(sample.signs.T.astype(np.float64), sample.released, rcond=1e-10)[0]
    guesses = (solved @ frame.T)[:, None, :]
    members, others = sample.members @ frame.T, sample.others @ frame.T
    return report_recovery(members, others, guesses, level=options.level)
