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
from privpipe.sanitizers.minimax.own.filter_code import Arrays, DeclaredFilter, FilterCode

Setting = bool | int | float | str
Settings = tuple[tuple[str, Setting], ...]


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
        from privpipe.sanitizers.minimax.own.torch_filter import TorchFilter  # torch is an extra

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
