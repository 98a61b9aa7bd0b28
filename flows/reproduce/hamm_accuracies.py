"""Trials, filters and accuracies behind Hamm's figures 4 (GENKI) and 6 (HAR).

Every filter is learned on training records; adversaries train on released training records and
are judged on released test records. The paper prints accuracies of the raw records and figures.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from flows.reproduce.hamm_compared import PplsOptions, fit_ddd_filter, fit_ppls_filter
from flows.reproduce.paper_adversaries import measure_accuracy, measure_papers_accuracy
from flows.reproduce.steps import expect_steps, step
from privpipe.errors import FormatError, OptionError, StoreError
from privpipe.protocols import BoolArray, FloatArray, IntArray, RecordMap
from privpipe.records.memory import Records
from privpipe.sanitizers.minimax.baselines import (
    LeastSquaresOptions,
    PcaOptions,
    PrivacyLdsOptions,
    RandOptions,
    fit_least_squares_filter,
    fit_pca_filter,
    fit_privacy_lds_filter,
    fit_rand_filter,
)
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from privpipe.sanitizers.minimax.training.adversary_rounds import AdversaryKind

AGAINST_KERNELS: tuple[AdversaryKind, ...] = ("logistic", "kernel")
"""Beyond the paper: trained against a Gaussian kernel too."""

ALL = ("logistic", "rbf", "nearest_neighbours", "boosting")
Fit = Callable[[Records, int], RecordMap | None]


@dataclass(frozen=True, eq=False)
class Trial:
    """One split of labelled records: features, target and private class numbers, twice."""

    features: tuple[FloatArray, FloatArray]
    target: tuple[IntArray, IntArray]
    private: tuple[IntArray, IntArray]


@dataclass(frozen=True)
class FilterResult:
    """Accuracy of one adversary on one task of one filter, over trials.

    Parameters
    ----------
    filter_name
    n_filtered
        Features released.
    task
        "target" or "private".
    adversary
    accuracies
        One per trial.
    mean, lower, upper
        Mean over trials and 95 % limits. Trials that share their test records add the error
        of that sample to the spread between them.
    """

    filter_name: str
    n_filtered: int
    task: str
    adversary: str
    accuracies: tuple[float, ...]
    mean: float
    lower: float
    upper: float


@dataclass(frozen=True)
class PaperFigure:
    """A number as the paper, or the authors' stored results, have it."""

    filter_name: str
    n_filtered: int
    target: float
    private: float
    source: str
    adversary: str = "logistic"


@dataclass(frozen=True)
class Accuracies:
    """Our accuracies and what there is to hold them against."""

    name: str
    results: tuple[FilterResult, ...]
    paper: tuple[PaperFigure, ...]
    chance: tuple[float, float]
    """Accuracy of the best constant guess: target, private."""
    n_trials: int
    n_test: int
    """Records that judge, in the first trial."""

    def find(self, filter_name: str, n_filtered: int, task: str, adversary: str) -> FilterResult:
        """One result.

        Raises
        ------
        KeyError
            If it was not requested.
        """
        for r in self.results:
            key = (r.filter_name, r.n_filtered, r.task, r.adversary)
            if key == (filter_name, n_filtered, task, adversary):
                return r
        raise KeyError((filter_name, n_filtered, task, adversary))


def measure_genki(
    folder: str | Path,
    *,
    widths: Sequence[int] = (10, 20, 50, 100),
    n_trials: int = 4,
    adversaries: Sequence[str] = ALL,
    filters: Sequence[str] | None = None,
) -> Accuracies:
    """Figure 4: hide gender, keep expression. The split is the authors'; trials change seeds.

    Parameters
    ----------
    folder
        Holds genki.npz.
    widths
        Features released by the filters whose width is free.
    n_trials
        Trials of the filters and adversaries that draw.
    adversaries
        Besides the authors' own, called "papers".
    filters
        Names of those to run; all by default.

    Raises
    ------
    StoreError
        If the file is missing.
    FormatError
        If it does not hold what it should.
    """
    trial, stored = read_genki_trial(folder)
    everywhere = "the authors' stored results, mean over their widths"
    fits = _choose(_list_fits(widths, n_reduced=1, binary=True), filters)
    names = (*adversaries, "papers")
    results = _measure([trial] * n_trials, fits, names, shared_test=True)
    paper = (
        PaperFigure("raw", 256, 0.90, 0.90, "section 6.3"),
        PaperFigure("pca", 10, 0.840, 0.665, "readme of the original code", "papers"),
        *(PaperFigure(name, 0, *pair, everywhere) for name, pair in stored.items()),
    )
    return Accuracies("hamm-genki", results, paper, _chance(trial), n_trials, len(trial.target[1]))


