"""Code of custom filters and losses: read, named by its content, run only where it is trusted.

Such code is a class, of a file that the configuration names or of an installed package's entry
point. The hash of the file goes into configuration, model and release. Options that are made in
Python trust the file that they name; those of a configuration, which may be a stranger's, do not:
`CustomCode.load` is the one way to run it, and refuses what no one has confirmed.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from privpipe.errors import InputError, OptionError
from privpipe.option_values import is_trusted, trust, trust_named
from privpipe.protocols import FloatArray

Setting = bool | int | float | str
Settings = tuple[tuple[str, Setting], ...]

FILTERS = "privpipe.filters"
"""Entry points of installed filters."""
LOSSES = "privpipe.losses"
"""Entry points of installed losses."""
KINDS = {FILTERS: "filter", LOSSES: "loss"}

_LOADED: dict[tuple[str, str], type[Any]] = {}


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
    group
        Of its entry point; it says whether it is a filter or a loss.
    """

    name: str
    source: str
    sha256: str
    group: str = FILTERS

    @property
    def is_loss(self) -> bool:
        return self.group == LOSSES

    @property
    def what(self) -> str:
        """The word for it."""
        return KINDS[self.group]

    @classmethod
    def read(
        cls, name: str, module: str | None, group: str = FILTERS, pinned: str | None = None
    ) -> CustomCode:
        """Read a file of the user's, or find an entry point, which is code that they installed.

        The code is trusted from now on, unless a configuration names it: see `reading_only`.

        Raises
        ------
        OptionError
            If there is no such file or entry point, or its hash is not the one that is pinned.
        """
        if module is None:
            code = cls(name, "", _hash_file(_load_entry_point(name, group)), group)
            # Whoever installed the package has chosen its code already.
            trust(code.sha256)
        else:
            code = cls(name, *_read_file(module, group), group)
            trust_named(code.sha256)
        if pinned not in (None, code.sha256):
            key = "loss_sha256" if group == LOSSES else "sha256"
            raise OptionError(
                f"the file of the {code.what} has the SHA-256 {code.sha256}, not the one of {key}.",
                remedy=f"Restore the file, or read it and change {key}.",
                code="filter-changed",
            )
        return code

    def load(self) -> type[Any]:
        """The class, compiled once per process.

        Raises
        ------
        OptionError
            If the code is not trusted, is not what its hash says, cannot be imported, or has no
            such class.
        """
        # Before anything of it is compiled: opening a stranger's model or configuration runs
        # nothing.
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

    def load_class(self, *methods: str) -> type[Any]:
        """The class, which must have these methods; see `load`."""
        kind = self.load()
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

    def _load_installed(self) -> type[Any]:
        found = _load_entry_point(self.name, self.group)
        self._check_hash(_hash_file(found))
        return found

    def _load_source(self) -> type[Any]:
        # A stored model says a hash and holds a text: the hash was confirmed, so the text must be
        # its.
        self._check_hash(hashlib.sha256(self.source.encode()).hexdigest())
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
            classes = (value for value in vars(module).values() if isinstance(value, type))
            names = [one.__name__ for one in classes if one.__module__ == module.__name__]
            raise OptionError(
                f"The module of the {self.what} has no class {self.name!r}",
                remedy=f"It has: {', '.join(names) or 'none'}.",
                code="filter-module",
            )
        return found

    def _check_hash(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise OptionError(
                f"The code of {self.name!r} has changed since it was trained.",
                remedy="Use the code that it was trained with, or train again.",
                code="filter-changed",
            )


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


def call_custom(
    code: CustomCode, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a part of custom code on what is no record of anyone's; its message may be shown.

    Raises
    ------
    OptionError
        With what it raised.
    """
    try:
        return function(*args, **kwargs)
    except OptionError:
        raise
    except Exception as error:
        raise OptionError(
            f"{code.name}.{what} raises {type(error).__name__}: {error}",
            remedy="Call it in Python, on random records, and fix what is wrong.",
            code="loss-check" if code.is_loss else "filter-class",
        ) from None


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

    def measure(
        self, z: FloatArray, x: FloatArray, labels: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Losses and slopes of records whose variables are `labels`, desired ones first.

        Raises
        ------
        InputError
            If some are not finite; the message counts them.
        """
        found = self.declared.measure(
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
    kind = loss.code.load_class("measure")
    sizes = loss.n_features, loss.n_outputs
    found: DeclaredLoss = call_custom(loss.code, "__init__", kind, *sizes, **dict(loss.settings))
    return found


def _read_file(module: str, group: str) -> tuple[str, str]:
    """Text and hash."""
    try:
        # Read once: text and hash are of the same bytes, whoever writes to the file meanwhile.
        content = Path(module).read_bytes()
        return content.decode("utf-8"), hashlib.sha256(content).hexdigest()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"The module {module!r} of the {KINDS[group]} cannot be read ({type(error).__name__})",
            remedy="Give the path of a Python file.",
            code="filter-module",
        ) from None


def _load_entry_point(name: str, group: str) -> type[Any]:
    known = {point.name: point for point in entry_points(group=group)}
    if name not in known:
        raise OptionError(
            f"No installed package declares a {KINDS[group]} {name!r}",
            remedy=f"Name its file: {'loss_module' if group == LOSSES else 'module'} = "
            f'"my_{KINDS[group]}.py". Installed: {", ".join(known) or "none"}.',
            code="filter-module",
        )
    try:
        found: type[Any] = known[name].load()
    except ImportError as error:
        raise _lacks(name, error.name or "") from None
    return found


def _hash_file(kind: type[Any]) -> str:
    return hashlib.sha256(Path(inspect.getsourcefile(kind) or "").read_bytes()).hexdigest()


def _lacks(name: str, library: str) -> OptionError:
    extra = "pip install 'privpipe[torch]'" if library.partition(".")[0] == "torch" else ""
    return OptionError(
        f"The module of {name!r} imports {library!r}, which is not installed",
        remedy=f"Install it: {extra or library}.",
        code="filter-import",
    )
