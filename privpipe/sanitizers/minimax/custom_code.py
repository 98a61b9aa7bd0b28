"""Code of filters that are the user's own: read, named by its content, run only where trusted.

A declared filter is a class, of a file that the configuration names or of an installed package's
entry point ``privpipe.filters``. The hash of the file goes into configuration, model and release.
Options that are made in Python trust the file that they name; those of a configuration, which may
be a stranger's, do not: `load` is the one way to run it, and refuses what no one has confirmed.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.option_values import is_trusted, trust, trust_named
from privpipe.protocols import FloatArray, ShardSchema

ROWS = 12
DIRECTIONS = 4
STEP = 1e-4
SHARE = 1e-4
"""Difference from finite differences that is allowed, as a share of the gradient."""
TRUNCATION = 10.0
"""Times the difference of two step sizes, allowed on top: kinks and curvature."""


class DeclaredLoss(Protocol):
    """What a loss of one's own must have; ``Class(n_features, n_outputs, **settings)`` makes it.

    Records are rows, of float64. Phi has the mean of the losses, times the weight that the options
    give, and training lowers it; no record changes the loss of another.
    """

    def measure(
        self, z: FloatArray, x: FloatArray, desired: FloatArray, confidential: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Losses (n_records,) and their slopes by the outputs (n_records, n_outputs).

        Parameters
        ----------
        z : (n_records, n_outputs)
            What the filter gives.
        x : (n_records, n_features)
            The records.
        desired, confidential : (n_records, n_variables)
            Numbers, and codes of categorical variables.
        """
        ...


