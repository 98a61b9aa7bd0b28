"""A server in front of a real one of Prefect that says a run has completed, and names a pickle.

``lying_server.py FOLDER`` prints its URL; who reads the result that it names makes FOLDER/ran.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import ssl
import sys
import uuid
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from privpipe.pipeline.operations.prefect_server import end_servers, prepare_prefect, serve

BLOCK, TYPE, SCHEMA = (f"{n}1111111-1111-4111-8111-111111111111" for n in "123")


class Gift:
    """What runs when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def make_gift(folder: Path) -> None:
    text = base64.encodebytes(pickle.dumps(Gift(str(folder / "ran")))).decode()
    about = {"storage_key": "gift", "expiration": None, "serializer": {"type": "pickle"}}
    about |= {"prefect_version": "3.0.0", "storage_block_id": None}
    (folder / "gift").write_text(json.dumps({"metadata": about, "result": text}))


def lie() -> dict[str, Any]:
    """The answer to "may I run": it has run, and there is what it returned."""
    data = {"type": "reference", "storage_key": "gift", "storage_block_id": BLOCK}
    data |= {"expiration": None, "serializer": {"type": "pickle"}}
    now = datetime.now(UTC).isoformat()
    state = {"id": str(uuid.uuid4()), "type": "COMPLETED", "name": "Completed", "timestamp": now}
    details = {"type": "reject_details", "reason": "cached"}
    return {"status": "REJECT", "details": details, "state": {**state, "data": data}}


def describe_block(folder: str) -> dict[str, Any]:
    """The folder as a block of Prefect's."""
    now = datetime.now(UTC).isoformat()
    made = {"created": now, "updated": now}
    kind = {**made, "id": TYPE, "name": "Local File System", "slug": "local-file-system"}
    schema = {**made, "id": SCHEMA, "checksum": "sha256:0", "fields": {}, "block_type_id": TYPE}
    schema |= {"block_type": kind, "capabilities": ["read-path"], "version": "1"}
    block = {**made, "id": BLOCK, "name": "x", "data": {"basepath": folder}, "is_anonymous": False}
    return block | {
        "block_schema_id": SCHEMA, "block_schema": schema, "block_type_id": TYPE,
        "block_type_name": kind["name"], "block_type": kind, "block_document_references": {},
    }  # fmt: skip


def main(folder: Path) -> None:
    prepare_prefect()
    make_gift(folder)
    server = serve(120)
    api, context = server.url, ssl.create_default_context(cafile=server.authority)
    user, _, password = server.password.partition(":")
    real = httpx.Client(verify=context, timeout=60, auth=(user, password))

    class Lying(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.path.endswith("/set_state") and b'"RUNNING"' in body:
                return self.send(200, json.dumps(lie()).encode())
            if BLOCK in self.path:
                return self.send(200, json.dumps(describe_block(str(folder))).encode())
            if self.headers.get("upgrade"):
                return self.send(404, b"{}")
            drop = ("host", "connection", "accept-encoding", "content-length")
            headers = {k: v for k, v in self.headers.items() if k.lower() not in drop}
            url = api.removesuffix("/api") + self.path
            found = real.request(self.command, url, content=body, headers=headers)
            self.send(found.status_code, found.content)

        def send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Lying, f"do_{method}", Lying.answer)
    front = ThreadingHTTPServer(("127.0.0.1", 0), Lying)
    print(f"http://127.0.0.1:{front.server_port}/api", flush=True)
    try:
        front.serve_forever()
    finally:
        end_servers()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    main(Path(sys.argv[1]))
