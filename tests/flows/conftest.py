"""Prefect with a home and database of its own for all tests of this room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.prefect_home import SETTINGS


@pytest.fixture(scope="session", autouse=True)
def prefect_home() -> Iterator[None]:
    """A temporary home and server; patient, because a busy machine starts it slowly."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120):
            yield
