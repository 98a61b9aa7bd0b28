"""The compiler of loops, for modules that must load without it.

It comes with ``privpipe[cluster]``. Without it null-space cleaning works all the same (in NumPy,
the same bits); what has no second form says clearly that it cannot.
"""

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn, TypeVar, cast

from privpipe.errors import NumericalError

F = TypeVar("F", bound=Callable[..., Any])


def njit(**options: Any) -> Callable[[F], F]:
    """`numba.njit`, or a decorator of functions that refuse to run."""
    try:
        import numba
    except ImportError:  # also when its libraries do not fit this machine
        return _refuse
    return cast(Callable[[F], F], numba.njit(**options))


def compiled(function: F) -> F:
    """Compile at first use, keep on disk, release the interpreter lock; never reorder floats."""
    return njit(cache=True, nogil=True, fastmath=False, error_model="numpy")(function)


@cache
def can_compile() -> bool:
    """Whether the compiler is there; where it does not load, NumPy cleans alone."""
    try:
        for name in ("numba", "jinja2"):  # which writes the text of the cleaner
            importlib.import_module(name)
    except ImportError:
        return False
    return True


def _refuse(function: F) -> F:
    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NumericalError(
            f"{function.__name__} is compiled by numba, which does not load here.",
            remedy="Install it with: pip install 'privpipe[cluster]'. Without it null-space "
            "cleaning, LEACE and filters work.",
            code="no-compiler",
        )

    return cast(F, refuse)
