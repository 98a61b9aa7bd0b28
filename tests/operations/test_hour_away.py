"""Prefect's server is away for an hour of a simulated clock: neither its worker nor a run gives up.

Prefect's own loop and its own client are what waits; only `anyio.sleep` is exchanged, and the
network, which refuses each connection until the hour is over. That a run's own attempts wait out an
hour is tested in `test_refused_places`, that a lease does in `tests/store/test_remote.py`. What
Prefect's server forgets in an hour is in `test_deploy_files`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import httpx
import pytest
import yaml
from prefect.client import base
from prefect.client.orchestration import get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_CLIENT_MAX_RETRIES,
    PREFECT_CLIENT_RETRY_JITTER_FACTOR,
    PREFECT_WORKER_HEARTBEAT_SECONDS,
    PREFECT_WORKER_QUERY_SECONDS,
    temporary_settings,
)
from prefect.utilities import services
from prefect.utilities.math import lower_clamp_multiple
from prefect.workers.base import BaseWorker

from tests.operations.deploy_words import DEPLOY, read_compose, read_kubernetes, read_units

HOUR = 3_600.0
SETTINGS = {
    "PREFECT_CLIENT_MAX_RETRIES": PREFECT_CLIENT_MAX_RETRIES,
    "PREFECT_CLIENT_RETRY_JITTER_FACTOR": PREFECT_CLIENT_RETRY_JITTER_FACTOR,
}
WORKERS: dict[str, Callable[[Path], dict[str, str]]] = {
    "compose": lambda _: read_compose()["runs"][1],
    "kubernetes": lambda _: read_kubernetes()["runs"][1],
    "systemd": lambda folder: read_units(folder)["runs"][1],
}


class Away(httpx.AsyncBaseTransport):
    """A server that answers once, then refuses each connection until a time.

    Parameters
    ----------
    until
        Of the simulated clock, seconds.
    """

    def __init__(self, until: float) -> None:
        self.until, self.now, self.asked = until, 0.0, list[float]()

    async def sleep(self, seconds: float) -> None:
        """In the place of `anyio.sleep`."""
        self.now += seconds

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(self.now)
        if 0.0 < self.now < self.until:
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(200, json=[], request=request)


async def serve(away: Away, interval: float, after: float) -> None:
    """Prefect's loop of a worker, with its own client and numbers, until it has been answered."""
    [backoff] = set(re.findall(r"backoff=(\d+)", inspect.getsource(BaseWorker.start)))

    class AnsweredError(Exception):
        """The end of the test."""

    async with get_client(httpx_settings={"transport": away}) as client:
        await client._client.get("/hello")  # at its start the server was there

        async def look() -> None:
            await client._client.get("/hello")
            if away.now > after:
                raise AnsweredError

        away.now = 1.0
        try:
            await services.critical_service_loop(
                look, interval, jitter_range=0.3, backoff=int(backoff), printer=lambda *_: None
            )
        except AnsweredError:
            return


def play(given: dict[str, str], monkeypatch: pytest.MonkeyPatch, interval: float) -> Away:
    away = Away(HOUR)
    monkeypatch.setattr(anyio, "sleep", away.sleep)
    wanted = {SETTINGS[name]: text for name, text in given.items() if name in SETTINGS}
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api", **wanted}):
        asyncio.run(serve(away, interval, HOUR))
    return away


@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.parametrize("turn", range(5))  # pauses are drawn
def test_worker__of_the_files_outlives_an_hour_and_is_soon_back(
    kind: str, turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that ends takes its run along: it is the first process of unit and container."""
    given = WORKERS[kind](tmp_path)
    for setting in (PREFECT_WORKER_QUERY_SECONDS, PREFECT_WORKER_HEARTBEAT_SECONDS):
        away = play(given, monkeypatch, setting.value())
        assert away.asked[-1] >= HOUR
        assert away.asked[-1] < HOUR + 600, "minutes after the server is back"


def test_worker__without_the_variable_ends_within_the_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files were without it; Prefect's defaults give up after some twenty minutes."""
    with pytest.raises(RuntimeError, match="exceeded error threshold"):
        play({}, monkeypatch, PREFECT_WORKER_QUERY_SECONDS.value())


def test_run__asks_for_more_than_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request of a run that is under way, whose variables are those of prefect.yaml.

    Drawn pauses add up to less than an hour for one request in seventy.
    """
    shortest = lambda mean, factor: mean * lower_clamp_multiple(1 + factor)  # noqa: E731
    monkeypatch.setattr(base, "clamped_poisson_interval", shortest)
    given = yaml.safe_load((DEPLOY / "prefect.yaml").read_text())["definitions"]["env"]
    away = Away(HOUR)
    monkeypatch.setattr(anyio, "sleep", away.sleep)

    async def ask() -> int:
        async with get_client(httpx_settings={"transport": away}) as client:
            await client._client.get("/hello")
            away.now = 1.0
            return (await client._client.get("/hello")).status_code

    wanted = {SETTINGS[name]: text for name, text in given.items() if name in SETTINGS}
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api", **wanted}):
        assert asyncio.run(ask()) == httpx.codes.OK
    assert away.now >= HOUR
