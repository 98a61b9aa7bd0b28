"""Salamatian et al., SPPM, synthetic data: Figures 1, 2 left, 5, 6 and 7."""

from __future__ import annotations

import time

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flows.reproduce.sppm_measures import Found, PaperResult, measure_neighbours
from flows.reproduce.sppm_problems import make_toy
from privpipe.sanitizers.exponential import fit_exponential_mechanism
from privpipe.sanitizers.mapping import SparseMapping
from privpipe.sanitizers.mapping_solve import solve_privacy_mapping

__all__ = ["reproduce_synthetic"]

SIZE = 128
STEPS = (3, 10, 100, 500)
DIVISORS = (1024, 512, 256, 128, 64, 32)
"""Budgets are the squared size of the alphabet by these."""
PICTURES = (1024, 128, 32)
TIMED = (64, 128, 256, 512, 1024, 4096, 16384)
TIMED_STEPS = (3, 10, 100)
MOST_SECONDS = 2.5
COLOURS = ("#9ecae1", "#6baed6", "#3182bd", "#08519c")
RED = "#c8553d"

Times = dict[str, list[tuple[int, float]]]


def reproduce_synthetic(size: int = SIZE, most_seconds: float = MOST_SECONDS) -> PaperResult:
    """Toy mappings, the effect of L, what mappings do to neighbours, time, support sizes.

    Parameters
    ----------
    size
        Symbols of all panels but the times.
    most_seconds
        A method that took longer at one size is not timed at the next.
    """
    joint, codes = make_toy(size)
    budgets = {k: size**2 / k for k in DIVISORS}
    optimal = {k: _solve(size, b) for k, b in budgets.items()}
    steps = {n: [_solve(size, b, n).information for b in budgets.values()] for n in STEPS}
    mechanism = {
        k: fit_exponential_mechanism(joint, codes, "squared", distortion_budget=b)
        for k, b in budgets.items()
    }
    times = _time_all(most_seconds)
    curves = {
        "budget_divisor": list(DIVISORS),
        "optimum_nats": [m.information for m in optimal.values()],
        "gap_nats": [m.gap for m in optimal.values()],
        "frank_wolfe_nats": {str(n): values for n, values in steps.items()},
        "exponential_nats": [m.information for m in mechanism.values()],
        "seconds": times,
    }
    figure = _draw(optimal, steps, mechanism, times)
    return PaperResult(_cells(optimal, steps, times), curves, figure, _notes(size))


def _solve(size: int, budget: float, n_steps: int | None = None) -> SparseMapping:
    joint, codes = make_toy(size)
    if n_steps is None:
        return solve_privacy_mapping(joint, codes, "squared", distortion_budget=budget, gap=1e-7)
    return solve_privacy_mapping(
        joint,
        codes,
        "squared",
        distortion_budget=budget,
        gap=1e-9,
        solver="frank_wolfe",
        n_steps=n_steps,
    )


def _time_all(most_seconds: float) -> Times:
    """Seconds by method and size at a budget in proportion to the size, as in Figure 6."""
    found: Times = {}
    for n_steps in (None, *TIMED_STEPS):
        name = "certified to 1e-7 nats" if n_steps is None else f"L = {n_steps}"
        found[name] = []
        _solve(64, 4.0, n_steps)  # compiles the kernels
        for size in TIMED:
            start = time.perf_counter()
            _solve(size, size / 16, n_steps)
            found[name].append((size, time.perf_counter() - start))
            if found[name][-1][1] > most_seconds:
                break
    return found


def _cells(
    optimal: dict[int, SparseMapping], steps: dict[int, list[float]], times: Times
) -> tuple[Found, ...]:
    best = [m.information for m in optimal.values()]
    cells = [
        Found(
            f"largest error of L = {n}", float(np.max(np.subtract(values, best))), None, 0, "nats"
        )
        for n, values in steps.items()
    ]
    widest = max(m.gap for m in optimal.values())
    cells.append(Found("largest certified gap", widest, None, 0, "nats"))
    for name, points in times.items():
        size, seconds = points[-1]
        cells.append(Found(f"time, {name}, {size} symbols", seconds, None, 0, "seconds"))
    return tuple(cells)


