"""Bytes that attacks need, planned from shapes before any is run."""

from __future__ import annotations

from privpipe.attacks.adversaries.evidence import Evidence
from privpipe.attacks.adversaries.table import ADVERSARIES

_FIXED_BYTES = 256 << 20
"""Kernel features of one width, a block of bootstrap weights with its sums, and slack."""


def plan_attack_bytes(evidence: Evidence) -> int:
    """Bytes one attack needs beside the evidence, at most.

    The records it trains and tunes on are copied, once as they are, once in double precision,
    and once more where it trains on both.
    """
    widest: int = max(source.values.shape[1] for source in evidence.sources.values())
    itemsize: int = max(source.values.itemsize for source in evidence.sources.values())
    n = max(
        min(evidence.n_records, adversary.max_train + adversary.max_tune)
        for adversary in ADVERSARIES.values()
    )
    return _FIXED_BYTES + n * widest * (2 * itemsize + 8)
