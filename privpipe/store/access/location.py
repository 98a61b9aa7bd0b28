"""Places by URL: a local path, or what fsspec reaches; how messages call them.

And what only remote stores have: refusals of their clients, put-if-absent, copies by the store.
What exceptions of a client mean is read from status and code, never from their text: texts hold
addresses, requests and answers. Each client has classes of its own. What they share is the HTTP
status, and with S3 a word for the error.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import fsspec
from fsspec.registry import known_implementations

from privpipe.errors import OptionError, PrivpipeError, StoreError, printable

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
        path = _absolute(unquote(parts.path))
    elif _is_remote(parts):
        if not parts.netloc:  # fsspec would take it for a folder of that name here
            problem = f"A place with the scheme {parts.scheme!r} names no bucket or host."
            remedy = "Give it as s3://bucket/name, and a file with a colon as ./a:b."
            raise OptionError(problem, remedy=remedy, code="place")
        return None
    else:
        path = _absolute(os.path.expanduser(url))
    _check_local(url, path)
    return path


def _absolute(path: str) -> str:
    with suppress(FileNotFoundError):
        return os.path.abspath(path)
    remedy = "Change into one that is there, or give whole paths."
    raise OptionError("The folder that this process works in is gone.", remedy=remedy, code="place")


def _split(url: str) -> SplitResult:
    with suppress(ValueError):  # brackets of an IPv6 address that do not close, and the like
        return urlsplit(url)
    remedy = "Use a local path, or an fsspec URL such as s3://bucket/name."
    raise OptionError(f"{printable(url, keep='')!r} is no URL.", remedy=remedy, code="place")


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
        problem = f"holds a name of {len(os.fsencode(longest))} bytes, above {MOST_NAME_BYTES}"
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
        remedy="Give a path or URL; write a frame to Parquet, or use privpipe.Records.",
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
    # Of a bucket's name # is a part.
    path = parts.path + (f"#{parts.fragment}" if parts.fragment else "")
    return printable(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}", keep="")


def explain_unreachable(url: str, error: Exception) -> StoreError:
    """What is wrong when fsspec cannot reach a place, and which package is missing, if one is."""
    scheme = urlsplit(url).scheme
    if isinstance(error, ImportError):
        # fsspec knows which package a scheme needs, and how it is installed.
        remedy = str(known_implementations.get(scheme, {}).get("err", "Install its package."))
        problem = f"{shown(url)} needs a package that is not installed."
        return StoreError(problem, remedy=f"{remedy.rstrip('.')}.", code="package-missing")
    if isinstance(error, ValueError) and scheme not in known_implementations:
        problem = f"{shown(url)} has the scheme {scheme!r}, which is not known."
        remedy = "Use a local path or an fsspec URL, as s3://bucket/name."
        return StoreError(problem, remedy=remedy, code="url-scheme")
    if local_path(url) is not None and (refused := explain_file_error(error, shown(url))):
        return refused
    problem = f"{shown(url)} cannot be reached ({type(error).__name__})."
    remedy = "Check host, name, credentials and your rights."
    return StoreError(problem, remedy=remedy, code="unreachable")


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REFUSALS = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR}
    | {errno.ELOOP, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EBUSY}
    | {errno.ENODEV, errno.EXDEV}
)
"""What a file system says when a place is at fault, not the code."""


def explain_file_error(error: Exception, where: str) -> StoreError | None:
    """An error of ours for what a file system refuses; None for any other exception."""
    if isinstance(error, OSError) and error.errno in FULL:
        remedy = "Free space, then run again: the work so far is retained."
        return StoreError(f"The disk is full ({where}).", remedy=remedy, code="disk-full")
    if isinstance(error, OSError) and error.errno in REFUSALS:
        problem = f"The file system refused: {os.strerror(error.errno or 0).lower()} ({where})."
        remedy = "Check the places that are named, and your rights there."
        return StoreError(problem, remedy=remedy, code="refused")
    return None


T = TypeVar("T")

# By package, since no two clients share a base class.
CLIENTS = frozenset("adlfs aiobotocore aiohttp azure botocore fsspec gcsfs s3fs urllib3".split())
"""Packages whose exceptions are about a store and the way there."""

# Words of S3; others are known by their status alone.
EXPIRED = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "InvalidAccessKeyId", "InvalidToken"}
    | {"RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"}
)
DENIED = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


def explain_refusal(error: BaseException) -> StoreError | None:
    """An error of ours for an exception of a store's client; None for any other exception."""
    chain = list(_causes(error))
    if not CLIENTS & {type(one).__module__.partition(".")[0] for one in chain}:
        return None
    status = http_status(error)
    codes = {_code_of(one) for one in chain}
    unsigned = any("Credential" in type(one).__name__ for one in chain)
    if codes & EXPIRED or status in DENIED or unsigned:
        return StoreError(
            "The object store refuses the credentials, or they have expired.",
            remedy="Renew them where the store's client looks for them, on workers too, then run "
            "again: the work so far is stored.",
            code="credentials",
        )
    if status == HTTPStatus.NOT_FOUND:
        problem = "The object store has no such bucket or object."
        return StoreError(problem, remedy="Check the places that are named.", code="not-found")
    said = f"status {status}" if status else type(chain[-1]).__name__
    problem = f"The object store does not answer as it should ({said})."
    remedy = "Run again in a while: the work so far is stored."
    return StoreError(problem, remedy=remedy, code="unreachable")


