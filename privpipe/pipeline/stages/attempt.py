"""Which attempt at the gate an audit is: its seed and its share of the level."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.pipeline.runs.run import Run, find_attack_options
from privpipe.store.keyring.account import find_account
from privpipe.store.keyring.attempt_register import note_attempt
from privpipe.store.releases.release import ReleasePlan, digest_receipts, read_ledger


def begin_attempt(run: Run, plan: ReleasePlan) -> Run:
    """The run as this attempt, noted before anything of it is judged.

    Raises
    ------
    StoreError, FormatError
        If the register of attempts cannot be read or written.
    """
    parts = [
        *run.collection.schema_of_records.partitions,
        *run.training.schema_of_records.partitions,
    ]
    receipts = [one for one in read_ledger(plan) if one.run == plan.run]
    attempt = note_attempt(
        find_account(run.options.privacy.account),
        digest_receipts(receipts),
        _digest_judge(run),
        {part.digest for part in parts},
    )
    return replace(run, attempt=attempt)


def _digest_judge(run: Run) -> str:
    """SHA-256 of all that changes what is measured; no limit does, and no level."""
    usual = AttackOptions()
    measured = replace(
        find_attack_options(run.options).without_limits(), level=usual.level, max_seconds=None
    )
    audit = run.options.audit
    judge = [asdict(measured), audit.holdout, audit.group, sorted(audit.earlier)]
    return hashlib.sha256(json.dumps(judge, sort_keys=True).encode()).hexdigest()
