"""Privacy of null-space cleaning as Xu et al. measure it, with and without their attack.

Xu et al. 2017, section "Experimental results" and algorithm 3 (Figures 4 to 7): the sums of the
first audit of a run (`moment_audit`), of records that a map releases while they are judged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from privpipe.attacks import moment_audit
from privpipe.attacks.statistics.privacy import ViewPrivacy, report_privacy
from privpipe.attacks.utility import UtilityLosses, measure_losses
from privpipe.capabilities import Spends, UtilityPromise
from privpipe.cluster.pass_checkpoints import JointSums
from privpipe.errors import InputError, OptionError
from privpipe.numerics import moments as regression
from privpipe.numerics.random.streams import KeyedStream
from privpipe.protocols import ArrayLike, RecordMap, Shard, Shards, ShardSchema

Release = Callable[[Shard], Shard]
"""A shard of raw records with their releases, and with no desired variable."""


@dataclass(frozen=True)
class NullSpacePrivacy:
    """What `measure_null_space_privacy` found.

    Parameters
    ----------
    n_records
        Test records judged; those withheld are not among them.
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


def measure_null_space_privacy(
    mechanism: RecordMap,
    train: Shards,
    test: Shards,
    *,
    desired_predictor: ArrayLike | None = None,
    label_coding: regression.Coding = "zero_one",
    noise_key: bytes | None = None,
) -> NullSpacePrivacy:
    """Measure utility and privacy of a map on test records, with and without the attack.

    Parameters
    ----------
    mechanism
        Any map of features: a cleaner, `LeaceEraser`, `LaplaceMechanism`.
    train
        Records with confidential variables: they train the confidential predictor, the
        mean record, and the adversary. Every record counts once, whatever its weight, as in the
        audit of a run.
    test
        Other records with the same variables, judged.
    desired_predictor : (n_features_released, n_desired), optional
        For e_utility; by default the one that the map holds.
    label_coding
        Values of categorical targets.
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
    if not train.schema.confidential:
        raise InputError(
            "There is no confidential variable to attack.",
            remedy="Give records with confidential variables.",
        )
    schema = replace(train.schema, desired=())
    spends = mechanism if isinstance(mechanism, Spends) else None
    predictor = None if spends is None else spends.predictor
    if desired_predictor is not None:
        given = np.asarray(desired_predictor, np.float64)
        predictor = given.reshape(len(given), -1)
    budget = None if spends is None else spends.utility_budget
    promise = None
    if predictor is not None and len(predictor) == mechanism.n_features_out:
        # No promise, no record above it.
        promise = UtilityPromise(predictor, np.inf if budget is None else budget)
    release = partial(_release, mechanism=mechanism, key=noise_key)
    learn = partial(
        _learn, schema=schema, coding=label_coding, release=partial(release, part="train")
    )
    learned: JointSums = train.reduce(learn)
    moments, pairs = learned.parts
    # 2**-53 is the rounding of float64, in which the map is measured here.
    plan = moment_audit.plan_audit(
        schema, (moments, pairs), mechanism.n_features_out, 2.0**-53, label_coding
    )
    judge = partial(_judge, plan=plan, promise=promise, release=partial(release, part="test"))
    sums: JointSums = test.reduce(judge)
    return _report(sums, plan, budget)


def _release(shard: Shard, *, mechanism: RecordMap, key: bytes | None, part: str) -> Shard:
    """The shard with what a map makes of its features, and with confidential variables alone."""
    stream = None
    if key is not None:
        # The number of a record names its noise: rows that are left out would shift all that
        # follow.
        if shard.first_record < 0:
            raise OptionError(
                "Noise is drawn by the number of the record, and this shard left rows out.",
                remedy="Measure a randomised map on whole shards.",
            )
        stream = KeyedStream(
            key, partition=part, first_record=shard.first_record, n_records=len(shard.features)
        )
    features = shard.features.astype(np.float64)
    made = mechanism.apply(features, stream)
    return replace(shard, features=features, released=made, desired=np.empty((len(features), 0)))


def _learn(
    shard: Shard, *, schema: ShardSchema, coding: regression.Coding, release: Release
) -> JointSums:
    """What raw records teach, and what released ones teach the adversary."""
    both = release(shard)
    raw = moment_audit.summarise_raw(both, schema=schema, coding=coding)
    return JointSums((raw, moment_audit.summarise_pairs(both, schema=schema, coding=coding)))


def _judge(
    shard: Shard, *, plan: moment_audit.AuditPlan, promise: UtilityPromise | None, release: Release
) -> JointSums:
    """All records, those that are judged, and what they lost of utility where that is known."""
    both = release(shard)
    losses = () if promise is None else (measure_losses(both, promise=promise),)
    seen = moment_audit.AuditSums(len(both.features))
    return JointSums((seen, moment_audit.measure_pairs(both, plan=plan), *losses))


def _report(sums: JointSums, plan: moment_audit.AuditPlan, limit: float | None) -> NullSpacePrivacy:
    seen, judged, *losses = sums.parts
    if judged.count == 0:
        raise InputError(
            "No test record is left to judge.",
            remedy="Give test records that are not all withheld.",
        )
    names = regression.name_targets(plan.schema.confidential)
    views = {
        view: report_privacy(judged.added[f"privacy/{view}"].sum(axis=0), names)
        for view in ("released", "retrained")
        if f"privacy/{view}" in judged.added
    }
    loss: UtilityLosses | None = losses[0] if losses else None
    return NullSpacePrivacy(
        n_records=judged.count,
        n_withheld=seen.count - judged.count,
        e_utility=None if loss is None else loss.total / loss.n_records,
        largest_e_utility=None if loss is None else loss.largest,
        utility_budget=limit,
        n_above_budget=None if loss is None or limit is None else loss.n_above,
        direct=views.get("released"),
        attacked=views["retrained"],
    )
