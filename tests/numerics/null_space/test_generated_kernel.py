"""The cleaner's loops are text: what is compiled for a small case stands beside this file."""

from __future__ import annotations

from pathlib import Path

from privpipe.numerics.null_space import cleaning_kernel

GOLDEN = Path(__file__).with_name("generated_kernel.txt")


def test_generated_kernel__reads_as_it_did() -> None:
    """Who changes it on purpose looks at the difference, and writes what is printed here."""
    texts = [
        cleaning_kernel.write_kernel(name, n_predictions=2, rank=2, lifted=True)
        for name in ("read", "turn", "shrink", "kernel")
    ]
    written = "\n".join(text.strip() for text in texts) + "\n"
    assert written == GOLDEN.read_text(), written
