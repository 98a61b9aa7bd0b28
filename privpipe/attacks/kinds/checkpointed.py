"""What an audit may checkpoint: sums over records, and outcomes of attacks."""

from __future__ import annotations

from privpipe.attacks.kinds.verdicts.detection import Detection
from privpipe.attacks.kinds.verdicts.outcomes import Attack, AttackOutcome
from privpipe.attacks.moments.moment_audit import AuditSums, PairMoments
from privpipe.attacks.moments.utility import UtilityLosses
from privpipe.attacks.statistics.answers import Answers
from privpipe.attacks.statistics.measures import Score
from privpipe.attacks.statistics.place_sums import PlaceSums
from privpipe.attacks.statistics.uncertainty.intervals import Interval

CHECKPOINTED = (
    Answers,
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
