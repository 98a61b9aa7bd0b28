"""Places by URL: a local path, or what fsspec reaches; how messages call them."""

import os
import re
from urllib.parse import SplitResult, unquote, urlsplit

from fsspec.registry import known_implementations

from privpipe.errors import OptionError, StoreError, printable

Place = str | os.PathLike[str]
"""A local path, or an fsspec URL."""

# Of ext4, XFS, tmpfs and what else Linux mounts; a path may be longer.
MOST_NAME_BYTES = 255
"""Longest name of a file that file systems keep."""


def local_path(url: str) -> str | None:
    """Absolute path of a place on the local file system; None for a remote one.

    >>> local_path("s3://bucket/records.zarr") is None
    True
    >>> local_path("file:///data/my%20records.zarr")
    '/data/my records.zarr'
    """
    parts = _split(url)
    if parts.scheme == "file":
        # A URL of a file quotes blanks as %20; a plain path is taken as it is.
        path = os.path.abspath(unquote(parts.path))
    elif _is_remote(parts):
        return None
    else:
        path = os.path.abspath(os.path.expanduser(url))
    _check_local(url, path)
    return path


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:  # brackets of an IPv6 address that do not close, and the like
        pass
    raise OptionError(
        f"{printable(url, keep='')!r} is no URL.",
        remedy="Use a local path, or an fsspec URL such as s3://bucket/name.",
        code="place",
    )


def _is_remote(parts: SplitResult) -> bool:
    """Whether there is a scheme; a single letter is a Windows drive, or part of a name."""
    return len(parts.scheme) > 1 and parts.scheme != "file"


def _check_local(url: str, path: str) -> None:
    """Raise OptionError for a path that no file can have here."""
    problem = ""
    # Here, wherever a place is first used: later it would be an OSError in the middle of a run.
    longest = max(path.split(os.sep), key=lambda name: len(os.fsencode(name)))
    if "\0" in path:
        problem = "holds a null character"
    elif len(os.fsencode(longest)) > MOST_NAME_BYTES:
        problem = (
            f"holds a name of {len(os.fsencode(longest))} bytes, and a name of a file has at most "
            f"{MOST_NAME_BYTES}"
        )
    elif os.sep == "/" and re.match(r"[A-Za-z]:[\\/]", url) and not os.path.lexists(path):
        problem = "is a path of Windows, and this machine has no drives"
    if problem:
        cut = url if len(url) <= 80 else f"{url[:80]}..."
        raise OptionError(
            f"The path {printable(cut, keep='')} {problem}.", remedy="Give another.", code="place"
        )


def as_url(place: Place) -> str:
    """A path or URL as text.

    Raises
    ------
    OptionError
        If it is something else, such as a data frame.
    """
    if isinstance(place, str | os.PathLike):
        return os.fspath(place)
    raise OptionError(
        f"A place is of type {type(place).__name__}.",
        remedy="Give a path or URL; write a frame to Parquet first, or use privpipe.Records for "
        "arrays in memory.",
        code="place",
    )


def join(url: str, *names: str) -> str:
    """URL of something inside a place.

    >>> join("s3://bucket/a/", "b", "c")
    's3://bucket/a/b/c'
    """
    return "/".join([url.rstrip("/"), *names])


def shown(url: str) -> str:
    """A URL as it may appear in messages: without user, password and query, on one line.

    >>> shown("s3://key:secret@bucket/a?token=1")
    's3://bucket/a'
    >>> shown("a\\nb.zarr")
    'a\\\\nb.zarr'
    """
    parts = _split(url)
    if not _is_remote(parts):
        return printable(url, keep="")
    # Before the @ are user and password; a query may be a signed token.
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", keep="")


def explain_unreachable(url: str, error: Exception) -> StoreError:
    """What is wrong when fsspec cannot reach a place, and which package is missing, if one is."""
    scheme = urlsplit(url).scheme
    if isinstance(error, ImportError):
        # fsspec knows which package a scheme needs, and how it is installed.
        remedy = str(known_implementations.get(scheme, {}).get("err", "Install its package."))
        return StoreError(
            f"{shown(url)} needs a package that is not installed.",
            remedy=f"{remedy.rstrip('.')}.",
            code="package-missing",
        )
    if isinstance(error, ValueError) and scheme not in known_implementations:
        return StoreError(
            f"{shown(url)} has the scheme {scheme!r}, which is not known.",
            remedy="Use a local path or an fsspec URL, as s3://bucket/name.",
            code="url-scheme",
        )
    return StoreError(
        f"{shown(url)} cannot be reached ({type(error).__name__}).",
        remedy="Check host, name, credentials and your rights.",
        code="unreachable",
    )
