"""Fits that may stop short of convergence without a warning, in several threads at once."""

from __future__ import annotations

import threading
import warnings


class _Quiet:
    """Within, warnings of scikit-learn that a fit did not converge are ignored.

    `warnings.catch_warnings` belongs to the process: of two threads the one that leaves first
    would undo what the other has set. Here the first to enter sets, and the last to leave undoes.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._n_inside = 0
        self._caught: warnings.catch_warnings[None] | None = None

    def __enter__(self) -> None:
        from sklearn.exceptions import (
            ConvergenceWarning,  # the driver reads this room, and fits nothing
        )

        with self._lock:
            if self._caught is None:
                self._caught = warnings.catch_warnings()
                self._caught.__enter__()
                warnings.simplefilter("ignore", ConvergenceWarning)
            self._n_inside += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._caught is not None and not self._n_inside:
                self._caught.__exit__(None, None, None)
                self._caught = None


QUIET = _Quiet()
"""The process's only one: ``with QUIET: model.fit(...)``."""