def measure_har(
    folder: str | Path,
    *,
    widths: Sequence[int] = (10, 20, 50),
    seeds: Sequence[int] = (0, 1, 2, 3),
    adversaries: Sequence[str] = ALL,
    filters: Sequence[str] | None = None,
) -> Accuracies:
    """Figure 6: hide who moves, keep how. Each seed draws 15 subjects and halves their records.

    The paper's random halves let neighbouring windows of one run, which overlap, fall on both
    sides; that makes every adversary look stronger, and is there for comparison.

    Parameters
    ----------
    folder
        Holds har.npz.
    widths
        Features released by the filters whose width is free.
    seeds
        One trial each.
    adversaries
        Names of `ADVERSARIES`.
    filters
        Names of those to run; all by default.

    Raises
    ------
    StoreError
        If the file is missing.
    FormatError
        If it does not hold what it should.
    """
    trials = [draw_har_trial(folder, seed) for seed in seeds]
    fits = _choose(_list_fits(widths, n_reduced=5, binary=False), filters)
    results = _measure(trials, fits, tuple(adversaries), shared_test=False)
    paper = (PaperFigure("raw", 561, 0.97, 0.70, "section 6.3"),)
    return Accuracies(
        "hamm-har", results, paper, _chance(trials[0]), len(trials), len(trials[0].target[1])
    )


def read_genki_trial(folder: str | Path) -> tuple[Trial, dict[str, tuple[float, float]]]:
    """The authors' split, and their stored accuracies (target, private) by filter.

    The widths of the stored results are not stated; they are averaged.
    """
    data = _read(folder, "genki.npz", ("X", "expression", "gender", "split"))
    names = {
        "rand": "rand",
        "pca": "pca",
        "pls": "ppls",
        "lda": "privacy_lds",
        "ddd": "ddd",
        "joint": "minimax_1",
    }
    stored = {
        ours: (float(data[f"rates1_{name}_dom1"].mean()), float(data[f"rates2_{name}_dom1"].mean()))
        for name, ours in names.items()
        if f"rates1_{name}_dom1" in data
    }
    return _split(data["X"], data["expression"], data["gender"], data["split"] == 0), stored


