"""The pages of a cluster: runs on them, answered on this machine, by certificate, or nowhere.

The dashboard has no login. On this machine it speaks plain http, or https where Dask's
configuration names a certificate (``distributed.scheduler.dashboard.tls``). Beyond this machine it
speaks https alone, and to clients alone that show a certificate of the authority. The same lets
them speak to the scheduler, so no one sees more than they could do already. Of a cluster that a run
starts, workers and nannies serve no pages; those of the scheduler lie behind a path that cannot be
guessed.

A scheduler that privpipe starts, or that is started with `deploy/preload.py`, has the pages
/privpipe and, in the menu of Dask's pages, /individual-privpipe-runs. The dashboard's own bars show
only the tasks in flight.
"""

import hmac
import os
import ssl
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dask
from distributed import Scheduler, Worker
from distributed.http.utils import RequestHandler
from tornado.routing import Matcher, Rule, RuleRouter
from tornado.template import Template

from privpipe.cluster.workers.certificates import is_loopback
from privpipe.cluster.workers.processes import NoSpans, prepare_process
from privpipe.cluster.workers.progress import PLUGIN, Progress, ShowProgress
from privpipe.errors import ClusterError, OptionError, PrivpipeError

OFF = "off"
"""In the place of an address: nothing is served."""

SECURE = "https://"

_LARGEST_PORT = 65_535
_TLS = "distributed.scheduler.dashboard.tls"


def check_dashboard(address: str) -> None:
    """Refuse an address that is neither ``host:port`` of this machine, nor https, nor off.

    Raises
    ------
    OptionError
        If the host is another one, an interface that others reach, or missing (which would be all
        interfaces), without https. If it is https and Dask's configuration names no certificate,
        key or authority.
    """
    if address == OFF:
        return
    host, _, port = address.removeprefix(SECURE).rpartition(":")
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
        self.extensions["spans"] = NoSpans(self)

    def start_http_server(self, *args: Any, **kwargs: Any) -> None:
        """Serve, with the guard before everything that Dask and Bokeh add to the server."""
        super().start_http_server(*args, **kwargs)  # type: ignore[no-untyped-call]
        guard_pages(self)
        # No request is handled before this returns: it runs on the thread of the event loop.
        rule = Rule(_BelowPath(self._guarded_prefix), self.http_application)
        self.http_server.request_callback = RuleRouter([rule])


class PagelessScheduler(Scheduler):
    """A scheduler that serves no pages."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.extensions["spans"] = NoSpans(self)

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
        problem = "The local cluster could not be closed to other users of this machine."
        remedy = "Install the versions of constraints.txt."
        raise ClusterError(problem, remedy=remedy, code="open-cluster")


def prepare_server(server: Any) -> None:
    """Prepare the process of a scheduler or worker that is about to serve, or end it.

    Dask only logs what a preload raises, and continues: a server that is refused must not serve.
    """
    is_worker = isinstance(server, Worker)
    try:
        prepare_process(is_worker=is_worker)
        if is_worker:
            close_pages(server)
        else:
            guard_pages(server)
            server.extensions["spans"] = NoSpans(server)
    except PrivpipeError as error:
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        sys.stderr.flush()
        # sys.exit would be an exception that Dask logs before it serves all the same.
        os._exit(error.exit_code)


# Tornado escapes all that is filled in.
TABLE = Template(Path(__file__).with_name("runs.html").read_text("utf-8"))
PAGE = """<!doctype html>
<title>privpipe</title>
<style>body { font-family: sans-serif } td, th { padding: 2px 14px 2px 0; text-align: left }</style>
"""


def draw_runs(plugin: ShowProgress | None) -> str:
    """The table of runs, as HTML; without a row before the first driver has connected."""
    heads = Progress().describe()
    if plugin is None:
        return TABLE.generate(runs=[], heads=heads, workers="no", memory=0, lost=0).decode()
    return TABLE.generate(
        runs=plugin.list_runs(),
        heads=heads,
        workers=len(plugin.scheduler.workers),
        memory=round(100 * max(plugin.measure_memory().values(), default=0.0)),
        lost=plugin.lost_workers,
    ).decode()


class ProgressPage(RequestHandler):
    """The page /privpipe: runs in words for people."""

    def get(self) -> None:
        """Answer."""
        # As often as the driver reports, about: more would show nothing new.
        self.set_header("Refresh", "1")
        self.finish(PAGE + draw_runs(self.server.plugins.get(PLUGIN)))


class ProgressDocument(RequestHandler):
    """The same as JSON."""

    def get(self) -> None:
        """Answer."""
        plugin = self.server.plugins.get(PLUGIN)
        runs: Iterable[Progress] = plugin.list_runs() if plugin else ()
        self.write({"runs": [asdict(run) | {"age": round(run.age, 1)} for run in runs]})


routes: list[tuple[str, type, dict[str, Any]]] = [
    ("privpipe", ProgressPage, {}),
    ("privpipe.json", ProgressDocument, {}),
]
"""What `distributed` serves of a module that its configuration names."""


def show_in_dashboard(scheduler: Any, extra: Mapping[str, Any], doc: Any) -> None:
    """The table as one of Dask's own pages, below its menu, drawn anew each second."""
    from bokeh.models.widgets import Div
    from distributed.dashboard.components.scheduler import env

    table = Div(text=draw_runs(scheduler.plugins.get(PLUGIN)), sizing_mode="stretch_width")
    doc.title = "privpipe"
    doc.add_root(table)
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)

    def draw() -> None:
        table.text = draw_runs(scheduler.plugins.get(PLUGIN))

    doc.add_periodic_callback(draw, 1000)


def add_page() -> None:
    """Let schedulers that start after this show the pages."""
    listed = list(dask.config.get("distributed.scheduler.http.routes"))
    if __name__ not in listed:
        dask.config.set({"distributed.scheduler.http.routes": [*listed, __name__]})
    with suppress(ImportError):  # without bokeh there is no menu
        from distributed.dashboard.scheduler import applications

        # Dask lists what is named individual-... in its menu "More".
        applications["/individual-privpipe-runs"] = show_in_dashboard
