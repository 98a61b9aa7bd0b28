"""What score a private method reaches, tried on public records: order, epsilon, records needed.

Noise before the filter or after it, or private surrogates, are fitted, released and judged on
splits of the training records. An epsilon chosen by one's own records would not be private of them.
"""

import math
import warnings
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from privpipe.attacks.equal_noise import score_least_squares, score_model
from privpipe.errors import InputError, OptionError
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.pipeline.runs.missing_values import fill_preview
from privpipe.pipeline.runs.run import Run
from privpipe.pipeline.stages.trial import RETAINED, read_records
from privpipe.protocols import FloatArray, Shard
from privpipe.records.memory import Records
from privpipe.records.sampling import take_records

ORDERS = ("filter_then_noise", "noise_then_filter")

SPLITS, MOST_SPLIT, DRAWS = 5, 4_000, 4
"""Of the records in halves, of which at most so many are read; and of the noise of each."""

COPIES = sorted({round(2 ** (k / 2)) for k in range(33)})
"""How many times as many records are tried for a score."""

MOST_CELLS = 2**21
"""Features of released copies: of more than they hold nothing is tried."""

EPSILONS = [round(float(one), 2) for one in np.geomspace(0.25, 20.0, 16)]
"""That are tried for a score; beyond the last one nothing is called a promise."""

HALF = float(stdtrit(SPLITS - 1, 0.975)) * math.sqrt(1 / SPLITS + 1)
"""Deviations of a score between splits in half of its interval: splits share records (Nadeau and
Bengio 2003, Inference for the Generalization Error)."""


def try_orders(run: Run, goal: float) -> dict[str, Any]:
    """Fit, release and judge on splits of training records: noise in either order, or surrogates.

    Parameters
    ----------
    run
        That was checked.
    goal
        Accuracy of the first desired variable, or R squared of a number.

    Returns
    -------
    findings
        - Score of raw records and of a guess.
        - Score of either order with half of its interval of .95, None where its noise is refused.
        - The better order, the gap and how many records would show it.
        - Whether too little is left.
        - The least epsilon tried of which the whole interval reaches the goal.
        - What `_find_records` says of the epsilon given.

        Of surrogates all but the last are for as many records as there are.

    Raises
    ------
    OptionError
        If the method has no order and masks nothing, or nothing is to be predicted.
    """
    training = fill_preview(run.options, run.training).keeping(run.split, "fit")
    training = replace(training, only_finite=True)
    method: Any = run.options.method
    is_masked = run.method.releases == "surrogate" and method.consumes() is not None
    orders = () if getattr(method, "filter", None) is None else ORDERS
    tried = {o: replace(method, order=o) for o in orders} or {run.method.name: method}
    if not (orders or is_masked) or not training.schema.desired:
        raise OptionError(
            "--score needs a desired variable, and noise beside a filter or private surrogates.",
            remedy="Leave --score out, or name [method.filter] and [collection] desired.",
            code="order",
        )
    shard = read_records(training, MOST_SPLIT)
    is_classes = training.schema.desired[0].is_categorical
    truth = shard.desired[:, 0]
    known = np.isfinite(truth) & (truth >= 0 if is_classes else True)
    score = partial(_score_splits, run, take_records(shard, np.flatnonzero(known)))
    n_fitted = training.n_records * (1 - run.split.share)
    # A model of surrogates rests on all records, of which these are a few.
    all_of = max(1, round(2 * n_fitted / known.sum())) if is_masked else 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: score(options, all_of) for name, options in tried.items()}
        best = max(tried, key=lambda name: np.nan_to_num(found[name].mean(), nan=-1.0))

        def reaches(epsilon: float) -> bool:
            return _is_reached(score(replace(tried[best], epsilon=epsilon), all_of), goal)

        at = bisect_left(EPSILONS, True, key=reaches)
        raw = float(score(None).mean())
        most = 2**30 if is_masked else MOST_CELLS // shard.features.shape[1]
        records = _find_records(partial(score, tried[best]), goal, int(known.sum()) // 2, most)
    gaps, truth = found[min(tried)] - found[max(tried)], truth[known]
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
        "epsilon": method.epsilon,
        "n_masked": all_of * (len(truth) // 2) if is_masked else None,
        **records,
    }


def _find_records(score: Callable[..., Any], goal: float, n: int, most: int) -> dict[str, Any]:
    """How many records reach a goal: so many times `n`, whose sums or releases are repeated.

    `enough` is the least number tried of which the whole interval reaches it, None where none
    does. Then `is_limited` says whether that of ever more records is below it, too. `n_tried` is
    the largest number tried. Copies bring noise of their own and no new records, of which a few
    more would do.
    """
    copies = [k for k in COPIES if k * n <= max(n, most)]
    at = bisect_left(copies, True, key=lambda k: _is_reached(score(k), goal))
    enough, is_limited = (n * copies[at] if at < len(copies) else None), False
    if enough is None and len(copies) > 2:
        # What is lost falls as one in the number of records, or faster: so much is yet to come.
        limit = 2 * score(copies[-1]) - score(copies[-1] // 2)
        is_limited = bool(limit.mean() + HALF * limit.std(ddof=1) < goal)
    return {"enough": enough, "is_limited": is_limited, "n_tried": n * copies[-1]}


def _is_reached(scores: FloatArray, goal: float) -> bool:
    return bool(scores.mean() - HALF * scores.std(ddof=1) >= goal)


def _repeat(records: Records, n_copies: int, delta: float) -> Any:
    """Shards of which sums are those of so many copies of every record."""

    def reduce(summarise: Callable[[Shard], Any]) -> Any:
        found = records.reduce(summarise)
        return replace(found, **{name: n_copies * each for name, each in vars(found).items()})

    # Of more records than one in delta the run itself will need a smaller one.
    n = min(n_copies * records.n_records, math.floor(1 / delta))
    return SimpleNamespace(n_records=n, schema=replace(records.schema, n_records=n), reduce=reduce)


def _score_splits(run: Run, shard: Shard, options: Any, n_copies: int = 1) -> FloatArray:
    """Of raw records, or of releases by options, by split; NaN where their noise is refused.

    Nothing of a trial is released, so its noise repeats: the same records give the same answer.
    """
    found, schema = np.full(SPLITS, math.nan), run.training.schema
    n_classes = schema.desired[0].n_categories
    for k in range(SPLITS):
        order = np.random.default_rng(k).permutation(len(shard.features))
        learn, rest = (take_records(shard, rows) for rows in np.array_split(order, 2))
        x, y = np.asarray(rest.features, np.float64), rest.desired[:, 0]
        if options is None:
            found[k] = score_least_squares(x, y, n_classes, k)
            continue
        records = Records.of_shard(learn, schema)
        keys = [np.random.default_rng((k, i)).bytes(KEY_BYTES) for i in range(DRAWS)]
        try:
            if run.method.releases == "surrogate":
                shards = _repeat(records, n_copies, options.delta)
                models = [options.try_fit(shards, key) for key in keys]
                found[k] = np.mean([score_model(m.coefficients, x, y, n_classes) for m in models])
                continue
            fitted = run.method.fit(records, options, **run.read_files())
        except (OptionError, InputError):
            break
        draw = partial(KeyedStream, partition="trial", first_record=0, n_records=n_copies * len(x))
        rows = np.tile(np.arange(len(x)), n_copies)
        drawn = (fitted.apply(x[rows], draw(key)) for key in keys[: max(1, DRAWS // n_copies)])
        found[k] = np.mean([score_least_squares(x, y[rows], n_classes, k, rows) for x in drawn])
    return found