def draw_har_trial(folder: str | Path, seed: int) -> Trial:
    """Fifteen subjects at random, half of each one's records to train on."""
    data = _read(folder, "har.npz", ("X", "activity", "subject"))
    random = np.random.default_rng(seed)
    chosen = random.choice(np.unique(data["subject"]), 15, replace=False)
    rows = np.flatnonzero(np.isin(data["subject"], chosen))
    train = np.zeros(len(rows), np.bool_)
    for subject in chosen:
        half = random.permutation(np.flatnonzero(data["subject"][rows] == subject))
        train[half[: len(half) // 2]] = True
    return _split(data["X"][rows], data["activity"][rows], data["subject"][rows], train)


def _read(folder: str | Path, name: str, needed: Iterable[str]) -> dict[str, Any]:
    path = Path(folder) / name
    try:
        with np.load(path, allow_pickle=False) as file:
            data = dict(file)
    except OSError:
        raise StoreError(
            f"{path} cannot be read.", remedy=f"Give the folder that holds {name}."
        ) from None
    missing = [key for key in needed if key not in data]
    if missing:
        raise FormatError(f"{path} lacks {', '.join(missing)}.", remedy="Get the file again.")
    return data


def _split(x: FloatArray, target: IntArray, private: IntArray, train: BoolArray) -> Trial:
    y, z = (np.unique(labels, return_inverse=True)[1] for labels in (target, private))
    return Trial((x[train], x[~train]), (y[train], y[~train]), (z[train], z[~train]))


def _chance(trial: Trial) -> tuple[float, float]:
    target, private = (
        float(np.bincount(labels[1]).max() / len(labels[1]))
        for labels in (trial.target, trial.private)
    )
    return target, private


def _list_fits(widths: Sequence[int], *, n_reduced: int, binary: bool) -> list[tuple[str, Fit]]:
    """Name and fit of every filter; a fit takes training records and a seed."""

    def pca(d: int) -> Fit:
        return lambda r, _: fit_pca_filter(r, PcaOptions(n_filtered=d, centre=False))

    def rand(d: int) -> Fit:
        return lambda r, seed: fit_rand_filter(r, RandOptions(n_filtered=d, seed=seed))

    def ppls(d: int) -> Fit:
        return lambda r, _: fit_ppls_filter(r, PplsOptions(n_filtered=d))

    def lds(d: int) -> Fit:
        return lambda r, _: fit_privacy_lds_filter(r, PrivacyLdsOptions(n_filtered=d))

    def minimax(d: int) -> Fit:
        return lambda r, _: fit_minimax_filter(r, MinimaxOptions(n_filtered=d))

    def kernel(d: int) -> Fit:
        options = MinimaxOptions(n_filtered=d, adversary=AGAINST_KERNELS, max_iterations=30)
        return lambda r, seed: fit_minimax_filter(r, replace(options, seed=seed))

    fits: list[tuple[str, Fit]] = [("raw", lambda r, _: None)]
    for make in (rand, pca, ppls, lds):
        name = "privacy_lds" if make is lds else make.__name__
        fits += [(name, make(d)) for d in widths]
    if binary:
        fits.append(("ddd", lambda r, _: fit_ddd_filter(r)))
    fits.append(("least_squares", lambda r, _: fit_least_squares_filter(r, LeastSquaresOptions())))
    fits += [("minimax_1", minimax(d)) for d in (n_reduced, *widths)]
    fits.append(("minimax_kernel", kernel(n_reduced)))
    fits.append(
        ("minimax_2", lambda r, seed: fit_minimax_neural_filter(r, MinimaxNeuralOptions(seed=seed)))
    )
    return fits


def _choose(fits: list[tuple[str, Fit]], filters: Sequence[str] | None) -> list[tuple[str, Fit]]:
    known = {name for name, _ in fits}
    unknown = set(filters or ()) - known
    if unknown:
        raise OptionError(
            f"{', '.join(sorted(unknown))} is no filter of this experiment.",
            remedy=f"Use some of: {', '.join(sorted(known))}.",
        )
    return [(name, fit) for name, fit in fits if filters is None or name in filters]


def _measure(
    trials: Sequence[Trial],
    fits: Sequence[tuple[str, Fit]],
    adversaries: Sequence[str],
    *,
    shared_test: bool,
) -> tuple[FilterResult, ...]:
    expect_steps(len(trials) * len(fits))
    found: dict[tuple[str, int, str, str], list[float]] = {}
    for seed, trial in enumerate(trials):
        for number, (name, fit) in enumerate(fits):
            # Every filter of a list has its own number; its width is known when it is fitted.
            done = step(
                f"trial {seed + 1}, {name} ({number + 1}), {', '.join(adversaries)}",
                partial(_judge_all, fit, trial, adversaries, seed),
            )
            for width, task, adversary, accuracy in done:
                found.setdefault((name, int(width), task, adversary), []).append(accuracy)
    n_test = len(trials[0].target[1]) if shared_test else None
    return tuple(FilterResult(*key, *_summarise(values, n_test)) for key, values in found.items())


def _judge_all(
    fit: Fit, trial: Trial, adversaries: Sequence[str], seed: int
) -> list[tuple[int, str, str, float]]:
    """Width, task, adversary and accuracy of every attack on one filter of one trial."""
    records = Records(
        trial.features[0],
        desired=trial.target[0].astype(str),
        confidential=trial.private[0].astype(str),
    )
    released = _release(fit, records, trial, seed)
    return [
        (released[0].shape[1], task, adversary, _judge(adversary, released, labels, seed))
        for task, labels in (("target", trial.target), ("private", trial.private))
        for adversary in adversaries
    ]


def _release(fit: Fit, records: Records, trial: Trial, seed: int) -> tuple[FloatArray, FloatArray]:
    with warnings.catch_warnings():
        # Widths beyond what the targets use are part of the comparison.
        warnings.filterwarnings("ignore", message="n_filtered is", category=UserWarning)
        fitted = fit(records, seed)
    train, test = trial.features
    if fitted is None:
        return train.astype(np.float64), test.astype(np.float64)
    return fitted.apply(train.astype(np.float64)), fitted.apply(test.astype(np.float64))


def _judge(
    adversary: str,
    released: tuple[FloatArray, FloatArray],
    labels: tuple[IntArray, IntArray],
    seed: int,
) -> float:
    if adversary == "papers":
        return measure_papers_accuracy(released, labels)
    return measure_accuracy(adversary, released, labels, seed=seed)


def _summarise(
    values: Sequence[float], n_test: int | None
) -> tuple[tuple[float, ...], float, float, float]:
    """Accuracies, mean and limits; `n_test` is the size of a shared test sample."""
    mean, n = float(np.mean(values)), len(values)
    low = high = 0.0
    if n_test is not None:
        limits = stats.binomtest(round(mean * n_test), n_test).proportion_ci(method="wilson")
        low, high = mean - float(limits.low), float(limits.high) - mean
    if n > 1:
        half = float(stats.t.ppf(0.975, n - 1) * np.std(values, ddof=1) / np.sqrt(n))
        low, high = float(np.hypot(low, half)), float(np.hypot(high, half))
    return tuple(values), mean, max(0.0, mean - low), min(1.0, mean + high)
