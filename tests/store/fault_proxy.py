"""A proxy before an object store that does what stores and networks do to their clients."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

__all__ = ["Ask", "Fault", "FaultProxy", "run_proxy"]

Kind = Literal["throttle", "lose", "expire", "cut", "reset", "ignore"]


@dataclass(frozen=True)
class Ask:
    """A request as the rules see it."""

    method: str
    path: str
    conditional: bool


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Parameters
    ----------
    kind
        throttle: 503 SlowDown, nothing is done. lose: it is done, and the connection ends without
        an answer. expire: 400 ExpiredToken. cut: it is done, and the answer ends in its middle.
        reset: the connection ends before anything is done. ignore: its condition is left out, as
        by a store that knows none. None: nothing, but for the delay.
    delay
        Seconds before it is handed on.
    """

    kind: Kind | None
    delay: float = 0.0


Rule = Callable[[Ask], Fault | None]


@dataclass
class FaultProxy:
    """A running proxy.

    Parameters
    ----------
    url
        Its address.
    rule
        Asked about each request; None lets all pass.
    seen
        Requests so far, with what was done to them.
    """

    url: str
    rule: Rule | None = None
    seen: list[tuple[Ask, Fault | None]] = field(default_factory=list)

    @contextmanager
    def faulty(self, rule: Rule) -> Iterator[None]:
        """Apply a rule for a while."""
        self.rule = rule
        try:
            yield
        finally:
            self.rule = None

    def count(self, kind: str) -> int:
        """Requests that a kind of fault was done to."""
        return sum(fault is not None and fault.kind == kind for _, fault in self.seen)


def describe(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>m</Message></Error>".encode()


@contextmanager
def run_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Serve before a store at ``host:port`` on the loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self._read_body()
            ask = Ask(self.command, self.path, "If-None-Match" in self.headers)
            fault = proxy.rule(ask) if proxy.rule is not None else None
            proxy.seen.append((ask, fault))
            kind = fault.kind if fault is not None else None
            if fault is not None and fault.delay:
                time.sleep(fault.delay)
            if kind == "reset":
                self._end()
            elif kind == "throttle":
                self._answer(503, [], describe("SlowDown"))
            elif kind == "expire":
                self._answer(400, [], describe("ExpiredToken"))
            else:
                if kind == "ignore":
                    del self.headers["If-None-Match"]
                status, headers, answer = self._forward(body)
                if kind == "lose":
                    self._end()
                else:
                    self._answer(status, headers, answer, cut=kind == "cut")

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        def _read_body(self) -> bytes:
            if "chunked" in self.headers.get("Transfer-Encoding", ""):
                whole = b""
                while length := int(self.rfile.readline().split(b";")[0], 16):
                    whole += self.rfile.read(length)
                    self.rfile.readline()
                self.rfile.readline()
                return whole
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
            connection = http.client.HTTPConnection(upstream, timeout=60)
            try:
                kept = {
                    name: value
                    for name, value in self.headers.items()
                    if name.lower() not in {"transfer-encoding", "connection", "content-length"}
                }
                # A body that was sent in pieces goes on in one; its length is known here.
                if body or self.command in {"PUT", "POST"}:
                    kept["Content-Length"] = str(len(body))
                connection.request(self.command, self.path, body or None, kept)
                answer = connection.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            finally:
                connection.close()

        def _answer(
            self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False
        ) -> None:
            self.send_response_only(status)
            length = str(len(body))
            for name, value in headers:
                if name.lower() == "content-length" and self.command == "HEAD":
                    length = value
                if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                    self.send_header(name, value)
            if status not in {204, 304}:
                self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body[: len(body) // 2] if cut else body)
            if cut:
                self.wfile.flush()
                self._end()

        def _end(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that went away, or a connection that was ended on purpose."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy = FaultProxy(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
