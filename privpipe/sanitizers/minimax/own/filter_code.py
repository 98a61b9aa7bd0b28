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
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from privpipe.code_trust import is_trusted, trust, trust_named
from privpipe.errors import OptionError
from privpipe.protocols import FloatArray

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
