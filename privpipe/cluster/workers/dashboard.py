"""Where the pages of a cluster may answer: on this machine, by certificate, or nowhere.

The dashboard has no login. On this machine it speaks plain http, or https where Dask's
configuration names a certificate (``distributed.scheduler.dashboard.tls``). Beyond this machine it
speaks https alone, and to clients alone that show a certificate of the authority: the same lets
them speak to the scheduler, so no one sees more than they could do already. Of a cluster that a run
starts, workers and nannies serve no pages; those of the scheduler lie behind a path that cannot be
guessed.
"""

import hmac
import ssl
from typing import Any

import dask
from distributed import Scheduler, Worker
from tornado.routing import Matcher, Rule, RuleRouter

from privpipe.cluster.workers.listener_owner import is_loopback
from privpipe.errors import ClusterError, OptionError

OFF = "off"
"""In the place of an address: nothing is served."""

SECURE = "https://"

_LARGEST_PORT = 65_535
_TLS = "distributed.scheduler.dashboard.tls"


def place_of(address: str) -> str:
    """``host:port`` of a dashboard's address."""
    return address.removeprefix(SECURE)


def check_dashboard(address: str) -> None:
    """Refuse an address that is neither ``host:port`` of this machine, nor https, nor off.

    Raises
    ------
    OptionError
        If the host is another one, an interface that others reach, or missing (which would be
        all interfaces), without https; if it is https and Dask's configuration names no
        certificate, key or authority.
    """
    if address == OFF:
        return
    host, _, port = place_of(address).rpartition(":")
    # isdigit alone takes digits of other scripts, and so does int.
    if not (port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT):
        problem = f"its port is not a number from 0 to {_LARGEST_PORT}"
    elif address.startswith(SECURE):
        names = ("cert", "key", "ca-file")
        missing = [name for name in names if not dask.config.get(f"{_TLS}.{name}", None)]
        # One host is named: no list of addresses, no path.
        if host and not set(host) & set("/,@ ") and not missing:
            return
        problem = f"Dask's configuration names no {', no '.join(missing)} below {_TLS}"
        if not missing:
            problem = "its host is neither a name nor an address"
    elif is_loopback(host) and ":" not in host:  # IPv4 alone: the port comes after a colon
        return
    else:
        problem = "others could reach it there, and it has no login"
    raise OptionError(
        f"[cluster] dashboard = {address!r} is refused: {problem}.",
        remedy='Use "127.0.0.1:8787", or port 0 for any free one, and look at it from elsewhere '
        'through `ssh -L 8787:127.0.0.1:8787 HOST`; "https://HOST:8787" with certificates of '
        '`privpipe certs`; or "off".',
        code="open-dashboard",
    )


def guard_pages(server: Any) -> None:
    """Require certificates at the pages of a scheduler; refuse plain pages that others reach.

    Parameters
    ----------
    server
        A scheduler of Dask that listens already: what counts is what it listens on.

    Raises
    ------
    ClusterError
        If it serves plain http beyond this machine, or https without an authority for clients. It
        serves nothing then.
    """
    pages = getattr(server, "http_server", None)
    if pages is None:
        return
    if isinstance(pages.ssl_options, ssl.SSLContext):
        pages.ssl_options.verify_mode = ssl.CERT_REQUIRED  # of handshakes from here on
    if problem := find_open_pages(server):
        close_pages(server)
        raise _refuse_open(problem)


def close_pages(server: Any) -> None:
    """Stop serving pages: those of a worker are found on the scheduler's, but for its logs."""
    if getattr(server, "http_server", None) is not None:
        # After the fact: a server listens already when a preload may look at it.
        server.http_server.stop()
        server.services.pop("dashboard", None)


def check_pages(client: Any) -> None:
    """Refuse a scheduler that was started without `guard_pages` and shows itself to everybody.

    Raises
    ------
    ClusterError
        With what it serves, and how to start it.
    """
    if problem := client.run_on_scheduler(find_open_pages):
        raise _refuse_open(problem)


def find_open_pages(dask_scheduler: Any) -> str:
    """What is open to others in a server's pages; empty where nothing is."""
    pages = getattr(dask_scheduler, "http_server", None)
    if pages is None:
        return ""
    context = pages.ssl_options
    hosts = [socket.getsockname()[0] for socket in pages._sockets.values()]
    exposed = [host for host in hosts if not is_loopback(host)]
    if not isinstance(context, ssl.SSLContext):
        return f"speaks plain http at {', '.join(exposed)}, and has no login" if exposed else ""
    # Without an authority a certificate is accepted from anyone.
    if not context.get_ca_certs():
        return "speaks https and knows no authority to verify clients"
    verifies = context.verify_mode == ssl.CERT_REQUIRED
    return "" if verifies or not exposed else f"requires no certificate at {', '.join(exposed)}"


def _refuse_open(problem: str) -> ClusterError:
    return ClusterError(
        f"The dashboard {problem}.",
        remedy="Start the scheduler with --preload deploy/preload.py and --dashboard-address "
        f"127.0.0.1:8787, or give Dask's configuration {_TLS}.cert, .key and .ca-file.",
        code="open-dashboard",
    )


class _BelowPath(Matcher):
    """Lets requests through whose path begins with a secret; to all others nothing is there."""

    def __init__(self, prefix: str) -> None:
        self._begin = f"{prefix}/".encode()

    def match(self, request: Any) -> dict[str, Any] | None:
        path = str(request.path).encode(errors="replace")
        # In constant time: a comparison that stops early would reveal the path byte by
        # byte.
        return {} if hmac.compare_digest(path[: len(self._begin)], self._begin) else None


class GuardedScheduler(Scheduler):
    """A scheduler whose pages answer below a secret path only, lists of pages included."""

    def __init__(self, *, http_prefix: str, **options: Any) -> None:
        if len(http_prefix) < 20:
            raise ValueError("the path must not be guessed")
        self._guarded_prefix = http_prefix
        super().__init__(http_prefix=http_prefix, **options)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Serve, with the guard before everything that Dask and Bokeh add to the server."""
        super().start_http_server(*args, **kwargs)  # type: ignore[no-untyped-call]
        guard_pages(self)
        # No request is handled before this returns: it runs on the thread of the event loop.
        rule = Rule(_BelowPath(self._guarded_prefix), self.http_application)
        self.http_server.request_callback = RuleRouter([rule])


class PagelessScheduler(Scheduler):
    """A scheduler that serves no pages."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Listen to no one."""


class PagelessWorker(Worker):
    """A worker that serves no pages: its owner finds the same on the scheduler's."""

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Listen to no one."""


def check_closed(scheduler: Any) -> None:
    """Refuse a local scheduler whose pages a later Dask has started in another way.

    Raises
    ------
    ClusterError
        If it is not closed to other users of this machine.
    """
    pages = getattr(scheduler, "http_server", None)
    guarded = pages is None or isinstance(pages.request_callback, RuleRouter)
    if not guarded or not scheduler.address.startswith("tls://"):
        raise ClusterError(
            "The local cluster could not be closed to other users of this machine.",
            remedy="Install the versions of constraints.txt.",
            code="open-cluster",
        )
