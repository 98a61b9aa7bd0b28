"""Membership: was a record among those a model or a surrogate release was made from?"""

import json
import math
from dataclasses import asdict, dataclass

import numpy as np

from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.attacks.statistics import intervals, roc
from privpipe.attacks.statistics.intervals import Confidence, Interval
from privpipe.errors import InputError
from privpipe.numerics.finite import as_reals
from privpipe.protocols import ArrayLike, FloatArray


@dataclass(frozen=True)
class MembershipReport:
    """How well members are distinguished from others by a threshold.

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
        so often (at the level of the intervals). It is 0 when nothing is shown.
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


def attack_nearest(
    released: FloatArray, members: FloatArray, others: FloatArray, *, options: AttackOptions
) -> MembershipReport:
    """By the nearest record of a surrogate release; arrays as of a `Sample`."""
    surprise = (measure_surprise(side, released) for side in (members, others))
    return measure_membership(*surprise, options=options)


def measure_membership(
    members: ArrayLike, others: ArrayLike, *, options: AttackOptions = USUAL
) -> MembershipReport:
    """Distinguish members from others by how little they surprise.

    Parameters
    ----------
    members : (n_members,)
        Surprise at each record the model or surrogate was made from: its loss under a model,
        or `measure_surprise` for a surrogate release.
    others : (n_others,)
        The same for records of the same population that were not used.
    options
        Two-sided confidence of each interval, and seed of the halves.

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
    AttackOptions.check(options)
    inside, outside = as_reals(members, "members").ravel(), as_reals(others, "others").ravel()
    for name, values in (("members", inside), ("others", outside)):
        if len(values) < 10 or not np.isfinite(values).all():
            problem = f"{name} has {len(values)} values, {(~np.isfinite(values)).sum()} not finite."
            raise InputError(problem, remedy="Give at least ten finite values of each kind.")
    truth = np.concatenate([np.ones(len(inside), np.int64), np.zeros(len(outside), np.int64)])
    # Little surprise means a member, so that the ranking is turned.
    surprise, level = np.concatenate([inside, outside]), options.level
    ranking = np.column_stack([surprise, -surprise])
    found_area = roc.average_areas(truth, ranking, np.zeros(len(truth), np.int64))
    area = intervals.measure_influence_interval(*found_area, Confidence(level), link="logit")
    # The low end of the curve is what an attack on single records is judged by (Carlini et al.).
    caught = dict(zip(roc.GRID, roc.sample_curve(truth, ranking, "classes"), strict=True))[0.01]
    random = np.random.default_rng(options.seed)
    inside, outside = random.permutation(inside), random.permutation(outside)
    # Chosen on one half and counted on the other, or the best of all thresholds would show chance.
    threshold = find_threshold(inside[::2], outside[::2])
    hits, alarms = inside[1::2] <= threshold, outside[1::2] <= threshold
    found = intervals.measure_exact_interval(int(hits.sum()), len(hits), level=level)
    false = intervals.measure_exact_interval(int(alarms.sum()), len(alarms), level=level)
    advantage, floor = found.estimate - false.estimate, measure_epsilon_floor(found, false)
    sizes = len(inside), len(outside)
    return MembershipReport(area, advantage, found, false, caught, floor, *sizes)


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
        problem = f"records have {records.shape[1]} columns, the surrogate {surrogate.shape[1]}."
        raise InputError(problem, remedy="Give the same columns in the same order.")
    mean, scale = surrogate.mean(axis=0), surrogate.std(axis=0)
    varies = scale > 0
    mine, theirs = ((x - mean)[:, varies] / scale[varies] for x in (records, surrogate))
    return measure_nearest(mine, theirs)


def measure_nearest(probes: FloatArray, gallery: FloatArray) -> FloatArray:
    """Euclidean distance of each probe to the nearest entry of the gallery, (n_probes,).

    >>> measure_nearest(np.array([[0.0, 1.0]]), np.array([[0.0, 3.0], [5.0, 1.0]]))
    array([2.])
    """
    from sklearn.neighbors import NearestNeighbors  # slow to import, and few attacks need it

    model = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(gallery)
    at = model.kneighbors(probes, return_distance=False)[:, 0]
    # The difference itself holds the digits that the expanded square loses near zero.
    return np.asarray(np.linalg.norm(probes.astype(np.float64) - gallery[at], axis=1))


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


def find_threshold(inside: FloatArray, outside: FloatArray) -> float:
    """Where the shares at or below differ most."""
    cuts = np.unique(np.concatenate([inside, outside]))
    share = [np.searchsorted(np.sort(v), cuts, side="right") / len(v) for v in (inside, outside)]
    return float(cuts[np.argmax(share[0] - share[1])])
