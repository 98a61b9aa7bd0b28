"""Two samples distinguished: who was in the training records, or whether two populations differ.

An adversary is trained to say which of two samples a record is of and judged on others. Where it
only guesses, the two are alike to it. Of records that a model learned from and of others, this is
membership. Of a release and of the records that judged it, it is drift.
"""

import json
from dataclasses import asdict, dataclass, replace

import numpy as np

from privpipe.attacks.adversaries.attack_options import USUAL, AttackOptions
from privpipe.attacks.threats.inference import measure_attacks
from privpipe.attacks.threats.verdicts.outcomes import describe_score
from privpipe.errors import InputError
from privpipe.protocols import Column, FloatArray

MOST_COMPARED = 10_000
"""Records of each sample."""

LEAST_RECORDS = 50

TRAINED = ("logistic", "boosting", "naive_bayes")
"""Adversaries that are trained, where the options name them: one that weighs columns, one that
divides, and one that needs few records."""


SHOWN = ("score", "estimate", "lower", "upper", "advantage", "advantage_lower", "advantage_upper")
"""What is reported of a score."""


@dataclass(frozen=True)
class Difference:
    """How well one adversary distinguishes the samples by one score.

    Parameters
    ----------
    adversary, score
        Who, and by what.
    estimate, lower, upper
        The score, with limits that hold together with all others here.
    advantage, advantage_lower, advantage_upper
        Share of the way from guessing to knowing; of a true-positive rate the share of records
        claimed rightly beyond the false alarms.
    """

    adversary: str
    score: str
    estimate: float
    lower: float
    upper: float
    advantage: float
    advantage_lower: float
    advantage_upper: float


@dataclass(frozen=True)
class TwoSampleReport:
    """What adversaries find between two samples.

    Parameters
    ----------
    differences
        Deciding scores of every adversary.
    n_first, n_second
        Records of each sample.
    n_unknown
        Adversaries that failed.
    """

    differences: tuple[Difference, ...]
    n_first: int
    n_second: int
    n_unknown: int

    @property
    def strongest(self) -> Difference:
        """The largest lower limit of an advantage."""
        return max(self.differences, key=lambda one: (one.advantage_lower, one.advantage))

    def to_json(self) -> str:
        """The report as JSON."""
        return json.dumps(asdict(self) | {"strongest": asdict(self.strongest)}, indent=1)


def attack_training(
    learned: FloatArray, fresh: FloatArray, *, options: AttackOptions
) -> TwoSampleReport:
    """Membership in the training records; arrays as of a `Sample`."""
    return compare_samples(learned, fresh, options)


def attack_drift(
    published: FloatArray, judged: FloatArray, *, options: AttackOptions
) -> TwoSampleReport:
    """Drift of a release from the records that judged it; arrays as of a `Sample`."""
    return compare_samples(published, judged, options)


def compare_samples(
    first: FloatArray, second: FloatArray, options: AttackOptions = USUAL
) -> TwoSampleReport:
    """Train adversaries to distinguish two samples, on as many records of each.

    Parameters
    ----------
    first, second : (n, n_columns)
        Finite records of each; of either at most 10,000 are drawn.
    options
        Adversaries, level and bounds.

    Raises
    ------
    InputError
        If there are fewer than 50 of either, their columns differ, or every adversary failed.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> here, there = random.normal(size=(300, 2)), random.normal(size=(300, 2)) + [3, 0]
    >>> compare_samples(here, there).strongest.advantage_lower > 0.5
    True
    """
    if min(len(first), len(second)) < LEAST_RECORDS or first.shape[1] != second.shape[1]:
        problem = f"The samples have {len(first)} and {len(second)} records, or other columns."
        remedy = f"Give at least {LEAST_RECORDS} of each, with the same columns."
        raise InputError(problem, remedy=remedy, code="too_few_records")
    random = np.random.default_rng(options.seed)
    # As many of each, or to guess the larger sample would be right more often than half.
    size = min(len(first), len(second), MOST_COMPARED)
    sides = [side[random.permutation(len(side))[:size]] for side in (first, second)]
    used = tuple(name for name in TRAINED if name in options.adversaries) or options.adversaries[:1]
    options = replace(options, adversaries=used)
    kind, truth = Column("sample", 2), np.repeat([0, 1], size)
    report = measure_attacks(np.vstack(sides), truth, columns=[kind], options=options)
    found = [
        Difference(outcome.attack.adversary, **{name: about[name] for name in SHOWN})
        for outcome in report.outcomes
        for about in map(describe_score, outcome.scores)
        if about["score"] in options.decides
    ]
    if not found:
        problem = "No adversary could be trained to distinguish the samples."
        raise InputError(problem, remedy="Name other adversaries.", code="no_adversary")
    n_unknown = sum(outcome.status == "unknown" for outcome in report.outcomes)
    return TwoSampleReport(tuple(found), size, size, n_unknown)


def measure_losses_of_model(
    raw: FloatArray, labels: FloatArray, predictor: FloatArray | None, released: FloatArray
) -> FloatArray:
    """What a record costs a published model: small where the model knows it.

    Records of both sides are given together. What is measured may depend on them all. It must not
    depend on the side, or the side would be revealed by nothing but the measuring.

    Parameters
    ----------
    raw, released : (n_records, any)
        Records before and after.
    labels : (n_records, n_desired)
        True desired variables, as the model codes them; NaN where missing.
    predictor : (n_features, n_desired), optional
        Slope of the predictions that the model holds.

    Returns
    -------
    losses : (n_records, n_losses)
        Squared residual of every desired variable, and the squared way from raw to released.

    References
    ----------
    Yeom et al. 2018, Privacy Risk in Machine Learning.
    """
    columns = []
    if predictor is not None and predictor.shape == (raw.shape[1], labels.shape[1]):
        residual = labels - raw @ predictor
        # The slope has no intercept here; a constant would be the loss of all.
        residual -= np.nanmean(residual, axis=0)
        columns.append(np.nan_to_num(residual**2))
    if raw.shape == released.shape:
        columns.append(((released - raw) ** 2).sum(axis=1, keepdims=True))
    return np.hstack(columns) if columns else np.empty((len(raw), 0))