def _notes(size: int) -> tuple[str, ...]:
    return (
        f"Panels but the times: {size} symbols; the paper does not say how many.",
        "The paper finds L = 100 close to the optimum; a certified bound shows what is missing.",
        "Figure 7 of the paper counts movie profiles; here the supports of the toy mappings.",
    )


def _draw(
    optimal: dict[int, SparseMapping],
    steps: dict[int, list[float]],
    mechanism: dict[int, SparseMapping],
    times: Times,
) -> Figure:
    figure = Figure(figsize=(15, 7.2), layout="constrained")
    axes = figure.subplots(2, 4)
    for place, k in zip(axes[0, :3], PICTURES, strict=True):
        shade = np.sqrt(optimal[k].mapping.toarray())
        place.imshow(shade, cmap="Blues", origin="lower", interpolation="nearest")
        place.set(xlabel="original symbol", ylabel="released symbol")
        place.set_title(f"Mapping, budget n²/{k}")
    _draw_steps(axes[0, 3], optimal, steps, mechanism)
    _draw_neighbours(axes[1, 0], optimal[128], mechanism[128], 24)
    _draw_neighbours(axes[1, 1], optimal[128], mechanism[128], optimal[128].n_symbols)
    _draw_times(axes[1, 2], times)
    _draw_support(axes[1, 3], optimal)
    for place in (axes[0, 3], *axes[1]):
        place.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_steps(
    place: Axes,
    optimal: dict[int, SparseMapping],
    steps: dict[int, list[float]],
    mechanism: dict[int, SparseMapping],
) -> None:
    x = 1.0 / np.array(DIVISORS)
    for colour, (n, values) in zip(COLOURS, steps.items(), strict=True):
        place.plot(x, values, "o-", markersize=3, color=colour, label=f"L = {n}")
    place.plot(x, [m.information for m in optimal.values()], "k--", label="optimum, certified")
    worse = [m.information for m in mechanism.values()]
    place.plot(x, worse, "s-", markersize=3, color=RED, label="exponential")
    place.set(xscale="log", xlabel="distortion / n²", ylabel="information, nats")
    place.set_ylim(0, None)
    place.set_title("Effect of L")
    place.legend(frameon=False, fontsize="small")


def _draw_neighbours(
    place: Axes, ours: SparseMapping, mechanism: SparseMapping, nearest: int
) -> None:
    distances = (ours.codes - ours.codes.T).astype(float) ** 2
    for mapping, name, colour in ((ours, "SPPM", COLOURS[2]), (mechanism, "exponential", RED)):
        mean, error = measure_neighbours(mapping, distances, nearest)
        k = np.arange(nearest)
        place.errorbar(k, mean, error, color=colour, linewidth=1, elinewidth=0.5, label=name)
    place.set(xlabel="k-th nearest symbol", ylabel="mean probability", yscale="log")
    place.set_ylim(1e-5, 1)
    place.set_title(f"The {nearest} nearest, budget n²/128")
    place.legend(frameon=False)


def _draw_times(place: Axes, times: Times) -> None:
    for colour, (name, points) in zip(("#000000", *COLOURS[1:]), times.items(), strict=True):
        size, seconds = np.array(points).T
        place.plot(size, seconds, "o-", markersize=3, color=colour, label=name)
    place.set(xscale="log", yscale="log", xlabel="symbols", ylabel="seconds")
    place.set_title("Time, budget n/16")
    place.legend(frameon=False, fontsize="small")


def _draw_support(place: Axes, optimal: dict[int, SparseMapping]) -> None:
    sizes = [np.minimum(optimal[k].support_sizes(), 12) for k in PICTURES]
    labels = [f"budget n²/{k}" for k in PICTURES]
    place.hist(sizes, bins=np.arange(0.5, 13.5).tolist(), label=labels, color=COLOURS[1:])
    place.set(xlabel="symbols that a symbol may become", ylabel="symbols")
    place.set_title("Support sizes (12: 12 or more)")
    place.legend(frameon=False, fontsize="small")
