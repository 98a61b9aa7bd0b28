"""What a busy machine does to drawn examples: slow ones, and other threads that draw numbers."""

from __future__ import annotations

import random
import threading
import time

from hypothesis import given, settings
from hypothesis import strategies as st


def test_given__a_slow_example_is_no_fault():
    @settings(max_examples=2, database=None)
    @given(st.integers())
    def slow(_):
        time.sleep(0.25)

    slow()


def test_given__threads_that_draw_numbers_meanwhile_are_no_fault():
    """Clients and servers of earlier tests draw the jitter of their heartbeats."""
    ended = threading.Event()

    def draw():
        while not ended.is_set():
            random.random()

    thread = threading.Thread(target=draw)
    thread.start()
    try:

        @settings(max_examples=30, database=None)
        @given(st.lists(st.integers(0, 5).map(lambda k: time.sleep(1e-4) or k), max_size=5))
        def drawn(_):
            pass

        drawn()
    finally:
        ended.set()
        thread.join()
