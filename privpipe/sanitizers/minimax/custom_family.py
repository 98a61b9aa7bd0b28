"""A declared filter as the family that the minimax objective is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from privpipe.errors import OptionError
from privpipe.numerics.minimax.filters import Pullback
from privpipe.protocols import FloatArray
from privpipe.sanitizers.minimax.custom_code import (
    Arrays,
    DeclaredFilter,
    FilterCode,
    Setting,
    Settings,
    describe_difference,
)

ROWS = 8
DIRECTIONS = 4
STEP = 1e-4


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


def _refuse(problem: str, remedy: str) -> OptionError:
    return OptionError(problem, remedy=remedy, code="filter-vjp")


@dataclass(frozen=True, eq=False)
class DeclaredFamily:
    """The filters that a declared class makes, their parameters one flat vector.

    Parameters
    ----------
    code, settings, n_features_in
        What the class is, and what it is made with.
    n_features_out
        Features released.
    names, shapes
        Of its parameters, in the order of the vector.
    """

    code: FilterCode
    settings: Settings
    n_features_in: int
    n_features_out: int
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def n_parameters(self) -> int:
        return sum(self._sizes())

    def _sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self.shapes]

    @property
    def filter(self) -> DeclaredFilter:
        """The filter; made once per process."""
        return build_filter(self.code, self.settings, self.n_features_in)

    def split(self, parameters: FloatArray) -> dict[str, FloatArray]:
        """The arrays of a flat vector, by name; copies, which a filter may spoil."""
        parts = np.split(parameters, np.cumsum(self._sizes())[:-1])
        return {
            name: part.reshape(shape).copy()
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def join(self, arrays: Arrays) -> FloatArray:
        """The flat vector of arrays by name."""
        parts = [np.asarray(arrays[name], np.float64).ravel() for name in self.names]
        return np.concatenate(parts)

    def map_records(self, parameters: FloatArray, x: FloatArray) -> tuple[FloatArray, Pullback]:
        """Filter records; see `DifferentiableFilter.map_records`."""
        arrays, declared = self.split(parameters), self.filter
        z = np.asarray(declared.apply(arrays, x), np.float64)

        def pull(dz: FloatArray) -> FloatArray:
            return self.join(declared.vjp(arrays, x, dz))

        return z, pull


def declare_family(
    code: FilterCode, settings: Mapping[str, Setting], n_features: int, seed: int
) -> tuple[DeclaredFamily, FloatArray]:
    """The family of a declared class for records of so many features, and where it starts.

    Raises
    ------
    OptionError
        If the class cannot be made, or does not say its parameters and outputs.
    """
    given = tuple(sorted(settings.items()))
    declared = build_filter(code, given, n_features)
    arrays = _call(code.name, "start", declared.start, np.random.default_rng(seed))
    start = {str(name): np.asarray(array, np.float64) for name, array in dict(arrays).items()}
    if not start or not all(np.isfinite(array).all() for array in start.values()):
        raise OptionError(
            f"{code.name}.start gives no parameters, or some that are not finite.",
            remedy="Return a dict of finite arrays by name.",
            code="filter-class",
        )
    n_outputs = getattr(declared, "n_outputs", None)
    if not isinstance(n_outputs, int | np.integer) or n_outputs < 1:
        raise OptionError(
            f"{code.name} does not say how many features it releases.",
            remedy="Set self.n_outputs to a positive number in __init__.",
            code="filter-class",
        )
    shapes = tuple(array.shape for array in start.values())
    family = DeclaredFamily(code, given, n_features, int(n_outputs), tuple(start), shapes)
    return family, family.join(start)


@lru_cache(maxsize=8)
def build_filter(code: FilterCode, settings: Settings, n_features: int) -> DeclaredFilter:
    """Make the filter of a declared class; modules of torch are wrapped."""
    kind = code.load()
    if _is_torch_module(kind):
        from privpipe.sanitizers.minimax.torch_filter import TorchFilter  # torch is an extra

        def make(n_features: int, **settings: Setting) -> DeclaredFilter:
            return TorchFilter(lambda: kind(n_features, **settings), n_features)
    else:
        _check_methods(code.name, kind)
        make = kind
    found = _call(code.name, "__init__", make, n_features, **dict(settings))
    return cast(DeclaredFilter, found)


def _is_torch_module(kind: type[Any]) -> bool:
    """Whether it is a ``torch.nn.Module``, without importing torch."""
    return any(
        f"{c.__module__}.{c.__name__}" == "torch.nn.modules.module.Module" for c in kind.mro()
    )


def _check_methods(name: str, kind: type[Any]) -> None:
    missing = [m for m in ("start", "apply", "vjp") if not callable(getattr(kind, m, None))]
    if missing:
        raise OptionError(
            f"The class {name} has no {_listed(missing)}.",
            remedy="Give it start(rng), apply(parameters, x) and vjp(parameters, x, dz).",
            code="filter-class",
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


def _call(name: str, what: str, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call code of the user's on what is no record; its message may be shown."""
    try:
        return function(*args, **kwargs)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"{name}.{what} raises {type(error).__name__}: {error}",
            remedy="Call it in Python and fix what is wrong.",
            code="filter-class",
        ) from None
