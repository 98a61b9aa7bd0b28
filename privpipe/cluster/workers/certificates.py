"""Who may speak and who answers: a cluster's certificates, and the owners of this machine's ports.

A cluster has an authority of its own, and one certificate each for its three parts.

Whoever holds a certificate of the authority may speak to the scheduler, and so run code on the
workers. So keys are files of mode 0600 in a folder of mode 0700, and each cluster has its own
authority.

Loopback is shared, so who listens there is checked before each connection. While the scheduled
Prefect server or a scheduler of Dask is down, another user can listen at its port. Whoever connects
then gives a password away or runs what is answered. Linux says whose a listening socket is
(proc(5), /proc/net/tcp); other systems do not say, and there nothing is checked. TLS with
certificates, as in deploy/RUNBOOK.md, needs no such check.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from privpipe.errors import ClusterError, FormatError, OptionError
from privpipe.store.access.location import local_path, shown

PARTS = ("scheduler", "worker", "client")
AUTHORITY = "authority"
AUTHORITY_DAYS = 3650
LOCAL = ("localhost", "127.0.0.1", "::1")
SKEW = timedelta(minutes=5)
"""Clocks of machines differ: a certificate holds from a little before it was made."""


@dataclass(frozen=True)
class CertificateState:
    """A certificate as its file says it.

    Parameters
    ----------
    path
        Its file.
    expires
        UTC.
    hosts
        Names and addresses that it is for.
    ours
        Whether the authority beside it has signed it.
    private
        Whether no one but its owner can read the key beside it.
    """

    path: Path
    expires: datetime
    hosts: tuple[str, ...]
    ours: bool
    private: bool

    def days_left(self, now: datetime | None = None) -> float:
        """Days until it expires; negative once it has."""
        return (self.expires - (now or datetime.now(UTC))) / timedelta(days=1)


def make_certificates(
    folder: str | Path, hosts: Sequence[str] = (), days: int = 90, *, renew: bool = False
) -> list[CertificateState]:
    """Make an authority and certificates for scheduler, worker and client.

    Parameters
    ----------
    folder
        Made with mode 0700. An authority that is there signs; it is never replaced.
    hosts
        Names and addresses of the scheduler and the workers, beside this machine's own.
    days
        How long the certificates hold; the authority holds ten years.
    renew
        Replace certificates that are there, with the hosts they had when none are named.

    Raises
    ------
    OptionError
        If there are certificates already and `renew` is not set, or `days` is below 1.
    """
    if not 1 <= days <= AUTHORITY_DAYS:
        problem = f"Certificates of {days} days are requested."
        raise OptionError(problem, remedy=f"Give --days from 1 to {AUTHORITY_DAYS}.")
    path = local_path(os.fspath(folder))
    if path is None or (os.path.exists(path) and not os.path.isdir(path)):
        problem = f"{shown(os.fspath(folder))} is no folder of this machine."
        raise OptionError(problem, remedy="Name a local folder.", code="place")
    place = Path(path)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    # mkdir leaves the mode of a folder that was there.
    place.chmod(0o700)
    there = [part for part in PARTS if (place / f"{part}.pem").exists()]
    if there and not renew:
        remedy = "Add --renew to replace them by new ones of the same authority."
        raise OptionError(f"{place} holds certificates already.", remedy=remedy, code="exists")
    names = list(hosts)
    if not hosts and there:
        names = list(read_certificate(place, there[0]).hosts)
    key, authority = _take_authority(place)
    for part in PARTS:
        private = ec.generate_private_key(ec.SECP256R1())
        signed = _build(f"privpipe {part}", private.public_key(), days, authority, key, names)
        _write(place, part, private, signed)
    return [read_certificate(place, part) for part in PARTS]


def read_certificate(folder: str | Path, part: str) -> CertificateState:
    """What a certificate of the folder is, and whether it is one of its authority.

    Raises
    ------
    FormatError
        If a file is missing or no certificate.
    """
    place = Path(folder)
    path = place / f"{part}.pem"
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        authority = x509.load_pem_x509_certificate((place / f"{AUTHORITY}.pem").read_bytes())
        mode = (place / f"{part}.key").stat().st_mode
    except (OSError, ValueError) as error:
        problem = f"The certificate {path} or its key cannot be read ({type(error).__name__})."
        remedy = "Make new ones: privpipe certs FOLDER --renew."
        raise FormatError(problem, remedy=remedy, code="certificate") from None
    try:
        found.verify_directly_issued_by(authority)
        ours = True
    except (ValueError, TypeError, InvalidSignature):
        ours = False
    until, hosts = found.not_valid_after_utc, _hosts_of(found)
    return CertificateState(path, until, hosts, ours, not mode & 0o077)


def check_client_certificate() -> None:
    """Refuse to connect by a certificate that no one will take.

    Looks at what Dask's configuration names, where it lies as `make_certificates` made it.

    Raises
    ------
    ClusterError
        If it has expired, or another authority signed it.
    """
    given = Path(str(dask.config.get("distributed.comm.tls.client.cert", None) or ""))
    # Certificates of a company have their own rules, and are not judged here.
    if given.name != "client.pem" or not (given.parent / f"{AUTHORITY}.pem").exists():
        return
    state = read_certificate(given.parent, "client")
    if state.ours and state.days_left() > 0:
        return
    problem = f"expired on {state.expires:%Y-%m-%d}" if state.ours else "is of another authority"
    raise ClusterError(
        f"The certificate {given} {problem}.",
        remedy=f"privpipe certs {given.parent} --renew; then copy the new ones to the machines of "
        "the cluster, and start scheduler and workers again."
        if state.ours
        else "Take the client's certificate and key from the folder of the cluster's authority.",
        code="certificate",
    )


def _hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return tuple(str(name.value) for name in names)


def _take_authority(place: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """The authority of the folder, made when there is none."""
    key_file, file = place / f"{AUTHORITY}.key", place / f"{AUTHORITY}.pem"
    if key_file.exists():
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise FormatError(f"{key_file} is no key of this command.", remedy="Use a new folder.")
        return key, x509.load_pem_x509_certificate(file.read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _build("privpipe authority", key.public_key(), AUTHORITY_DAYS, None, key, ())
    _write(place, AUTHORITY, key, certificate)
    return key, certificate


def _build(
    name: str,
    public: ec.EllipticCurvePublicKey,
    days: int,
    authority: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
) -> x509.Certificate:
    """A certificate of the authority, or the authority's own where that is None."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    is_authority = authority is None
    now = datetime.now(UTC)
    usage = dict.fromkeys(
        "content_commitment key_encipherment data_encipherment key_agreement encipher_only "
        "decipher_only".split(),
        False,
    )
    # Only the authority may sign: a worker's certificate must not make others.
    usage |= {"digital_signature": True, "key_cert_sign": is_authority, "crl_sign": is_authority}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if authority is None else authority.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), True)
        .add_extension(x509.KeyUsage(**usage), True)
    )
    others: list[x509.ExtensionType] = [x509.SubjectKeyIdentifier.from_public_key(public)]
    if not is_authority:
        # Dask's workers and nannies serve and connect with one certificate.
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [_general_name(host) for host in dict.fromkeys((*LOCAL, *hosts))]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
        others = [x509.SubjectAlternativeName(names), x509.ExtendedKeyUsage(both), issuer]
    for extension in others:
        builder = builder.add_extension(extension, False)
    return builder.sign(signer, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    with suppress(ValueError):
        return x509.IPAddress(ip_address(host))
    try:
        return x509.DNSName(host)
    except ValueError:
        problem = f"{host!r} is no name of a host."
        raise OptionError(problem, remedy="Give names and addresses by comma.") from None


def _write(place: Path, name: str, key: ec.EllipticCurvePrivateKey, made: x509.Certificate) -> None:
    """Both files, each whole or not there; readers of the former pair are not disturbed."""
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = made.public_bytes(serialization.Encoding.PEM)
    for suffix, content in (("key", secret), ("pem", public)):
        temporary = place / f".{name}.{suffix}.new"
        temporary.unlink(missing_ok=True)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        temporary.rename(place / f"{name}.{suffix}")


TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENS = "0A"
TRUSTED = "PRIVPIPE_TRUSTED_UIDS"

_guarded: set[int] = set()


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def guard_address(url: str) -> None:
    """Restrict connections of this process to a plain address of this machine to trusted listeners.

    From now on it connects to the port only while its owner, root or a user of
    ``PRIVPIPE_TRUSTED_UIDS`` listens there.

    Parameters
    ----------
    url
        With a port. One beyond this machine, or with TLS, needs no such check.

    Raises
    ------
    OptionError
        If somebody else listens there now.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "tcp") or not is_loopback(parts.hostname or ""):
        return
    port = parts.port or 80
    check_listener(port)
    # The hook sees every connection of this process: only these ports are looked at.
    _guarded.add(port)
    _watch_connections()


@cache
def _watch_connections() -> None:
    sys.addaudithook(_look)  # once: a hook stays for the life of the process


def check_listener(port: int) -> None:
    """Refuse a port of this machine at which somebody else listens.

    Raises
    ------
    OptionError
        With the number of the user.
    """
    strangers = find_owners(port) - _trusted()
    if strangers:
        raise OptionError(
            f"Port {port} of this machine belongs to another user (uid "
            f"{', '.join(map(str, sorted(strangers)))}), who would get the password.",
            remedy="Start your own server there, or use https:// with a certificate (deploy/"
            f"RUNBOOK.md); if that user runs it for you, name them: {TRUSTED}=UID.",
            code="foreign-server",
        )


def find_owners(port: int) -> set[int]:
    """Users whose sockets listen at a port of any address of this machine; empty if unknown."""
    return {uid for uid, number in _list_listeners() if number == port}


def _list_listeners() -> Iterator[tuple[int, int]]:
    for table in TABLES:
        with suppress(OSError):  # no Linux, or no IPv6
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENS:
                    yield int(fields[7]), int(fields[1].rpartition(":")[2], 16)


def _trusted() -> set[int]:
    named = os.environ.get(TRUSTED, "").replace(",", " ").split()
    return {0, os.geteuid(), *(int(uid) for uid in named if uid.isdecimal())}


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: the moment before a socket connects, whichever library it belongs to."""
    if event != "socket.connect":
        return
    address = arguments[1]
    if not (isinstance(address, tuple) and len(address) >= 2 and address[1] in _guarded):
        return
    if is_loopback(str(address[0])):
        check_listener(int(address[1]))
