"""Keys on real Dask workers: equal draws, and no secret in logs, spills or tracebacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from distributed import Client, LocalCluster

from privpipe.store.keyring.keyfiles import KeyBinding
from privpipe.store.keyring.keys import KeyTicket, make_key

BINDING = KeyBinding(source="a" * 64, model="b" * 64, options="c" * 64)
PARTITION = "d" * 64


def draw_words(ticket: KeyTicket) -> list[int]:
    return ticket.open().stream(PARTITION, 5, 3).words("noise", 2).ravel().tolist()


def fail_with(thing: object) -> NoReturn:
    raise RuntimeError("failed on purpose")


def fail_holding(ticket: KeyTicket) -> NoReturn:
    fail_with((ticket.open(), ticket.open().stream(PARTITION, 0, 1)))


@pytest.mark.slow
def test_ticket__draws_on_workers_and_leaves_no_secret_behind(tmp_path: Path):
    folder, spills = tmp_path / "keys", tmp_path / "workers"
    key = make_key("monday", BINDING, folder=folder)
    here = key.stream(PARTITION, 5, 3).words("noise", 2).ravel().tolist()
    with (
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            local_directory=str(spills),
            silence_logs=False,
        ) as cluster,
        Client(cluster) as client,
    ):
        ticket = key.ticket()
        assert client.submit(draw_words, ticket, pure=False).result() == here
        seen = []
        with pytest.raises(RuntimeError, match="on purpose") as caught:
            client.submit(fail_holding, ticket, pure=False).result()
        seen.append(str(caught.getrepr(showlocals=True)))
        seen += [repr(client.get_worker_logs()), repr(client.get_scheduler_logs())]
        files = [path.read_bytes() for path in spills.rglob("*") if path.is_file()]
    # Read only now, so that the tracebacks with locals above cannot show this test's own.
    file = next(tmp_path.rglob("monday.key"))
    secret = str(json.loads(file.read_text())["secret"])
    raw = bytes.fromhex(secret)
    assert "fail_with" in seen[1]  # the worker did log the failure
    assert "secret not shown" in "".join(seen)
    for text in seen:
        assert secret[:16] not in text
        assert repr(raw)[2:12] not in text
    assert not any(raw in content or secret.encode() in content for content in files)
