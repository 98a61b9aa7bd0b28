"""One noisy filter of Hamm's figure, judged: learned, its start chosen, its draws attacked.

Nothing of the test records enters a filter or a choice: of the starts of a minimax filter, that is
taken which does best on a part of the training records set aside.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from flows.reproduce.hamm_accuracies import Trial
from flows.reproduce.paper_adversaries import measure_accuracy, measure_papers_accuracy
from privpipe.numerics.noise.mechanism import Law, plan_mechanism
from privpipe.numerics.random.streams import KEY_BYTES, KeyedStream
from privpipe.protocols import FloatArray, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers import METHODS
from privpipe.sanitizers.noise.noisy_filter import NoisyFilter
from privpipe.sanitizers.options import make_options

STARTS = ("rand", "privacy_lds", "least_squares")
ITERATIONS = 30
TOLERANCES = {"tolerance": 1e-4, "inner_tolerance": 1e-4}
"""In nats: finer ones take three times as long, and accuracies stay within their draws."""
SET_ASIDE = 0.3
"""Share of the training records that choose."""
CHOOSING = (1e-3, 1e-2)
"""1 / epsilon at which starts are compared, where noise and signal are of one size."""
CHOOSING_DRAWS = 3


@dataclass(frozen=True)
class Choice:
    """What the paper leaves open of a filter.

    Parameters
    ----------
    start
        Of the descent of a minimax filter; empty for others.
    orthonormal
        Whether a filter before the noise is made orthonormal, or keeps its own scales.
    """

    start: str = ""
    orthonormal: bool = True

    def __str__(self) -> str:
        scales = "orthonormal" if self.orthonormal else "own scales"
        return f"{self.start}, {scales}" if self.start else scales


def list_choices(name: str, order: str) -> tuple[Choice, ...]:
    """What is chosen from; behind the noise no change of coordinates matters."""
    if name != "minimax":
        return (Choice(),)
    scales = (True, False) if order == "pre" else (True,)
    return tuple(Choice(start, scale) for scale in scales for start in STARTS)


def guess_classes(trial: Trial) -> tuple[float, float]:
    """Accuracy of the best constant guess on test records: target, private."""
    target, private = (
        float(np.bincount(labels[1]).max() / len(labels[1]))
        for labels in (trial.target, trial.private)
    )
    return target, private


def score_choice(
    trial: Trial, name: str, order: str, width: int, choice: Choice, seed: int
) -> float:
    """How good a choice is by the training records alone: target accuracy less private accuracy.

    Of records set aside, over `CHOOSING` and draws of noise; the second is the private accuracy
    above guessing.
    """
    inner = _set_aside(trial, seed)
    _, guess = guess_classes(inner)
    scores = []
    for inverse in CHOOSING:
        found = judge_noisy(
            inner, name, order, width, choice, inverse, CHOOSING_DRAWS, seed, others=()
        )
        target, private = (
            float(np.mean([value for task, _, value in found if task == role]))
            for role in ("target", "private")
        )
        scores.append(target - max(private - guess, 0.0))
    return float(np.mean(scores))


def _set_aside(trial: Trial, seed: int) -> Trial:
    """The training records alone, as a trial of their own."""
    n = len(trial.target[0])
    order = np.random.default_rng([seed, 1]).permutation(n)
    fit, tune = np.split(order, [n - round(SET_ASIDE * n)])

    def deal(pair: tuple[Any, Any]) -> tuple[Any, Any]:
        return pair[0][fit], pair[0][tune]

    return Trial(deal(trial.features), deal(trial.target), deal(trial.private))


def judge_noisy(
    trial: Trial,
    name: str,
    order: str,
    width: int,
    choice: Choice,
    inverse: float,
    draws: int,
    seed: int,
    others: Sequence[str] = ("logistic",),
    law: Law = "knorm",
) -> list[tuple[str, str, float]]:
    """Task, adversary and accuracy of every draw of one noisy filter.

    Parameters
    ----------
    trial
        The filter and the adversaries learn on its training records.
    name
        "pca" or "minimax".
    order
        "pre": filtered before the noise. "post": after it, by a filter of noisy records.
    width
        Features released.
    choice
        What the paper leaves open.
    inverse
        1 / epsilon; 0 is no noise, and one draw.
    draws
        Of the noise.
    seed
        Of draws and folds.
    others
        Adversaries of the first draw beside the authors' own.
    law
        Of the noise; the paper's, unless another is given.
    """
    bounding = _learn(trial, name, width if order == "pre" else 0, choice)
    scores = []
    for draw in range(draws if inverse > 0 else 1):
        released = tuple(
            _add_noise(bounding, x, inverse, 1000 * seed + draw, part, law)
            for part, x in enumerate(trial.features)
        )
        if order == "post":
            fitted = _fit_after(trial, released[0], name, width, choice)
            released = tuple(fitted.apply(x) for x in released)
        pair = released[0], released[1]
        for task, labels in (("target", trial.target), ("private", trial.private)):
            scores.append((task, "papers", measure_papers_accuracy(pair, labels)))
            for other in others if draw == 0 else ():
                accuracy = measure_accuracy(other, pair, labels, seed=seed)
                scores.append((task, f"{other}_cv", accuracy))
    return scores


def _options_of(name: str, width: int, choice: Choice) -> dict[str, Any]:
    given: dict[str, Any] = {"name": name, "n_filtered": width}
    if choice.start:
        given |= {"start": choice.start, "max_iterations": ITERATIONS, **TOLERANCES}
    return given


@lru_cache(maxsize=2)  # one filter serves all privacy losses and draws
def _learn(trial: Trial, name: str, width: int, choice: Choice) -> NoisyFilter:
    """Mean, threshold and, for a width, the filter before the noise; of any epsilon."""
    method = METHODS["noisy"]
    given: dict[str, Any] = {"name": "noisy", "epsilon": 1.0, "orthonormalise": choice.orthonormal}
    if width:
        given["filter"] = _options_of(name, width, choice)
    records = _as_records(trial, trial.features[0], public=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # widths beyond what the targets use are the paper's
        fitted = method.fit(records, make_options(method.options, given, "noisy"))
    assert isinstance(fitted, NoisyFilter)
    return fitted


def _as_records(trial: Trial, features: FloatArray, *, public: bool = False) -> Records:
    return Records(
        features,
        desired=trial.target[0].astype(str),
        confidential=trial.private[0].astype(str),
        public=public,
    )


def _add_noise(
    bounding: NoisyFilter, x: FloatArray, inverse: float, seed: int, part: int, law: Law
) -> FloatArray:
    bounded, _ = bounding.bound_features(x.astype(np.float64))
    if inverse == 0:
        return bounded
    mechanism = plan_mechanism(1 / inverse, bounding.n_bounded, bounding.norm, law)
    key = seed.to_bytes(KEY_BYTES, "big")
    stream = KeyedStream(key, partition=f"part {part}", first_record=0, n_records=len(x))
    return mechanism.release(bounded, stream)


def _fit_after(trial: Trial, noisy: FloatArray, name: str, width: int, choice: Choice) -> RecordMap:
    method = METHODS[name]
    options = make_options(method.options, _options_of(name, width, choice), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return method.fit(_as_records(trial, noisy), options)
