"""What an audit may checkpoint: sums over records, and outcomes of attacks."""

from __future__ import annotations

from privpipe.attacks.moment_audit import AuditSums, PairMoments
from privpipe.attacks.statistics.intervals import Interval
from privpipe.attacks.statistics.joint_sums import JointSums
from privpipe.attacks.statistics.places import PlaceSums
from privpipe.attacks.statistics.scores import Score
from privpipe.attacks.threats.verdicts.detection import Detection
from privpipe.attacks.threats.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.utility import UtilityLosses

CHECKPOINTED = (
    JointSums,
    Attack,
    AttackOutcome,
    AuditSums,
    Detection,
    Interval,
    PairMoments,
    PlaceSums,
    Score,
    UtilityLosses,
)
