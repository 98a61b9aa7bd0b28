"""Filter or noise first, and how much epsilon? Tried on public records, before a run."""

import math
import warnings
from bisect import bisect_left
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import stdtrit

from privpipe.attacks.equal_noise import score_least_squares
from privpipe.errors import OptionError
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.trial import RETAINED, read_records
from privpipe.protocols import FloatArray, Shard
from privpipe.records import memory, sampling

ORDERS = ("filter_then_noise", "noise_then_filter")

SPLITS, MOST, DRAWS = 5, 4_000, 4
"""Of the records in halves, of which at most so many are read; and of the noise of each."""

EPSILONS = [round(float(one), 2) for one in np.geomspace(0.25, 20.0, 16)]
"""That are tried for a score; beyond the last one nothing is called a promise."""

HALF = float(stdtrit(SPLITS - 1, 0.975)) * math.sqrt(1 / SPLITS + 1)
"""Deviations of a score between splits in half of its interval: splits share records (Nadeau and
Bengio 2003, Inference for the Generalization Error)."""


def try_orders(run: Run, goal: float) -> dict[str, Any]:
    """Fit, release and judge in either order, on splits of public training records.

    Parameters
    ----------
    run
        That was checked.
    goal
        Accuracy of the first desired variable, or R squared of a number.

    Returns
    -------
    findings
        Score of raw records and of a guess; of either order with half of its interval of .95, None
        where its noise is refused; the better order, the gap and how many records would show it;
        whether too little is left; and the least epsilon tried of which the whole interval reaches
        the goal.

    Raises
    ------
    OptionError
        If the method has no order, or nothing is to be predicted.
    """
    training = replace(run.training.keeping(run.split, "fit"), only_finite=True)
    method: Any = run.options.method
    if getattr(method, "filter", None) is None or not training.schema.desired:
        raise OptionError(
            f"--score needs a desired variable and noise beside a filter: not {run.method.name!r}.",
            remedy="Leave --score out, or name [method.filter] and [collection] desired.",
            code="order",
        )
    shard, is_classes = read_records(training, MOST), training.schema.desired[0].is_categorical
    truth = shard.desired[:, 0]
    known = np.isfinite(truth) & (truth >= 0 if is_classes else True)
    score = partial(_score, run, sampling.take_records(shard, np.flatnonzero(known)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {order: score(replace(method, order=order)) for order in ORDERS}
        best = max(ORDERS, key=lambda order: np.nan_to_num(found[order].mean(), nan=-1.0))

        def reaches(epsilon: float) -> bool:
            tried = score(replace(method, order=best, epsilon=epsilon))
            return bool(tried.mean() - HALF * tried.std(ddof=1) >= goal)

        at = bisect_left(EPSILONS, True, key=reaches)
        raw = float(score(None).mean())
    gaps, truth = found[ORDERS[0]] - found[ORDERS[1]], truth[known]
    gap, half = abs(float(gaps.mean())), HALF * float(gaps.std(ddof=1))
    guess = float(np.bincount(truth.astype(int)).max() / len(truth)) if is_classes else 0.0
    spread = {k: [float(x.mean()), HALF * float(x.std(ddof=1))] for k, x in found.items()}
    return {
        "n_records": len(truth),
        "score": "accuracy" if is_classes else "R squared",
        "raw": raw,
        "guess": guess,
        "orders": {k: None if math.isnan(one[0]) else one for k, one in spread.items()},
        "best": best,
        "is_shown": math.isnan(gap) or gap > half,
        "n_needed": math.ceil(len(truth) * (half / gap) ** 2) if gap > 0 else None,
        "is_useless": sum(spread[best]) < guess + RETAINED * (raw - guess),
        "goal": goal,
        "least": EPSILONS[at] if at < len(EPSILONS) else None,
    }


def _score(run: Run, shard: Shard, options: Any) -> FloatArray:
    """Of raw records, or of releases by options, by split; NaN where their noise is refused.

    Nothing of a trial is released, so its noise repeats: the same records give the same answer.
    """
    found, schema = np.full(SPLITS, math.nan), run.training.schema
    for k in range(SPLITS):
        order = np.random.default_rng(k).permutation(len(shard.features))
        learn, rest = (sampling.take_records(shard, rows) for rows in np.array_split(order, 2))
        x, n = [np.asarray(rest.features, np.float64)], len(rest.features)
        if options is not None:
            try:
                records = memory.Records.of_shard(learn, schema)
                fitted = run.method.fit(records, options, **run.read_files())
            except OptionError:
                break
            draw = partial(KeyedStream, partition="trial", first_record=0, n_records=n)
            keys = (np.random.default_rng((k, i)).bytes(KEY_BYTES) for i in range(DRAWS))
            x = [fitted.apply(x[0], draw(key)) for key in keys]
        judge = partial(score_least_squares, n_classes=schema.desired[0].n_categories, seed=k)
        found[k] = np.mean([judge(one, rest.desired[:, 0]) for one in x])
    return found
