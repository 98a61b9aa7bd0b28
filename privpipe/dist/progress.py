"""What a long stage tells its watcher: records done, and that nothing moves."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Receives what happens; implemented by the command's bar and by Prefect's artifact."""

    def start(self, stage: str, n_records: int) -> None:
        """A stage begins that will handle so many records."""
        ...

    def advance(self, n_records: int) -> None:
        """So many more records are done."""
        ...

    def stalled(self, seconds: float, n_workers: int) -> None:
        """Nothing was done for so long; so many workers are connected."""
        ...

    def finish(self) -> None:
        """The stage is done."""
        ...


class Silent:
    """Tells nobody."""

    def start(self, stage: str, n_records: int) -> None:
        """Ignore."""

    def advance(self, n_records: int) -> None:
        """Ignore."""

    def stalled(self, seconds: float, n_workers: int) -> None:
        """Ignore."""

    def finish(self) -> None:
        """Ignore."""
