"""Code of custom filters and losses: read, named by its content, tried, run where it is trusted.

Such code is a class, of a file that the configuration names or of an installed package's entry
point. The hash of the file goes into configuration, model and release. Options that are made in
Python trust the file that they name; those of a configuration, which may be a stranger's, do not.
`CustomCode.load` is the one way to run it, and refuses what no one has confirmed.

What it must do is tried on drawn records before anything is trained. A release is made in chunks,
and a descent believes derivatives. So rows must not change one another, nothing may be drawn, and
slopes must be those of finite differences.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.option_values import is_trusted, say_trusted, trust, trust_named
from privpipe.protocols import Column, FloatArray, ShardSchema

Setting = bool | int | float | str
Settings = tuple[tuple[str, Setting], ...]
Rows = tuple[FloatArray, ...]

N_DRAWN = 12
"""Records that are drawn."""
DIRECTIONS = 4
STEP = 1e-4
SHARE = 1e-4
"""Difference from finite differences that is allowed, as a share of the gradient."""
TRUNCATION = 10.0
"""Times the difference of two step sizes, allowed on top: kinks and curvature."""


class PickledTrust:
    """Whoever holds code, by its `sha256`, and says in a pickle whether it is trusted."""

    sha256: str

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_trusted": is_trusted(self.sha256)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.pop("_trusted"):  # a pickle runs code anyway: workers believe their driver
            trust(state["sha256"])
        self.__dict__.update(state)


@dataclass(frozen=True)
class CustomCode(PickledTrust):
    """The code of a filter, or of a loss, as a value, which travels and is stored.

    Parameters
    ----------
    name
        Of the class, or of the entry point.
    source
        Text of the module; empty for an entry point.
    sha256
        Of the module's file, hexadecimal.
    is_loss
        Whether it is a loss, of an entry point ``privpipe.losses``; else of ``privpipe.filters``.
    """

    name: str
    source: str
    sha256: str
    is_loss: bool = False

    @property
    def what(self) -> str:
        """The word for it."""
        return "loss" if self.is_loss else "filter"

    @classmethod
    def read(
        cls, name: str, module: str | None, pinned: str | None = None, *, is_loss: bool = False
    ) -> CustomCode:
        """Read a file of the user's, or find an entry point, which is code that they installed.

        The code is trusted from now on, unless a configuration names it: see `reading_only`.

        Raises
        ------
        OptionError
            If there is no such file or entry point, or its hash is not the one that is pinned.
        """
        code = cls(name, "", "", is_loss)
        if module is None:
            code = replace(code, sha256=_hash_file(_load_entry_point(code)))
            # Whoever installed the package has chosen its code already.
            trust(code.sha256)
        else:
            source, sha256 = _read_file(code, module)
            code = replace(code, source=source, sha256=sha256)
            trust_named(code.sha256)
        if pinned not in (None, code.sha256):
            key = "loss_sha256" if is_loss else "sha256"
            raise OptionError(
                f"the file of the {code.what} has the SHA-256 {code.sha256}, not the one of {key}.",
                remedy=f"Restore the file, or read it and change {key}.",
                code="filter-changed",
            )
        return code

    def require_trust(self) -> None:
        """Raise OptionError unless someone has confirmed this very code."""
        if not is_trusted(self.sha256):
            raise OptionError(
                f"The file of the {self.what} {self.name!r} has the SHA-256 {self.sha256}, which "
                f"is not trusted here: nothing of it was run.{say_trusted()}",
                remedy="Read it (a model's `source` is its text). Then: privpipe run CONFIG "
                "--trust SHA256 (remembered), or privpipe.trust_filter('the_file.py').",
                code="filter-untrusted",
            )

    def load(self, *methods: str) -> type[Any]:
        """The class, which must have these methods; compiled once per process.

        Raises
        ------
        OptionError
            If the code is not trusted, is not what its hash says, cannot be imported, or has no
            such class or methods.
        """
        # Before anything of it is compiled: opening a stranger's model or configuration runs
        # nothing.
        self.require_trust()
        kind = _load_class(self)
        missing = [name for name in methods if not callable(getattr(kind, name, None))]
        if missing:
            raise OptionError(
                f"The class {self.name} has no {', '.join(missing)}.",
                remedy="Give it measure(z, x, desired, confidential): losses, and slopes by z."
                if self.is_loss
                else "Give it start(rng), apply(parameters, x) and vjp(parameters, x, dz).",
                code="loss-check" if self.is_loss else "filter-class",
            )
        return kind

    def call(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a part of it on what is no record of anyone's; its message may be shown.

        Raises
        ------
        OptionError
            With what it raised, or the library that it lacks.
        """
        try:
            return function(*args, **kwargs)
        except OptionError:
            raise
        except ImportError as error:
            library = error.name or ""
            extra = "pip install 'privpipe[torch]'" if library.split(".")[0] == "torch" else library
            problem = f"The module of {self.name!r} imports {library!r}, which is not installed"
            remedy = f"Install it: {extra}."
            raise OptionError(problem, remedy=remedy, code="filter-import") from None
        except Exception as error:
            raise OptionError(
                f"{self.name}.{what} raises {type(error).__name__}: {error}",
                remedy="Call it in Python, on random records, and fix what is wrong.",
                code="loss-check" if self.is_loss else "filter-class",
            ) from None

    def call_on_records(self, what: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part of it on records, of which no message says anything.

        Raises
        ------
        OptionError
            If it raises anything; only what and where is said.
        """
        try:
            return function(*args)
        except (MemoryError, OptionError):
            raise
        except Exception as error:
            raise self.refuse(
                f"{self.name}.{what} raises {type(error).__name__} on records",
                "It runs on random ones: look for what else records hold, and for their number.",
            ) from None

    def refuse(self, problem: str, remedy: str) -> OptionError:
        """The error of code that does not do what it must."""
        name = "loss-check" if self.is_loss else "filter-vjp"
        return OptionError(problem, remedy=remedy, code=name)


@lru_cache(maxsize=8)
def _load_class(code: CustomCode) -> type[Any]:
    if code.source:
        sha256 = hashlib.sha256(code.source.encode()).hexdigest()
    else:
        installed = _load_entry_point(code)
        sha256 = _hash_file(installed)
    # A stored model says a hash and may hold a text: the hash was confirmed, so the text must be
    # its.
    if sha256 != code.sha256:
        problem = f"The code of {code.name!r} has changed since it was trained."
        remedy = "Use the code that it was trained with, or train again."
        raise OptionError(problem, remedy=remedy, code="filter-changed")
    if not code.source:
        return installed
    module = ModuleType(f"privpipe_filter_{sha256[:16]}")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    compiled = code.call("compile", compile, code.source, f"<{code.what} {code.name}>", "exec")
    code.call("import", exec, compiled, module.__dict__)
    found = getattr(module, code.name, None)
    if not isinstance(found, type):
        classes = (value for value in vars(module).values() if isinstance(value, type))
        names = [one.__name__ for one in classes if one.__module__ == module.__name__]
        problem = f"The module of the {code.what} has no class {code.name!r}"
        remedy = f"It has: {', '.join(names) or 'none'}."
        raise OptionError(problem, remedy=remedy, code="filter-module")
    return found


def _read_file(code: CustomCode, module: str) -> tuple[str, str]:
    """Text and hash."""
    try:
        # Read once: text and hash are of the same bytes, whoever writes to the file meanwhile.
        content = Path(module).read_bytes()
        return content.decode("utf-8"), hashlib.sha256(content).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"The module {module!r} of the {code.what} cannot be read ({type(error).__name__})",
            remedy="Give the path of a Python file.",
            code="filter-module",
        ) from None


def _load_entry_point(code: CustomCode) -> type[Any]:
    group, key = ("losses", "loss_module") if code.is_loss else ("filters", "module")
    known = {point.name: point for point in entry_points(group=f"privpipe.{group}")}
    if code.name not in known:
        raise OptionError(
            f"No installed package declares a {code.what} {code.name!r}",
            remedy=f'Name its file: {key} = "my_{code.what}.py". '
            f"Installed: {', '.join(known) or 'none'}.",
            code="filter-module",
        )
    return cast(type[Any], code.call("import", known[code.name].load))


def _hash_file(kind: type[Any]) -> str:
    return hashlib.sha256(Path(inspect.getsourcefile(kind) or "").read_bytes()).hexdigest()


def trust_filter(module: str | os.PathLike[str]) -> str:
    """Let stored models run the code of this file: read it before you do.

    A model whose filter is a custom one carries its code, and opening one runs none of it.

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
    return CustomCode.read("", os.fspath(module)).sha256


class DeclaredLoss(Protocol):
    """What a custom loss must have; ``Class(n_features, n_outputs, **settings)`` makes it.

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

    code: CustomCode
    settings: Settings
    n_features: int
    n_outputs: int
    n_desired: int

    @property
    def declared(self) -> DeclaredLoss:
        """The loss; made once per process."""
        return _build_loss(self)

    def measure(self, z: FloatArray, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Losses and slopes of records whose variables are `y`, desired ones first.

        Raises
        ------
        InputError
            If some are not finite; the message counts them.
        """
        variables = y[:, : self.n_desired], y[:, self.n_desired :]
        found = self.code.call_on_records("measure", self.declared.measure, z.copy(), x, *variables)
        losses, slopes = (np.array(part, np.float64) for part in found)
        bad = np.count_nonzero(~(np.isfinite(losses) & np.isfinite(slopes).all(axis=1)))
        if bad:
            problem = f"The loss {self.code.name} is not finite for {bad} of {len(z)} records."
            remedy = "Bound what it computes: keep away from divisions by zero and logarithms."
            raise InputError(problem, remedy=remedy, code="loss-nonfinite")
        return losses, slopes


@lru_cache(maxsize=8)
def _build_loss(loss: CustomLoss) -> DeclaredLoss:
    kind = loss.code.load("measure")
    sizes = loss.n_features, loss.n_outputs
    return cast(DeclaredLoss, loss.code.call("__init__", kind, *sizes, **dict(loss.settings)))


def check_rows(
    code: CustomCode,
    what: str,
    function: Callable[..., Sequence[FloatArray]],
    rows: Rows,
    shapes: Sequence[tuple[int, ...]],
) -> Rows:
    """What a function from rows to rows gives, or a refusal.

    Parameters
    ----------
    code, what
        Whose function it is, and its name.
    function
        Takes `rows`, gives an array for each of `shapes`.
    rows : arrays of n rows each
    shapes
        Of what it must give.

    Raises
    ------
    OptionError
        If it raises or gives other shapes or NaN, changes what it is given, draws at random, or
        lets rows change one another.
    """

    def run(*rows: FloatArray) -> Rows:
        return tuple(np.array(part, np.float64) for part in code.call(what, function, *rows))

    name, half = f"{code.name}.{what}", len(rows[0]) // 2
    before = [part.copy() for part in rows]
    found = run(*rows)
    if [part.shape for part in found] != list(shapes):
        raise code.refuse(
            f"{name} gives arrays of shapes {[part.shape for part in found]}, not {list(shapes)}.",
            "Return one row per record.",
        )
    check_finite(code, what, found)
    if not all(map(np.array_equal, rows, before)):
        raise code.refuse(f"{name} changes what it is given.", "Work on a copy.")
    if not all(map(np.array_equal, run(*rows), found)):
        raise code.refuse(
            f"{name} gives another result each time: it draws at random, or remembers.",
            f"Draw nothing in {what}; noise that protects is a method of its own.",
        )
    for some, whole in zip(run(*(part[:half] for part in rows)), found, strict=True):
        # Not bit for bit: a product of half the rows may round otherwise.
        allowed = 1e-8 * max(float(np.abs(whole).max()), 1e-300)
        if some.shape != whole[:half].shape or np.abs(some - whole[:half]).max() > allowed:
            raise code.refuse(
                f"{name} lets records change one another: half of them come out otherwise alone.",
                "Use what one record holds; records are read and released in chunks.",
            )
    return found


def check_finite(code: CustomCode, what: str, arrays: Rows) -> None:
    """Raise OptionError for values that are not finite, which drawn records should not give."""
    if not all(np.isfinite(part).all() for part in arrays):
        problem = f"{code.name}.{what} gives values that are not finite for normal records."
        raise code.refuse(problem, "Keep away from divisions by zero, logarithms and overflows.")


def check_derivative(
    code: CustomCode,
    what: str,
    value: Callable[[FloatArray], FloatArray],
    at: FloatArray,
    slopes: FloatArray,
    rng: np.random.Generator,
) -> None:
    """Compare directional derivatives with central differences of two step sizes.

    Parameters
    ----------
    value
        Of an array of the shape of `at`: a number, or one for each of its rows.
    at
        Where the derivative is taken.
    slopes
        The claimed derivatives, of each number by its row; shape of `at`.

    Raises
    ------
    OptionError
        Saying whether sign, size or direction is wrong.
    """
    # In the units of what is moved; zeros move by as much as a tenth would.
    step = STEP * max(measure_size(at), 0.1)
    parts = []
    for _ in range(DIRECTIONS):
        along = rng.standard_normal(at.shape)
        wide, narrow = (
            np.ravel(value(at + h * along) - value(at - h * along)) / (2 * h)
            for h in (step, step / 2)
        )
        claimed = (slopes * along).reshape(len(wide), -1).sum(axis=1)
        # Extrapolated, so that the error is of order h^4.
        parts.append((claimed, (4 * narrow - wide) / 3, np.abs(wide - narrow)))
    if wrong := _describe_difference(*map(np.concatenate, zip(*parts, strict=True))):
        raise code.refuse(
            f"{code.name}.{what} {wrong}.",
            "Give the gradient of the sum of the losses by z."
            if code.is_loss
            else "Give the gradient of sum(dz * apply(parameters, x)).",
        )


def check_loss(loss: CustomLoss | None, schema: ShardSchema) -> None:
    """Try a loss whose code is trusted on drawn outputs and records.

    Raises
    ------
    OptionError
        See `check_rows` and `check_derivative`.
    """
    if loss is None or not is_trusted(loss.code.sha256):  # a configuration one only looks at
        return
    rng = np.random.default_rng(0)
    z, x = (rng.standard_normal((N_DRAWN, width)) for width in (loss.n_outputs, loss.n_features))
    given = (x, *(_draw_labels(rng, columns) for columns in (schema.desired, schema.confidential)))
    measure = loss.declared.measure
    _, slopes = check_rows(loss.code, "measure", measure, (z, *given), ((N_DRAWN,), z.shape))
    # Record by record, so that no error of one is hidden by another.
    what = "measure gives slopes by the outputs of which each"
    check_derivative(loss.code, what, lambda z: np.array(measure(z, *given)[0]), z, slopes, rng)


def _draw_labels(rng: np.random.Generator, columns: Sequence[Column]) -> FloatArray:
    """Numbers and codes of variables, (N_DRAWN, n_variables)."""
    drawn = np.empty((N_DRAWN, len(columns)))
    for j, column in enumerate(columns):
        k = column.n_categories
        drawn[:, j] = rng.standard_normal(N_DRAWN) if k is None else rng.integers(k, size=N_DRAWN)
    return drawn


def measure_size(array: FloatArray) -> float:
    """Root of the mean square."""
    return float(np.sqrt(np.mean(array**2)))


def _describe_difference(claimed: FloatArray, found: FloatArray, error_bound: FloatArray) -> str:
    """How derivatives are wrong, in words; empty where they are right."""
    size = max(float(np.abs(found).max()), float(np.abs(claimed).max()))
    if (np.abs(claimed - found) <= SHARE * size + TRUNCATION * error_bound + 1e-10).all():
        return ""
    # The factor that fits best: what it leaves says whether the direction is right at least.
    ratio = float(claimed @ found / max(float(found @ found), 1e-300))
    off = float(np.abs(claimed - ratio * found).max()) / max(size, 1e-300)
    if off < 0.01 and abs(ratio + 1) < 0.01:
        return "has the wrong sign"
    if off < 0.01 and abs(ratio) > 1e-6:
        return f"is {ratio:.4g} times the derivative"
    worst = float(np.abs(claimed - found).max()) / max(size, 1e-300)
    return f"is not the derivative of what is computed: finite differences are {worst:.0%} off"
