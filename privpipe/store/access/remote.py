"""What only remote stores have: refusals of their clients, put-if-absent, copies by the store.

What exceptions of a client mean is read from status and code, never from their text: texts hold
addresses, requests and answers. Each client has classes of its own. What they share is the HTTP
status, and with S3 a word for the error.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from typing import Any, TypeVar

import fsspec

from privpipe.errors import PrivpipeError, StoreError

T = TypeVar("T")

# By package, since no two clients share a base class.
CLIENTS = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "s3fs", "urllib3"}
)
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
        return StoreError(
            "The object store has no such bucket or object.",
            remedy="Check the places that are named.",
            code="not-found",
        )
    said = f"status {status}" if status else type(chain[-1]).__name__
    return StoreError(
        f"The object store does not answer as it should ({said}).",
        remedy="Run again in a while: the work so far is stored.",
        code="unreachable",
    )


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
        problem = type(error)(error.message, remedy=error.remedy, code=error.code)
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


def create_bytes(url: str, value: bytes) -> bool:
    """Write an object of a remote place only if there is none; whether it holds this value now.

    The store itself decides who was first (S3: ``If-None-Match``, which has to be enforced
    by the store; see DESIGN.md). What it answers to who was not differs from store to store in
    all but its HTTP status: 412, or 409 while another's write is under way, which is tried again.
    Where the answer to our own write was lost, the client tries again and finds an object: ours.
    So what is there is compared; rivals must write different values.
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
    try:
        # Equal bytes are ours, for rivals write different values.
        return bool(file_system.cat_file(path) == value)
    except Exception:  # it is not there, or the store does not answer now either
        return False
