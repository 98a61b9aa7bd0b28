"""A declared filter on drawn records before training: deterministic, row by row, its vjp right."""

from __future__ import annotations

from typing import Any

import numpy as np

from privpipe.errors import OptionError
from privpipe.protocols import FloatArray
from privpipe.sanitizers.minimax.own.declared_family import DeclaredFamily

ROWS = 8
DIRECTIONS = 4
STEP = 1e-4
SHARE = 1e-4
"""Difference from finite differences that is allowed, as a share of the gradient."""
TRUNCATION = 10.0
"""Times the difference of two step sizes, allowed on top: kinks and curvature."""


def check_filter(family: DeclaredFamily, start: FloatArray, seed: int = 0) -> None:
    """Refuse a filter that cannot be released in chunks, or whose vjp is not its derivative.

    Compared are directional derivatives by each of the parameters, with central differences of
    two step sizes.

    Raises
    ------
    OptionError
        With what is wrong: shape, NaN, drawing at random, records that change one another, or of
        which parameter the vjp has the wrong sign, size or direction.
    """
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((ROWS, family.n_features_in))
    arrays = family.split(start)
    # Away from the start, where a derivative may vanish; the sizes of the parameters stay.
    near = {
        name: value + 0.1 * max(float(np.sqrt(np.mean(value**2))), 0.1) * _draw(rng, value.shape)
        for name, value in arrays.items()
    }
    _check_map(family, near, x)
    dz = rng.standard_normal((ROWS, family.n_features_out))
    slopes = _read_slopes(family, near, x, dz)
    for name, value in near.items():
        pairs = [
            (float((slopes[name] * along).sum()), *_differ(family, near, name, along, x, dz))
            for along in (_draw(rng, value.shape) for _ in range(DIRECTIONS))
        ]
        _compare(family.code.name, name, np.array(pairs))


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    return np.asarray(rng.standard_normal(shape))


def _run(family: DeclaredFamily, what: str, *args: Any) -> Any:
    """Run code of the user's on drawn records, whose values may be shown."""
    try:
        return getattr(family.filter, what)(*args)
    except Exception as error:
        raise _refuse(
            f"{family.code.name}.{what} raises {type(error).__name__}: {error}",
            "Call it in Python on random records and fix what is wrong.",
        ) from None


def _check_map(family: DeclaredFamily, arrays: dict[str, FloatArray], x: FloatArray) -> None:
    name, given = family.code.name, x.copy()
    z = np.asarray(_run(family, "apply", arrays, x))
    shape = (len(x), family.n_features_out)
    if z.shape != shape:
        raise _refuse(
            f"{name}.apply gives an array of shape {z.shape} for {len(x)} records, not {shape}.",
            "Return one row per record, of n_outputs columns.",
        )
    if not np.isfinite(z).all():
        raise _refuse(
            f"{name}.apply gives {np.count_nonzero(~np.isfinite(z))} values that are not finite "
            "for standard normal records.",
            "Keep away from divisions by zero, logarithms and overflows.",
        )
    if not np.array_equal(x, given):
        raise _refuse(f"{name}.apply changes its records.", "Work on a copy.")
    if not np.array_equal(np.asarray(_run(family, "apply", arrays, x)), z):
        raise _refuse(
            f"{name}.apply gives another result each time: it draws at random, or remembers.",
            "Draw nothing in apply; noise that protects is a method of its own.",
        )
    some = np.asarray(_run(family, "apply", arrays, x[: len(x) // 2]))
    size = max(float(np.abs(z).max()), 1e-300)
    if some.shape != z[: len(x) // 2].shape or np.abs(some - z[: len(x) // 2]).max() > 1e-8 * size:
        raise _refuse(
            f"{name}.apply lets records change one another: half of them come out otherwise alone.",
            "Use what one record holds; a release is made in chunks.",
        )


def _read_slopes(
    family: DeclaredFamily, arrays: dict[str, FloatArray], x: FloatArray, dz: FloatArray
) -> dict[str, FloatArray]:
    found = dict(_run(family, "vjp", arrays, x, dz))
    name = family.code.name
    if set(found) != set(arrays):
        raise _refuse(
            f"{name}.vjp gives gradients by {', '.join(map(str, found)) or 'nothing'}; the "
            f"parameters are {', '.join(arrays)}.",
            "Return a dict with an array for each of the parameters.",
        )
    slopes: dict[str, FloatArray] = {
        key: np.asarray(value, np.float64) for key, value in found.items()
    }
    for key, value in arrays.items():
        if slopes[key].shape != value.shape:
            raise _refuse(
                f"{name}.vjp gives {key!r} the shape {slopes[key].shape}, not {value.shape}.",
                "Return gradients of the shapes of the parameters.",
            )
        if not np.isfinite(slopes[key]).all():
            raise _refuse(
                f"{name}.vjp gives values that are not finite (NaN or infinity) for {key!r}.",
                "Keep away from divisions by zero and roots of zero.",
            )
    return slopes


def _differ(
    family: DeclaredFamily,
    arrays: dict[str, FloatArray],
    name: str,
    along: FloatArray,
    x: FloatArray,
    dz: FloatArray,
) -> tuple[float, float]:
    """Directional derivative by extrapolated central differences, and what it is off by."""
    size = STEP * max(float(np.sqrt(np.mean(arrays[name] ** 2))), 0.1)

    def central(step: float) -> float:
        ends = [
            float((dz * _run(family, "apply", arrays | {name: arrays[name] + t * along}, x)).sum())
            for t in (step, -step)
        ]
        return (ends[0] - ends[1]) / (2 * step)

    wide, narrow = central(size), central(size / 2)
    return (4 * narrow - wide) / 3, abs(wide - narrow)


def _compare(kind: str, name: str, pairs: FloatArray) -> None:
    if what := describe_difference(pairs):
        raise _refuse(
            f"{kind}.vjp by {name!r} {what}.",
            "It must be the gradient of sum(dz * apply(parameters, x)).",
        )


def describe_difference(pairs: FloatArray) -> str:
    """How derivatives are wrong, in words; empty where they are right.

    Parameters
    ----------
    pairs : (n, 3)
        A derivative as it is said, by differences, and what the latter may be off by.
    """
    said, found, doubt = pairs.T
    size = max(float(np.abs(found).max()), float(np.abs(said).max()))
    if (np.abs(said - found) <= SHARE * size + TRUNCATION * doubt + 1e-10).all():
        return ""
    ratio = float(said @ found / max(float(found @ found), 1e-300))
    off = float(np.abs(said - ratio * found).max()) / max(size, 1e-300)
    if off < 0.01 and abs(ratio + 1) < 0.01:
        return "has the wrong sign"
    if off < 0.01 and abs(ratio) > 1e-6:
        return f"is {ratio:.4g} times the derivative"
    worst = float(np.abs(said - found).max()) / max(size, 1e-300)
    return f"is not the derivative of what is computed: finite differences are {worst:.0%} off"


def _refuse(problem: str, remedy: str) -> OptionError:
    return OptionError(problem, remedy=remedy, code="filter-vjp")