def guard_read(
    read: Callable[[], T], kind: type[PrivpipeError], message: str, *, remedy: str, code: str = ""
) -> T:
    """What `read` gives, or an error of ours that holds nothing of what was read.

    Parameters
    ----------
    read
        Called once. What it raises may quote bytes of records, in its text or its causes.
    kind, message, remedy, code
        Of the error; the message is followed by the class of what was raised.

    Raises
    ------
    StoreError
        Where the client of a store refused; see `explain_refusal`.
    PrivpipeError
        What `read` raised, without its causes, or one of the given kind.
    """
    problem: PrivpipeError
    try:
        return read()
    except PrivpipeError as error:
        problem = type(error)(
            error.message, remedy=error.remedy, code=error.code, details=error.details
        )
    except Exception as error:  # many kinds, depending on codec and store
        problem = explain_refusal(error) or kind(
            f"{message} ({type(error).__name__}).", remedy=remedy, code=code
        )
    raise problem  # outside of the handler: an error that was handled would be its context


def http_status(error: BaseException | None) -> int | None:
    """Status of the answer that an exception or one of its causes was made of."""
    for one in _causes(error):
        # botocore has a dictionary, aiohttp `status`, Azure `status_code`, gcsfs `code`.
        response = getattr(one, "response", None)
        metadata = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
        named = (getattr(one, name, None) for name in ("status", "status_code", "code"))
        for found in (metadata.get("HTTPStatusCode"), *named):
            if isinstance(found, int | str) and str(found).isdigit():
                return int(found)
    return None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An exception, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _code_of(error: BaseException) -> str:
    """The word by which S3 calls an error; empty for all else."""
    response = getattr(error, "response", None)
    found = response.get("Error", {}) if isinstance(response, dict) else {}
    return str(found.get("Code", "")) if isinstance(found, dict) else ""


# S3 answers 409 while another conditional write of the same key is under way.
CONFLICT_PAUSES = (0.1, 0.4, 1.6)
"""Seconds between attempts to make an object that another is just making."""


def exists_file(url: str) -> bool:
    """Whether there is a file at a place that can be reached."""

    def look() -> bool:
        file_system, path = fsspec.core.url_to_fs(url)
        return bool(file_system.exists(path))

    problem = f"{shown(url)} cannot be reached"
    return guard_read(look, StoreError, problem, remedy="Check the place.")


def create_bytes(url: str, value: bytes) -> bool:
    """Write an object of a remote place only if there is none; whether it holds this value now.

    The store itself decides who was first (S3: ``If-None-Match``, which has to be enforced by the
    store; see DESIGN.md). What it answers to who was not differs from store to store in all but its
    HTTP status. That is 412, or 409 while another's write is under way, which is tried again. Where
    the answer to our own write was lost, the client tries again and finds an object: ours. So what
    is there is compared; rivals must write different values.
    """
    file_system, path = fsspec.core.url_to_fs(url)
    for pause in (*CONFLICT_PAUSES, None):
        try:
            file_system.pipe_file(path, value, mode="create")
            return True
        except FileExistsError:
            break
        except Exception as error:  # many kinds, depending on the file system
            # gcsfs, adlfs and s3fs raise different classes for a lost race; the status is the same.
            status = http_status(error)
            if status not in (HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED):
                if _holds(file_system, path, value):
                    return True
                raise
        if status == HTTPStatus.PRECONDITION_FAILED or pause is None:
            break
        # The other writer may still fail: only then is the name free.
        time.sleep(pause)
    return _holds(file_system, path, value)


def delete_object(url: str) -> None:
    """Delete an object of a remote place; nothing where there is none."""
    file_system, path = fsspec.core.url_to_fs(url)
    with suppress(FileNotFoundError):
        file_system.rm_file(path)


def copy_objects(source: str, target: str, keys: Sequence[str]) -> None:
    """Have a remote store copy objects from one of its places to another; no byte travels here."""
    file_system, path = fsspec.core.url_to_fs(source)
    _, there = fsspec.core.url_to_fs(target)
    # Two requests for each object; copying through this process would move every byte twice.
    one, other = (name.rstrip("/") for name in (path, there))
    file_system.copy([f"{one}/{key}" for key in keys], [f"{other}/{key}" for key in keys])


def measure_objects(url: str) -> dict[str, int]:
    """Bytes of each object below a remote place, by key; empty where there is nothing."""
    file_system, path = fsspec.core.url_to_fs(url)
    file_system.invalidate_cache()
    found = file_system.find(path, detail=True)
    sizes = {name.removeprefix(f"{path}/"): int(about["size"]) for name, about in found.items()}
    return {key: n_bytes for key, n_bytes in sizes.items() if key not in ("", path)}


def _holds(file_system: Any, path: str, value: bytes) -> bool:
    """Whether an object is there and holds this value; by the store, not by a cache."""
    file_system.invalidate_cache()
    with suppress(Exception):  # it is not there, or the store does not answer now either
        # Equal bytes are ours, for rivals write different values.
        return bool(file_system.cat_file(path) == value)
    return False