@dataclass(frozen=True)
class CustomLoss:
    """A declared loss as a value, which travels with its task.

    Parameters
    ----------
    code, settings
        What the class is, and what it is made with.
    n_features, n_outputs, n_desired
        Shape of the records, of what is made of them, and of their variables.
    """

    code: FilterCode
    settings: tuple[tuple[str, Setting], ...]
    n_features: int
    n_outputs: int
    n_desired: int

    @classmethod
    def of(
        cls, code: FilterCode, settings: Mapping[str, Setting], schema: ShardSchema, n_outputs: int
    ) -> CustomLoss:
        """The loss of a filter of so many outputs."""
        given = tuple(sorted(settings.items()))
        return cls(code, given, schema.n_features, n_outputs, len(schema.desired))

    def measure(
        self, z: FloatArray, x: FloatArray, labels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Losses and slopes of records whose variables are `labels`, desired ones first.

        Raises
        ------
        InputError
            If some are not finite; the message counts them.
        """
        found = _build_loss(self).measure(
            z.copy(), x, labels[:, : self.n_desired], labels[:, self.n_desired :]
        )
        losses, slopes = (np.array(part, np.float64) for part in found)
        bad = np.count_nonzero(~(np.isfinite(losses) & np.isfinite(slopes).all(axis=1)))
        if bad:
            raise InputError(
                f"The loss {self.code.name} gives values that are not finite for {bad} of "
                f"{len(z)} records.",
                remedy="Bound what it computes: keep away from divisions by zero and logarithms.",
                code="loss-nonfinite",
            )
        return losses, slopes


@lru_cache(maxsize=8)
def _build_loss(loss: CustomLoss) -> DeclaredLoss:
    """Make the loss of a declared class, once per process."""
    name, kind = loss.code.name, loss.code.load()
    if not callable(getattr(kind, "measure", None)):
        raise _refuse(
            f"The class {name} has no measure.",
            "Give it measure(z, x, desired, confidential): losses, and slopes by z.",
        )
    try:
        return cast(DeclaredLoss, kind(loss.n_features, loss.n_outputs, **dict(loss.settings)))
    except Exception as error:
        raise _refuse(
            f"{name}.__init__ raises {type(error).__name__}: {error}",
            "Call it in Python and fix what is wrong.",
        ) from None


def check_loss(loss: CustomLoss, schema: ShardSchema, seed: int = 0) -> None:
    """Refuse a loss whose slopes are not its derivative, on drawn outputs and records.

    Raises
    ------
    OptionError
        With what is wrong: shape, NaN, drawing at random, records that change one another, or the
        sign, size or direction of the slopes.
    """
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((ROWS, loss.n_outputs))
    given = (rng.standard_normal((ROWS, loss.n_features)), *_draw_labels(rng, schema))
    losses, slopes = _check_values(loss, z, given)
    pairs = []
    for _ in range(DIRECTIONS):
        along = rng.standard_normal(z.shape)
        wide, narrow = (_differ(loss, z, given, h * along) / h for h in (STEP, STEP / 2))
        # Record by record, so that no error of one is hidden by another.
        said = (slopes * along).sum(axis=1)
        pairs.append(np.column_stack([said, (4 * narrow - wide) / 3, np.abs(wide - narrow)]))
    if wrong := describe_difference(np.concatenate(pairs)):
        raise _refuse(
            f"{loss.code.name}.measure gives slopes by the outputs of which each {wrong}.",
            "They must be the gradient of the losses' sum by z.",
        )
    _check_alone(loss, z, given, losses)


def _draw_labels(rng: np.random.Generator, schema: ShardSchema) -> tuple[FloatArray, ...]:
    return tuple(
        np.column_stack(
            [
                rng.standard_normal(ROWS)
                if c.n_categories is None
                else rng.integers(0, c.n_categories, ROWS).astype(np.float64)
                for c in columns
            ]
        )
        if columns
        else np.empty((ROWS, 0))
        for columns in (schema.desired, schema.confidential)
    )


def _run(loss: CustomLoss, z: FloatArray, given: tuple[FloatArray, ...]) -> tuple[Any, Any]:
    """Run code of the user's on drawn records, whose values may be shown."""
    declared = _build_loss(loss)
    try:
        losses, slopes = declared.measure(z, *given)
    except Exception as error:
        raise _refuse(
            f"{loss.code.name}.measure raises {type(error).__name__}: {error}",
            "Call it in Python on random records and fix what is wrong.",
        ) from None
    return np.array(losses), np.array(slopes)


def _check_values(
    loss: CustomLoss, z: FloatArray, given: tuple[FloatArray, ...]
) -> tuple[FloatArray, FloatArray]:
    name, before = loss.code.name, [part.copy() for part in (z, *given)]
    losses, slopes = _run(loss, z, given)
    if losses.shape != (len(z),) or slopes.shape != z.shape:
        raise _refuse(
            f"{name}.measure gives arrays of shapes {losses.shape} and {slopes.shape} for "
            f"{len(z)} records of {z.shape[1]} outputs.",
            f"Return a loss per record, {(len(z),)}, and slopes by the outputs, {z.shape}.",
        )
    if not (np.isfinite(losses).all() and np.isfinite(slopes).all()):
        raise _refuse(
            f"{name}.measure gives values that are not finite (NaN or infinity) for standard "
            "normal outputs.",
            "Keep away from divisions by zero, logarithms and overflows.",
        )
    if not all(map(np.array_equal, (z, *given), before)):
        raise _refuse(f"{name}.measure changes what it is given.", "Work on a copy.")
    again = _run(loss, z, given)
    if not (np.array_equal(again[0], losses) and np.array_equal(again[1], slopes)):
        raise _refuse(
            f"{name}.measure gives another result each time: it draws at random, or remembers.",
            "Draw nothing in measure.",
        )
    return losses, slopes


def _differ(
    loss: CustomLoss, z: FloatArray, given: tuple[FloatArray, ...], step: FloatArray
) -> FloatArray:
    """Half of what the losses differ by, a step up and a step down."""
    ends = [np.asarray(_run(loss, z + sign * step, given)[0]) for sign in (1.0, -1.0)]
    return np.asarray((ends[0] - ends[1]) / 2)


def _check_alone(
    loss: CustomLoss, z: FloatArray, given: tuple[FloatArray, ...], losses: FloatArray
) -> None:
    half = slice(0, ROWS // 2)
    some = _run(loss, z[half], tuple(part[half] for part in given))[0]
    if some.shape != losses[half].shape or not np.allclose(some, losses[half], rtol=1e-8):
        raise _refuse(
            f"{loss.code.name}.measure lets records change one another: half of them come out "
            "otherwise alone.",
            "Use what one record holds; records are read in blocks.",
        )


def _refuse(problem: str, remedy: str) -> OptionError:
    return OptionError(problem, remedy=remedy, code="loss-check")


Setting = bool | int | float | str
Settings = tuple[tuple[str, Setting], ...]

GROUP = "privpipe.filters"
"""Entry points of installed filters."""
LOSSES = "privpipe.losses"
"""Entry points of installed losses."""

Arrays = Mapping[str, FloatArray]
"""Parameters of a filter, or a gradient by them: arrays by name."""

_LOADED: dict[tuple[str, str], type[Any]] = {}


class DeclaredFilter(Protocol):
    """What a filter of one's own must have; ``Class(n_features, **settings)`` makes it.

    Records are rows, of float64. Nothing is drawn in `apply`, and no record changes what becomes of
    another: a release is made in chunks.
    """

    n_outputs: int
    """Features released."""

    def start(self, rng: np.random.Generator) -> Arrays:
        """Parameters to begin with, by name; what is drawn comes from `rng`."""
        ...

    def apply(self, parameters: Arrays, x: FloatArray) -> FloatArray:
        """Filter (n_records, n_features) to (n_records, n_outputs)."""
        ...

    def vjp(self, parameters: Arrays, x: FloatArray, dz: FloatArray) -> Arrays:
        """Gradient of ``sum(dz * apply(parameters, x))`` by each of the parameters."""
        ...


@dataclass(frozen=True)
class FilterCode:
    """The code of a filter, or of a loss, as a value, which travels and is stored.

    Parameters
    ----------
    name
        Of the class, or of the entry point.
    source
        Text of the module; empty for an entry point.
    sha256
        Of the module's file, hexadecimal.
    group
        Of its entry point; it says whether it is a filter or a loss.
    """

    name: str
    source: str
    sha256: str
    group: str = GROUP

    @property
    def what(self) -> str:
        """The word for it."""
        return _say_kind(self.group)

    @classmethod
    def read(cls, name: str, module: str | None, group: str = GROUP) -> FilterCode:
        """Read a file of the user's, or find an entry point, which is code that they installed.

        The code is trusted from now on, unless a configuration names it: see `reading_only`.

        Raises
        ------
        OptionError
            If there is no such file or entry point.
        """
        if module is None:
            code = cls(name, "", _hash_file(_load_entry_point(name, group)), group)
            trust(code.sha256)
            return code
        code = cls._of_file(name, module, group)
        trust_named(code.sha256)
        return code

    @classmethod
    def _of_file(cls, name: str, module: str, group: str) -> FilterCode:
        try:
            with open(module, "rb") as file:
                content = file.read()
            source = content.decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(
                f"The module {module!r} of the {_say_kind(group)} cannot be read "
                f"({type(error).__name__})",
                remedy="Give the path of a Python file.",
                code="filter-module",
            ) from None
        return cls(name, source, hashlib.sha256(content).hexdigest(), group)

    def load(self) -> type[Any]:
        """The class, compiled once per process.

        Raises
        ------
        OptionError
            If the code is not trusted, is not what its hash says, cannot be imported, or has no
            such class.
        """
        if not is_trusted(self.sha256):
            raise OptionError(
                f"The file of the {self.what} {self.name!r}, with the SHA-256 {self.sha256}, is "
                "not trusted: nothing of it was run.",
                remedy="Read it, then: privpipe run CONFIG --trust SHA256 (remembered).",
                code="filter-untrusted",
            )
        key = self.sha256, self.name
        if key not in _LOADED:
            _LOADED[key] = self._load_source() if self.source else self._load_installed()
        return _LOADED[key]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_trusted": is_trusted(self.sha256)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("_trusted"):  # a pickle runs code anyway: workers believe their driver
            trust(state["sha256"])
        self.__dict__.update(state)

    def _load_installed(self) -> type[Any]:
        found = _load_entry_point(self.name, self.group)
        if _hash_file(found) != self.sha256:
            raise _changed(self.name)
        return found

    def _load_source(self) -> type[Any]:
        if hashlib.sha256(self.source.encode()).hexdigest() != self.sha256:
            raise _changed(self.name)
        module = ModuleType(f"privpipe_filter_{self.sha256[:16]}")
        sys.modules[module.__name__] = module  # dataclasses look their module up
        try:
            exec(compile(self.source, f"<{self.what} {self.name}>", "exec"), module.__dict__)
        except ImportError as error:
            raise _lacks(self.name, error.name or "") from None
        except Exception as error:
            raise OptionError(
                f"The module of the {self.what} {self.name!r} raises "
                f"{type(error).__name__}: {error}",
                remedy="Import it in Python and fix what is wrong.",
                code="filter-module",
            ) from None
        found = getattr(module, self.name, None)
        if not isinstance(found, type):
            raise OptionError(
                f"The module of the {self.what} has no class {self.name!r}",
                remedy=f"It has: {', '.join(_list_classes(module)) or 'none'}.",
                code="filter-module",
            )
        return found


def trust_filter(module: str | os.PathLike[str]) -> str:
    """Let stored models run the code of this file: read it before you do.

    A model whose filter is somebody's own carries its code, and opening one runs none of it.

    Parameters
    ----------
    module
        Path of the Python file that the filter was declared in, as you have read it.

    Returns
    -------
    sha256
        Hash of its content: models made with any other content stay refused.

    Raises
    ------
    OptionError
        If it cannot be read.
    """
    return FilterCode.read("", os.fspath(module)).sha256


def _say_kind(group: str) -> str:
    return "loss" if group == LOSSES else "filter"


def _load_entry_point(name: str, group: str) -> type[Any]:
    known = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        raise OptionError(
            f"No installed package declares a {_say_kind(group)} {name!r}",
            remedy=f"Name its file: {'loss_module' if group == LOSSES else 'module'} = "
            f'"my_{_say_kind(group)}.py". Installed: {", ".join(known) or "none"}.',
            code="filter-module",
        )
    try:
        found: type[Any] = known[name].load()
    except ImportError as error:
        raise _lacks(name, error.name or "") from None
    return found


def _hash_file(kind: type[Any]) -> str:
    with open(inspect.getsourcefile(kind) or "", "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def _list_classes(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]


def _changed(name: str) -> OptionError:
    return OptionError(
        f"The code of {name!r} has changed since it was trained.",
        remedy="Use the code that it was trained with, or train again.",
        code="filter-changed",
    )


def _lacks(name: str, library: str) -> OptionError:
    extra = "pip install 'privpipe[torch]'" if library.partition(".")[0] == "torch" else ""
    return OptionError(
        f"The module of {name!r} imports {library!r}, which is not installed",
        remedy=f"Install it: {extra or library}.",
        code="filter-import",
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
