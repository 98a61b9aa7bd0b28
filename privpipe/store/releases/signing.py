"""Signing a release, and checking it offline, with nothing but the owner's public key.

Beside the release lie two small files. ``SHA256SUMS`` has the SHA-256 of every stored object, as
``sha256sum`` writes it. ``statement.json`` is a DSSE envelope around an in-toto statement, signed
with Ed25519. The statement is the digest of that list, and what the release says of its
configuration, code, audit and account. One bit changed anywhere changes the list, and the list is
signed. So a stranger finds it with ``sha256sum`` and any library that knows Ed25519, without raw
records and without our stores.
"""

import base64
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from zarr.storage import LocalStore

from privpipe.errors import FormatError, IncompleteReleaseError, OptionError, StoreError, printable
from privpipe.store.access import generation_log, objects
from privpipe.store.access.location import explain_file_error, local_path, shown
from privpipe.store.arrays.layout import Header, companion_url, read_kind
from privpipe.store.releases import published, release_dataset

SUMS, STATEMENT = "SHA256SUMS", "statement.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://privpipe.dev/release/v1"

STATED = (
    *("run", "generation", "n_records", "method", "options_sha256", "source_digest"),
    *("training_digest", "model_digest", "versions", "audit", "account", "started", "published"),
)
"""What of the header the statement repeats: all of it is in the release itself, and public."""


K = TypeVar("K", Ed25519PrivateKey, Ed25519PublicKey)


@dataclass(frozen=True)
class Signed:
    """What a signature says.

    Parameters
    ----------
    keyid
        SHA-256 of the public key, raw, in hexadecimal.
    signed
        When, by the clock of who signed (ISO 8601, UTC).
    n_objects
        How many stored objects it covers.
    release
        What the release says of itself.
    """

    keyid: str
    signed: str
    n_objects: int
    release: Mapping[str, Any]


def signature_url(url: str) -> str:
    """Folder of a release's signature.

    >>> signature_url("/data/people.zarr")
    '/data/people.signature'
    """
    return companion_url(url, "signature")


def make_signing_key(path: str) -> str:
    """Make an Ed25519 key in a new file, for its owner alone; the public one goes beside it.

    Returns
    -------
    public
        Path of the public key, which readers need.
    """
    public = f"{path.removesuffix('.pem')}.pub"
    for one in (path, public):
        if os.path.lexists(one):
            remedy = "Sign with it, or give another path: a key is never replaced."
            raise OptionError(f"{shown(one)} is there already.", remedy=remedy, code="signing-key")
    key, pem = Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    shared = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    made = list[str]()
    try:
        # Never readable by others, not even between two calls. The public one first: without it
        # the other is no use, and neither is ever replaced.
        for one, mode, content in ((public, 0o644, shared), (path, 0o600, secret)):
            descriptor = os.open(one, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            made.append(one)
            with open(descriptor, "wb") as file:
                file.write(content)
    except OSError as error:
        for one in made:
            os.unlink(one)
        problem = f"{shown(path)} cannot be written ({error.strerror})."
        raise explain_file_error(error, shown(path)) or StoreError(
            problem, remedy="Give a path in a folder that is there.", code="signing-key"
        ) from None
    return public


def sign_release(url: str, key: str, listen: objects.Listener = objects.unheard) -> Signed:
    """Sign a release as it is now; the signature of an earlier generation is replaced.

    Parameters
    ----------
    url
        The release, in one piece or growing. Every byte is checked against its receipt first.
    key
        PEM file of an Ed25519 private key (as ``openssl genpkey -algorithm ed25519`` makes it).
    listen
        Called with how many objects were just read, and how many there are.

    Raises
    ------
    IncompleteReleaseError
        If the release is damaged, or changes while it is read.
    OptionError
        If the file is no such key.
    """
    load = partial(serialization.load_pem_private_key, password=None)
    private = _read_key(key, "private", Ed25519PrivateKey, load)  # type: ignore[type-abstract]
    header = _read_header(url, verify=True)
    found = digest_objects(url, listen)
    # No lock: who signs may have no right to write here. A night's run may have come in between.
    if _read_header(url) != header or "" in found.values():
        problem = f"{shown(url)} changed while it was read."
        raise IncompleteReleaseError(problem, remedy="Sign it again.", code="damaged")
    sums = _write_sums(found)
    signed = datetime.now(UTC).isoformat(timespec="seconds")
    stated = {name: header[name] for name in STATED if name in header}
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": SUMS, "digest": {"sha256": hashlib.sha256(sums).hexdigest()}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"signed": signed, "n_objects": len(found), "release": stated},
    }
    payload = json.dumps(statement, sort_keys=True).encode()
    keyid = _name_key(private.public_key())
    envelope = _write_envelope(payload, private.sign(_encode(payload)), keyid)
    place = signature_url(url)
    # The list first: a kill in between leaves a statement that does not fit it, and is found.
    objects.keep_bytes(place, SUMS, sums)
    objects.keep_bytes(place, STATEMENT, envelope)
    return Signed(keyid, signed, len(found), stated)


