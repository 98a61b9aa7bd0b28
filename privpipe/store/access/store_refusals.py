"""What exceptions of a remote store's client mean, told by status and code, never by their text.

Texts of clients hold addresses, requests and answers; each client has classes of its own. What they
share is the HTTP status, and with S3 a word for the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from privpipe.errors import StoreError

CLIENTS = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "fsspec", "gcsfs", "s3fs", "urllib3"}
)
"""Packages whose exceptions are about a store and the way there."""

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
            "again: the work so far is kept.",
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
        remedy="Run again in a while: the work so far is kept.",
        code="unreachable",
    )


def http_status(error: BaseException | None) -> int | None:
    """Status of the answer that an exception or one of its causes was made of."""
    for one in _causes(error):
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
