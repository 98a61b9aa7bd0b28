"""Privacy of null-space cleaning as Xu et al. measure it, with and without their attack.

Xu et al. 2017, section "Experimental results" and algorithm 3 (Figures 4 to 7). The adversary is
fitted in the coordinates that a cleaner releases, which is minimum-norm least squares on the
records: fitted to all their features, least squares would fit rounding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from privpipe.attacks.moment_audit import fit_linear_attack, widen
from privpipe.attacks.statistics.joint_sums import JointSums
from privpipe.attacks.statistics.privacy import ViewPrivacy, report_privacy, sum_privacy
from privpipe.capabilities import Coordinates, Spends
from privpipe.errors import InputError, OptionError, RankError
from privpipe.numerics import moments as regression
from privpipe.numerics.finite import find_finite_rows
from privpipe.numerics.random.streams import KeyedStream
from privpipe.numerics.tsqr import Frame, TriangularFactor, solve_triangular
from privpipe.protocols import FloatArray, RecordMap, Shard, Shards, ShardSchema


@dataclass(frozen=True, eq=False)
class Judge:
    """All that judging a shard needs; picklable.

    Parameters
    ----------
    mechanism
        The map under judgement.
    schema, coding
        Of the records and their labels.
    raw
        Predictor of the confidential targets, fitted to raw records.
    mean : (n_features,)
        Mean raw training record.
    desired : (n_features_released, n_desired), optional
        The desired predictor.
    key
        For the noise of a randomised map.
    attack
        The adversary, once it is trained.
    """

    mechanism: RecordMap
    schema: ShardSchema
    coding: regression.Coding
    raw: regression.LeastSquares
    mean: FloatArray
    desired: FloatArray | None
    key: bytes | None
    attack: regression.LeastSquares | None = None


@dataclass(frozen=True, eq=False)
class PrivacySums:
    """Sums over judged records by name, and the largest loss of utility."""

    added: dict[str, FloatArray]
    largest: float

    def merge(self, other: PrivacySums) -> PrivacySums:
        """Sums over the records of both."""
        return PrivacySums(
            {name: value + other.added[name] for name, value in self.added.items()},
            max(self.largest, other.largest),
        )


def _release(shard: Shard, judge: Judge, part: str) -> tuple[FloatArray, FloatArray]:
    """Released records, and what of them the adversary is fitted to."""
    stream = None
    if judge.key is not None:
        # The number of a record names its noise: rows that are left out would shift all that
        # follow.
        if shard.first_record < 0:
            raise OptionError(
                "Noise is drawn by the number of the record, and this shard left rows out.",
                remedy="Measure a randomised map on whole shards.",
            )
        stream = KeyedStream(
            judge.key,
            partition=part,
            first_record=shard.first_record,
            n_records=len(shard.features),
        )
    released = judge.mechanism.apply(shard.features.astype(np.float64), stream)
    if isinstance(judge.mechanism, Coordinates):
        return released, judge.mechanism.measure_coordinates(released)
    return released, released


def summarise_released(shard: Shard, *, judge: Judge) -> regression.CoMoments:
    """Co-moments of what released training records show, and their confidential targets."""
    _, shown = _release(shard, judge, "train")
    rows = np.hstack([shown, code_confidential(shard, judge.schema, judge.coding)])
    whole = find_finite_rows(rows)
    return regression.CoMoments.of(
        rows[whole], shard.weights[whole] if shard.weights.size else None
    )


def measure_shard(shard: Shard, *, judge: Judge) -> PrivacySums:
    """Judge the records of a shard: directly, by the adversary, and for utility."""
    released, shown = _release(shard, judge, "test")
    truth = code_confidential(shard, judge.schema, judge.coding)
    withheld = np.isnan(released).any(axis=1)
    judged = ~withheld & ~np.isnan(truth).any(axis=1)
    x = shard.features[judged].astype(np.float64)
    truth, released, shown = truth[judged], released[judged], shown[judged]
    assert judge.attack is not None, "the adversary is trained before it is judged"
    views = {"attacked": (judge.attack, shown)}
    direct = widen(judge.raw, released.shape[1])
    if direct is not None:
        views["direct"] = (direct, released)
    added: dict[str, FloatArray] = {
        "count": np.array([len(x), np.count_nonzero(withheld)], np.float64)
    }
    expected = judge.raw.predict(x)
    for name, (adversary, seen) in views.items():
        added[name] = sum_privacy(adversary, seen, expected, truth, judge.raw, judge.mean)
    loss = _measure_utility(x, released, judge)
    if loss is None:
        return PrivacySums(added, 0.0)
    mechanism = judge.mechanism
    budget = mechanism.utility_budget if isinstance(mechanism, Spends) else np.inf
    added["utility"] = np.array([loss.sum(), np.count_nonzero(loss > budget)])
    return PrivacySums(added, float(loss.max(initial=0.0)))


def _measure_utility(x: FloatArray, released: FloatArray, judge: Judge) -> FloatArray | None:
    if judge.desired is None or released.shape[1] != len(judge.desired):
        return None
    if released.shape[1] == x.shape[1] + 1:
        x = np.hstack([x, np.ones((len(x), 1))])
    loss: FloatArray = (((released - x) @ judge.desired) ** 2).sum(axis=1)
    return loss


@dataclass(frozen=True)
class NullSpacePrivacy:
    """What `measure_null_space_privacy` found.

    Parameters
    ----------
    n_records
        Test records judged; those withheld or without confidential labels are not among them.
    n_withheld
        Test records withheld.
    e_utility, largest_e_utility
        Mean and largest squared change of the desired prediction; None where no desired
        predictor is known.
    utility_budget, n_above_budget
        The promise, and judged records above it (in float64); None where none was made.
    direct
        The confidential predictor as it was fitted to raw records, on released ones; None where
        released records have other features.
    attacked
        Algorithm 3: retrained on released training records, with an intercept of its own.
    """

    n_records: int
    n_withheld: int
    e_utility: float | None
    largest_e_utility: float | None
    utility_budget: float | None
    n_above_budget: int | None
    direct: ViewPrivacy | None
    attacked: ViewPrivacy

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def measure_null_space_privacy(
    mechanism: RecordMap,
    train: Shards,
    test: Shards,
    *,
    desired_predictor: npt.ArrayLike | None = None,
    label_coding: regression.Coding = "zero_one",
    ridge: float = 0.0,
    noise_key: bytes | None = None,
) -> NullSpacePrivacy:
    """Measure utility and privacy of a map on test records, with and without the attack.

    Parameters
    ----------
    mechanism
        Any map of features: a cleaner, `LeaceEraser`, `LaplaceMechanism`.
    train
        Records with confidential variables: they train the confidential predictor, the
        mean record, and the adversary, each counting by its weight.
    test
        Other records with the same variables, judged, each once whatever its weight.
    desired_predictor : (n_features_released, n_desired), optional
        For e_utility; by default the one that the map holds.
    label_coding
        Values of categorical targets.
    ridge
        Of the confidential predictor's fit.
    noise_key : 32 bytes, optional
        For randomised maps: a key of this measurement alone, never that of a release.

    Returns
    -------
    NullSpacePrivacy

    Raises
    ------
    InputError
        If there are no confidential variables or no records to judge.
    OptionError
        If a randomised map has no key.

    References
    ----------
    Xu et al. 2017, "Experimental results", Figure 5 (algorithm 3) and Figure 7.
    """
    schema = train.schema
    if not schema.confidential:
        raise InputError(
            "There is no confidential variable to attack.",
            remedy="Give records with confidential variables.",
        )
    moments, mean = measure_raw(train, label_coding)
    raw = fit_raw_predictor(train, moments, coding=label_coding, ridge=ridge)
    desired = mechanism.predictor if isinstance(mechanism, Spends) else None
    if desired_predictor is not None:
        desired = np.asarray(desired_predictor, np.float64)
        desired = desired[:, None] if desired.ndim == 1 else desired
    judge = Judge(
        mechanism=mechanism,
        schema=schema,
        coding=label_coding,
        raw=raw,
        mean=mean,
        desired=desired,
        key=noise_key,
    )
    attack = _train_attack(train, judge)
    sums: PrivacySums = test.reduce(partial(measure_shard, judge=replace(judge, attack=attack)))
    return _report(sums, judge)


def _train_attack(train: Shards, judge: Judge) -> regression.LeastSquares:
    """Algorithm 3 on what the released training records show."""
    moments: regression.CoMoments = train.reduce(partial(summarise_released, judge=judge))
    n_shown = len(moments.mean) - judge.raw.coefficients.shape[1]
    # Coordinates are float64, and all of them count; records show rounding beside them.
    # 2**-53 is the rounding of float64, in which the maps are measured here.
    exact = isinstance(judge.mechanism, Coordinates)
    return fit_linear_attack(moments, n_shown, 0.0 if exact else 2.0**-53)


def _report(sums: PrivacySums, judge: Judge) -> NullSpacePrivacy:
    count, withheld = (int(value) for value in sums.added["count"])
    if count == 0:
        raise InputError(
            "No test record is left to judge.",
            remedy="Give test records with confidential labels that are not all withheld.",
        )
    names = regression.name_targets(judge.schema.confidential)
    utility = sums.added.get("utility")
    mechanism = judge.mechanism
    budget = mechanism.utility_budget if isinstance(mechanism, Spends) else None
    return NullSpacePrivacy(
        n_records=count,
        n_withheld=withheld,
        e_utility=None if utility is None else float(utility[0]) / count,
        largest_e_utility=None if utility is None else sums.largest,
        utility_budget=budget,
        n_above_budget=None if utility is None or budget is None else int(utility[1]),
        direct=report_privacy(sums.added["direct"], names) if "direct" in sums.added else None,
        attacked=report_privacy(sums.added["attacked"], names),
    )


WORST_CONDITION = 1e5
"""Above this condition of the scaled Gram matrix a factor of the design is computed."""


def measure_raw(
    train: Shards, coding: regression.Coding
) -> tuple[regression.CoMoments, FloatArray]:
    """Co-moments of ``[features, confidential targets]`` where these are known; the mean record.

    The mean is that of all records, also of those without labels.

    Raises
    ------
    InputError
        If features are not finite.
    """
    schema = train.schema
    found: JointSums = train.reduce(partial(summarise_raw_records, schema=schema, coding=coding))
    labelled, others = found.parts
    features = np.arange(schema.n_features)
    return labelled, labelled.select(features).merge(others).mean


def summarise_raw_records(
    shard: Shard, *, schema: ShardSchema, coding: regression.Coding
) -> JointSums:
    """Co-moments of the records with labels, and of the features of those without."""
    bad = int(np.count_nonzero(~find_finite_rows(shard.features)))
    if bad:
        raise InputError(
            f"{bad} of {len(shard.features)} training records hold features that are not finite.",
            remedy="Remove or impute them before judging.",
            code="nonfinite",
        )
    targets = code_confidential(shard, schema, coding)
    known = find_finite_rows(targets)
    x = shard.features.astype(np.float64)
    labelled = regression.CoMoments.of(np.hstack([x[known], targets[known]]), _weigh(shard, known))
    return JointSums((labelled, regression.CoMoments.of(x[~known], _weigh(shard, ~known))))


def fit_raw_predictor(
    train: Shards, moments: regression.CoMoments, *, coding: regression.Coding, ridge: float = 0.0
) -> regression.LeastSquares:
    """Predictor of the confidential targets, with an intercept.

    Parameters
    ----------
    train
        The records; read once more where their co-moments are too coarse.
    moments
        What `measure_raw` found of them.
    coding
        Values of categorical targets.
    ridge
        See `solve_least_squares`.

    Raises
    ------
    RankError
        If the features are dependent to the precision of float64 and ``ridge = 0``.
    InputError
        If fewer than two records have labels.
    """
    schema = train.schema
    n, names = schema.n_features, schema.feature_names
    try:
        found = regression.solve_least_squares(moments, n, ridge=ridge, names=names)
        if found.condition <= WORST_CONDITION:
            return found
    except RankError:
        pass  # as far as the Gram matrix shows; the factor sees twice as many digits
    # The factor of the design sees twice the digits of its Gram matrix: a second pass, only where
    # the first cannot decide.
    frame = Frame(moments.mean, regression.measure_scale(moments, n, True), True)
    factor: TriangularFactor = train.reduce(
        partial(summarise_factor, schema=schema, coding=coding, frame=frame)
    )
    return solve_triangular(factor, frame, ridge=ridge, names=names)


def summarise_factor(
    shard: Shard, *, schema: ShardSchema, coding: regression.Coding, frame: Frame
) -> TriangularFactor:
    """Triangular factor of features and targets of the records with labels."""
    targets = code_confidential(shard, schema, coding)
    known = find_finite_rows(targets)
    x = shard.features[known].astype(np.float64)
    return TriangularFactor.of_design(x, targets[known], frame, _weigh(shard, known))


def code_confidential(shard: Shard, schema: ShardSchema, coding: regression.Coding) -> FloatArray:
    """Confidential target columns of a shard, (n_records, n_targets), NaN where missing."""
    return regression.code_targets(shard.confidential, schema.confidential, coding)


def _weigh(shard: Shard, rows: npt.NDArray[np.bool_]) -> FloatArray | None:
    return shard.weights[rows] if shard.weights.size else None
