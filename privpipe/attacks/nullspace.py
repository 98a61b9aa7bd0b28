"""Privacy of null-space cleaning as Xu et al. measure it, with and without their attack.

Xu et al. 2017, section "Experimental results" and algorithm 3 (Figures 4 to 7). The adversary is
fitted in the coordinates that a cleaner releases, which is minimum-norm least squares on the
records: fitted to all their features, least squares would fit rounding.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy.typing as npt

from privpipe.attacks.linear import fit_linear_attack
from privpipe.attacks.nullspace_shards import (
    Judge,
    PrivacySums,
    measure_shard,
    summarise_released,
)
from privpipe.errors import InputError
from privpipe.numerics.labels import Coding, name_targets
from privpipe.numerics.moments import CoMoments, LeastSquares
from privpipe.protocols import FloatArray, RecordMap, Shards
from privpipe.sanitizers.arrays import as_finite, as_predictor
from privpipe.sanitizers.design import DesignMoments, fit_predictor, summarise_design
from privpipe.sanitizers.lowrank import LinearCleaner

__all__ = ["NullSpacePrivacy", "ViewPrivacy", "measure_null_space_privacy"]


@dataclass(frozen=True)
class ViewPrivacy:
    """What one predictor finds of the confidential variables in released records.

    Parameters
    ----------
    e_privacy
        Mean over records and confidential targets of the squared difference between the
        prediction from the released record and the confidential prediction from the raw one,
        in squared units of the target.
    complete_privacy
        Share of (record, target) pairs whose true value is predicted from the released record
        with a larger squared error than from the mean training record.
    e_privacy_by_target, complete_privacy_by_target
        The same for each target, by name.
    """

    e_privacy: float
    complete_privacy: float
    e_privacy_by_target: dict[str, float]
    complete_privacy_by_target: dict[str, float]


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
    confidential_predictor: npt.ArrayLike | None = None,
    confidential_intercept: npt.ArrayLike | None = None,
    desired_predictor: npt.ArrayLike | None = None,
    label_coding: Coding = "zero_one",
    ridge: float = 0.0,
    noise_key: bytes | None = None,
) -> NullSpacePrivacy:
    """Measure utility and privacy of a map on test records, with and without the attack.

    Parameters
    ----------
    mechanism
        Any map of features: a cleaner, `LeaceEraser`, `LaplaceMechanism`.
    train
        Records with confidential variables: they train the confidential predictor (unless it
        is given), the mean record, and the adversary, each counting by its weight.
    test
        Other records with the same variables, judged, each once whatever its weight.
    confidential_predictor : (n_features, n_targets), optional
        What the adversary knows without released records.
    confidential_intercept : (n_targets,), optional
        Its intercept.
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
    moments = train.reduce(
        partial(summarise_design, schema=schema, coding=label_coding, roles=("confidential",))
    )
    raw = _find_raw(
        train, moments, confidential_predictor, confidential_intercept, label_coding, ridge
    )
    mean = moments.of_role(None).mean
    desired = getattr(mechanism, "predictor", None)
    if desired_predictor is not None:
        desired = as_predictor(desired_predictor)
    judge = Judge(
        mechanism=mechanism,
        schema=schema,
        coding=label_coding,
        raw=raw,
        from_mean=raw.predict(mean[None, :]),
        desired=desired,
        key=noise_key,
    )
    attack = _train_attack(train, judge)
    sums: PrivacySums = test.reduce(partial(measure_shard, judge=replace(judge, attack=attack)))
    return _report(sums, judge)


def _find_raw(
    train: Shards,
    moments: DesignMoments,
    predictor: npt.ArrayLike | None,
    intercept: npt.ArrayLike | None,
    coding: Coding,
    ridge: float,
) -> LeastSquares:
    if predictor is None:
        return fit_predictor(
            train,
            "confidential",
            moments=moments,
            coding=coding,
            ridge=ridge,
            with_intercept=True,
        )
    a = as_predictor(predictor, "confidential predictor")
    expected = (train.schema.n_features, len(name_targets(train.schema.confidential)))
    if a.shape != expected:
        raise InputError(
            f"The confidential predictor has shape {a.shape}, not {expected}.",
            remedy="Give a column per confidential target.",
            code="predictor",
        )
    return LeastSquares(a, as_finite(intercept, a.shape[1:], "confidential intercept"), 0.0)


def _train_attack(train: Shards, judge: Judge) -> LeastSquares:
    """Algorithm 3 on what the released training records show."""
    moments: CoMoments = train.reduce(partial(summarise_released, judge=judge))
    n_shown = len(moments.mean) - judge.raw.coefficients.shape[1]
    # Coordinates are float64, and all of them count; records show rounding beside them.
    exact = isinstance(judge.mechanism, LinearCleaner)
    return fit_linear_attack(moments, n_shown, 0.0 if exact else 2.0**-53)


def _report(sums: PrivacySums, judge: Judge) -> NullSpacePrivacy:
    count, withheld = (int(value) for value in sums.added["count"])
    if count == 0:
        raise InputError(
            "No test record is left to judge.",
            remedy="Give test records with confidential labels that are not all withheld.",
        )
    names = name_targets(judge.schema.confidential)
    utility = sums.added.get("utility")
    budget = getattr(judge.mechanism, "utility_budget", None)
    return NullSpacePrivacy(
        n_records=count,
        n_withheld=withheld,
        e_utility=None if utility is None else float(utility[0]) / count,
        largest_e_utility=None if utility is None else sums.largest,
        utility_budget=budget,
        n_above_budget=None if utility is None or budget is None else int(utility[1]),
        direct=_report_view(sums.added["direct"], count, names) if "direct" in sums.added else None,
        attacked=_report_view(sums.added["attacked"], count, names),
    )


def _report_view(table: FloatArray, count: int, names: tuple[str, ...]) -> ViewPrivacy:
    changed, private = table / count
    return ViewPrivacy(
        e_privacy=float(changed.mean()),
        complete_privacy=float(private.mean()),
        e_privacy_by_target=dict(zip(names, changed.tolist(), strict=True)),
        complete_privacy_by_target=dict(zip(names, private.tolist(), strict=True)),
    )
