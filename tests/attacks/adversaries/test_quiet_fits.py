"""Fits in several threads: none hears another's warning, and all is as before at the end."""

from __future__ import annotations

import threading
import warnings

import pytest
from sklearn.exceptions import ConvergenceWarning

from privpipe.attacks.adversaries.problem import QUIET


def test_quiet__holds_until_the_last_thread_has_left() -> None:
    before = list(warnings.filters)
    inside, first_left, errors = threading.Event(), threading.Event(), []

    def stay() -> None:
        with QUIET:
            inside.set()
            first_left.wait(30)
            try:
                warnings.warn("stopped short", ConvergenceWarning, stacklevel=1)
            except ConvergenceWarning as error:
                errors.append(error)

    thread = threading.Thread(target=stay)
    with QUIET:
        thread.start()
        assert inside.wait(30)
    first_left.set()
    thread.join(30)
    assert not errors
    assert warnings.filters == before
    with pytest.raises(ConvergenceWarning):
        warnings.warn("outside", ConvergenceWarning, stacklevel=1)


def test_quiet__leaves_other_warnings_alone() -> None:
    with QUIET, pytest.raises(UserWarning):
        warnings.warn("something else", UserWarning, stacklevel=1)