def verify_signature(
    url: str, key: str, *, after: str | None = None, listen: objects.Listener = objects.unheard
) -> Signed:
    """Check every object of a release against what its owner signed.

    Parameters
    ----------
    url
        The release; its signature lies beside it.
    key
        PEM file of the owner's public key, got on another way than the release.
    after
        The signature must be younger (ISO 8601): who replays an older release with its own, sound
        signature is found by nothing else.
    listen
        As `sign_release`.

    Raises
    ------
    FormatError
        If the signature is missing, not by this key, not of this release, or too old.
    IncompleteReleaseError
        If objects differ, are missing, or are there though no one signed them.
    """
    load = serialization.load_pem_public_key
    public = _read_key(key, "public", Ed25519PublicKey, load)  # type: ignore[type-abstract]
    store = objects.open_store(signature_url(url), read_only=True)
    sums, envelope = (objects.read_bytes(store, name) for name in (SUMS, STATEMENT))
    if sums is None or envelope is None:
        read_kind(url)  # says so where no release is, and its owner can sign none
        raise _unsigned(url, "has no signature beside it", "Its owner signs it with privpipe sign.")
    stated = _open_envelope(url, envelope, public)
    digest = {"name": SUMS, "digest": {"sha256": hashlib.sha256(sums).hexdigest()}}
    if stated["subject"] != [digest]:
        raise _unsigned(url, f"has another {SUMS} than was signed", _AGAIN)
    made = Signed(_name_key(public), **stated["predicate"])
    if after is not None and _read_time(made.signed) <= _read_time(after):
        raise _unsigned(url, f"was signed at {made.signed}, not after {after}", _AGAIN)
    signed = {line[66:]: line[:64] for line in sums.decode().splitlines()}
    _compare(url, signed, digest_objects(url, listen))
    return made


_AGAIN = "Get release and signature again from their owner."


def _unsigned(url: str, how: str, remedy: str) -> FormatError:
    return FormatError(f"{shown(url)} {how}.", remedy=remedy, code="signature")


