"""Membership: was a record among those a model or a surrogate release was made from?"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from privpipe.attacks.adversaries.attack_options import AttackOptions
from privpipe.attacks.statistics.distances import measure_nearest
from privpipe.attacks.statistics.intervals import Interval, measure_exact_interval
from privpipe.attacks.statistics.roc import measure_roc
from privpipe.attacks.threats.attack_table import Sample
from privpipe.errors import InputError
from privpipe.protocols import FloatArray


@dataclass(frozen=True)
class MembershipReport:
    """How well members are told from others by a threshold.

    Parameters
    ----------
    area
        Area under the ROC curve; one half is guessing.
    advantage
        True minus false positive share at the threshold that did best on one half of the
        records, counted on the other half; 0 is guessing.
    true_positive, false_positive
        The two shares at that threshold, with exact limits.
    caught_at_one_percent
        Share of members found at one per cent of false alarms.
    epsilon_floor
        A mechanism with less privacy loss than this would not have let the attack succeed
        so often (at the level of the intervals); 0 when nothing is shown.
    n_members, n_others
        Records of each kind.
    """

    area: Interval
    advantage: float
    true_positive: Interval
    false_positive: Interval
    caught_at_one_percent: float
    epsilon_floor: float
    n_members: int
    n_others: int

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self), indent=1)


def attack(sample: Sample, options: AttackOptions) -> MembershipReport:
    """The row "membership" of the kinds of attack, on a surrogate release."""
    assert sample.released is not None
    assert sample.members is not None
    assert sample.others is not None
    return measure_membership(
        measure_surprise(sample.members, sample.released),
        measure_surprise(sample.others, sample.released),
        level=options.level,
        seed=options.seed,
    )


def measure_membership(
    members: npt.ArrayLike, others: npt.ArrayLike, *, level: float = 0.95, seed: int = 0
) -> MembershipReport:
    """Tell members from others by how little they surprise.

    Parameters
    ----------
    members : (n_members,)
        Surprise at each record the model or surrogate was made from: its loss under a model,
        or `measure_surprise` for a surrogate release.
    others : (n_others,)
        The same for records of the same population that were not used.
    level
        Two-sided confidence of each interval.
    seed
        Seed of the halves and of the bootstrap.

    Raises
    ------
    InputError
        If there are fewer than ten of either, or a value is not finite.

    References
    ----------
    Yeom et al. 2018, Privacy Risk in Machine Learning (loss threshold); Carlini et al. 2022
    (low false alarms); Jagielski et al. 2020 (the floor on the privacy loss).

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> report = measure_membership(random.normal(size=500), random.normal(size=500) + 3)
    >>> report.area.estimate > 0.95
    True
    """
    inside, outside = (np.asarray(a, np.float64).ravel() for a in (members, others))
    for name, values in (("members", inside), ("others", outside)):
        if len(values) < 10 or not np.isfinite(values).all():
            raise InputError(
                f"{name} has {len(values)} values, "
                f"{np.count_nonzero(~np.isfinite(values))} of them not finite.",
                remedy="Give at least ten finite values of each kind.",
            )
    truth = np.concatenate([np.ones(len(inside), np.int64), np.zeros(len(outside), np.int64)])
    curve = measure_roc(truth, -np.concatenate([inside, outside]), level=level, seed=seed)
    random = np.random.default_rng(seed)
    inside, outside = random.permutation(inside), random.permutation(outside)
    threshold = _best_threshold(inside[::2], outside[::2])
    hits, alarms = inside[1::2] <= threshold, outside[1::2] <= threshold
    found = measure_exact_interval(int(hits.sum()), len(hits), level=level)
    false = measure_exact_interval(int(alarms.sum()), len(alarms), level=level)
    return MembershipReport(
        area=curve.area,
        advantage=found.estimate - false.estimate,
        true_positive=found,
        false_positive=false,
        caught_at_one_percent=curve.true_positive_at(0.01),
        epsilon_floor=measure_epsilon_floor(found, false),
        n_members=len(inside),
        n_others=len(outside),
    )


def measure_surprise(records: FloatArray, surrogate: FloatArray) -> FloatArray:
    """Distance of each record to the nearest surrogate record, in the surrogate's units.

    Parameters
    ----------
    records : (n_records, n_features)
        Records whose membership is in question.
    surrogate : (n_surrogate, n_features)
        The surrogate release; its columns are standardised first, and constant ones left out.

    Returns
    -------
    distance : (n_records,)
        Small where the surrogate holds a near copy.
    """
    if records.shape[1] != surrogate.shape[1]:
        raise InputError(
            f"records have {records.shape[1]} columns, the surrogate {surrogate.shape[1]}.",
            remedy="Give the same columns in the same order.",
        )
    mean, scale = surrogate.mean(axis=0), surrogate.std(axis=0)
    kept = scale > 0
    return measure_nearest(
        (records[:, kept] - mean[kept]) / scale[kept],
        (surrogate[:, kept] - mean[kept]) / scale[kept],
    )


def measure_epsilon_floor(found: Interval, false: Interval) -> float:
    """Least privacy loss (nats) consistent with an event's shares in two neighbouring worlds.

    The event or its complement, whichever shows more; 0 when nothing is shown.

    >>> measure_epsilon_floor(
    ...     Interval(0.9, 0.8, 0.95, 0.95, "exact"), Interval(0.1, 0.05, 0.2, 0.95, "exact")
    ... ) > 1.38
    True
    """
    pairs = ((found.lower, false.upper), (1 - false.upper, 1 - found.lower))
    ratios = [math.log(more / less) for more, less in pairs if more > 0 and less > 0]
    return max(0.0, *ratios) if ratios else 0.0


def _best_threshold(inside: FloatArray, outside: FloatArray) -> float:
    """Where the shares at or below differ most."""
    candidates = np.unique(np.concatenate([inside, outside]))
    share = [
        np.searchsorted(np.sort(v), candidates, side="right") / len(v) for v in (inside, outside)
    ]
    return float(candidates[np.argmax(share[0] - share[1])])
