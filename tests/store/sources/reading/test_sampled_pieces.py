"""Which bytes of a text are looked at: from all of it, and none twice."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from privpipe.store.sources.reading.dialect import take_bytes


def write_keys(n: int) -> bytes:
    return b"".join(b"%09d,%s\n" % (k, b"x" * 90) for k in range(n))


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("n", [10, 2_700, 3_300, 4_000, 6_000, 8_000, 12_000, 14_000, 60_000])
def test_sample__has_no_line_twice(tmp_path: Path, n: int, is_packed: bool) -> None:
    """A key whose values stood there twice was taken for text or a number, and was released."""
    whole = write_keys(n)
    if is_packed:
        file = pa.CompressedInputStream(pa.BufferReader(gzip.compress(whole, 1)), "gzip")
    else:
        (tmp_path / "keys.csv").write_bytes(whole)
        file = pa.OSFile(str(tmp_path / "keys.csv"))
    keys = [
        line[:9] for piece in take_bytes(file) for line in piece.split(b"\n") if len(line) == 100
    ]
    assert len(set(keys)) == len(keys) > 0
    if n > 2_700:
        assert max(map(int, keys)) == n - 1
        assert np.ptp(np.array(keys, int)) > 0.9 * n