def _compare(url: str, signed: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Raise IncompleteReleaseError unless both have the same objects with the same digests."""
    missing = sorted(signed.keys() - found.keys())
    strange = sorted(found.keys() - signed.keys())
    differs = sorted(name for name in signed.keys() & found.keys() if signed[name] != found[name])
    if problem := next(iter(differs + missing + strange), ""):
        raise IncompleteReleaseError(
            f"Of {shown(url)} {len(differs)} objects differ from what was signed, {len(missing)} "
            f"are missing, and {len(strange)} were not signed (first: {shown(problem)}).",
            remedy=f"{_AGAIN} A release that has grown is signed anew.",
            code="damaged",
        )


def digest_objects(url: str, listen: objects.Listener = objects.unheard) -> dict[str, str]:
    """SHA-256 of every stored object of a release, by key; memory for digests alone."""
    if local_path(url) is not None:
        objects.check_no_links(url, remedy=f"Remove it. {_AGAIN}")
    store = objects.open_store(url, read_only=True)
    # With what looks unfinished: under such a name anything could be added.
    keys, found = objects.list_keys(store, unfinished=True), dict[str, str]()
    for start in range(0, len(keys), objects.MOST_AT_ONCE):
        some = keys[start : start + objects.MOST_AT_ONCE]
        found |= _digest(store, some)
        listen(len(some), len(keys))
    return found


def _digest(store: Any, keys: Sequence[str]) -> dict[str, str]:
    if isinstance(store, LocalStore):  # a file in pieces: chunks may be larger than memory is left
        root = str(store.root)  # pathlib takes longer over a name than the digest of a small file
        return {key: _digest_file(f"{root}/{key}") for key in keys}
    read = objects.read_many(store, keys)
    return {key: hashlib.sha256(content).hexdigest() for key, content in read.items()}


def _digest_file(path: str) -> str:
    try:
        with open(path, "rb", buffering=0) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:  # removed since it was listed: by no digest is it what was signed
        return ""


def _write_sums(found: Mapping[str, str]) -> bytes:
    """The digests as ``sha256sum --check`` reads them, in the order of their names."""
    for key in found:
        # A line break in a name would be a line of its own, which says something of another object.
        if printable(key, keep="") != key or "\\" in key:
            problem = f"The release holds the object {printable(key, keep='')!r}."
            remedy = "It is not of privpipe: remove it, then sign again."
            raise FormatError(problem, remedy=remedy, code="damaged")
    return "".join(f"{found[key]}  {key}\n" for key in sorted(found)).encode()


def _encode(payload: bytes) -> bytes:
    """What is signed: the pre-authentication encoding of DSSE 1.0, so that no type is mistaken."""
    return f"DSSEv1 {len(PAYLOAD_TYPE)} {PAYLOAD_TYPE} {len(payload)} ".encode() + payload


def _write_envelope(payload: bytes, signature: bytes, keyid: str) -> bytes:
    signed = {"keyid": keyid, "sig": base64.b64encode(signature).decode()}
    body = base64.b64encode(payload).decode()
    envelope = {"payloadType": PAYLOAD_TYPE, "payload": body, "signatures": [signed]}
    return json.dumps(envelope, indent=1).encode()


def _open_envelope(url: str, content: bytes, public: Ed25519PublicKey) -> dict[str, Any]:
    """The statement, whose signature was checked before a byte of it is believed."""
    try:
        envelope = json.loads(content)
        payload = base64.b64decode(envelope["payload"])
        signature = base64.b64decode(envelope["signatures"][0]["sig"])
        public.verify(signature, _encode(payload))
    except InvalidSignature:
        problem, remedy = "was not signed with this key", "Check that the key is its owner's."
    except (ValueError, LookupError, TypeError, RecursionError):
        problem, remedy = "has a signature that cannot be read", _AGAIN
    else:
        # Of base64 and JSON the same content has many spellings; one is ours, no bit of it free.
        problem, remedy = "has a signature that was changed", _AGAIN
        if content == _write_envelope(payload, signature, _name_key(public)):
            stated = json.loads(payload)
            if stated.get("predicateType") == PREDICATE_TYPE:
                return dict(stated)
            problem = "has the signature of something else"
    raise _unsigned(url, problem, remedy)


def _read_header(url: str, *, verify: bool = False) -> Header:
    if read_kind(url) == generation_log.FORMAT:
        return release_dataset.check_generation(url, verify=verify)[0]
    return published.check_release(url, verify=verify)


def _read_time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        remedy = "Give it as 2026-11-23T02:00:00+00:00."
        raise OptionError(f"{shown(text)!r} is no time.", remedy=remedy, code="time") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _name_key(public: Ed25519PublicKey) -> str:
    return hashlib.sha256(public.public_bytes_raw()).hexdigest()


def _read_key(path: str, what: str, kind: type[K], load: Callable[[bytes], object]) -> K:
    """A key of a PEM file; its content is in no message."""
    try:
        key = load(Path(path).read_bytes())
        if isinstance(key, kind):
            return key
        problem = f"is a {what} key of another kind than Ed25519"
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        problem = f"cannot be read as a {what} key ({type(error).__name__})"
    remedy = "privpipe sign RELEASE --key FILE.pem --new-key makes one, and a public one."
    if what == "public":
        remedy = "Get the public key from the release's owner: privpipe sign made it as FILE.pub."
    raise OptionError(f"{shown(path)} {problem}.", remedy=remedy, code="signing-key")
