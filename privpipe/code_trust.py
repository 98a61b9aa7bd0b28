"""Which code of users may run in this process, by the SHA-256 of its file.

Options that are made in Python trust the file that they name; those of a configuration, which may
be a stranger's, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_TRUSTED: set[str] = set()
_CONFIGURED: ContextVar[bool] = ContextVar("options are read from a configuration", default=False)


@contextmanager
def reading_only() -> Iterator[None]:
    """While options are made of a configuration: the files that it names are read, not trusted."""
    token = _CONFIGURED.set(True)
    try:
        yield
    finally:
        _CONFIGURED.reset(token)


def trust(sha256: str) -> None:
    """Let code of this content run in this process."""
    _TRUSTED.add(sha256)


def is_trusted(sha256: str) -> bool:
    """Whether code of this content may run in this process."""
    return sha256 in _TRUSTED


def say_trusted() -> str:
    """What else is trusted, for the refusal of something that is not."""
    if not _TRUSTED:
        return ""
    return (
        f" Trusted is other code, as of a file that has changed: {', '.join(sorted(_TRUSTED)[:3])}."
    )


def trust_named(sha256: str) -> None:
    """Trust a file that options name, unless a configuration does."""
    if not _CONFIGURED.get():
        trust(sha256)
