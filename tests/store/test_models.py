"""Models: stored, read, refused when damaged; usable without Dask or Prefect."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privpipe import NullSpaceCleaner, Records, fit_null_space_cleaner, open_model, write_model
from privpipe.errors import FormatError, StoreError
from privpipe.store.models import digest_map
from tests.standard import make_standard


@pytest.fixture
def cleaner() -> NullSpaceCleaner:
    x, variables = make_standard(300)
    targets = np.column_stack([variables["height"], variables["late"]])
    return fit_null_space_cleaner(Records(x, desired=targets), utility_budget=0.1, ridge=1e-6)


def test_open_model__gives_back_the_same_map(tmp_path: Path, cleaner: NullSpaceCleaner) -> None:
    x, _ = make_standard(50)
    url = str(tmp_path / "model.zarr")
    digest = write_model(cleaner, url)
    back = open_model(url)
    assert isinstance(back, NullSpaceCleaner)
    assert digest_map(back) == digest == digest_map(cleaner)
    assert np.array_equal(back.apply(x), cleaner.apply(x))
    np.testing.assert_allclose(back.apply(x[0]), cleaner.apply(x)[0], rtol=1e-12, atol=1e-12)
    assert back.guarantee == cleaner.guarantee


def test_open_model__needs_neither_dask_nor_prefect(
    tmp_path: Path, cleaner: NullSpaceCleaner
) -> None:
    url = str(tmp_path / "model.zarr")
    write_model(cleaner, url)
    code = (
        "import sys, privpipe\n"
        f"privpipe.open_model({url!r}).apply([0.0] * 9)\n"
        "print([n for n in ('dask', 'distributed', 'prefect') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_write_model__never_overwrites(tmp_path: Path, cleaner: NullSpaceCleaner) -> None:
    url = str(tmp_path / "model.zarr")
    write_model(cleaner, url)
    with pytest.raises(StoreError, match="exists"):
        write_model(cleaner, url)


def test_open_model__notices_changed_fields(tmp_path: Path, cleaner: NullSpaceCleaner) -> None:
    root = tmp_path / "model.zarr"
    write_model(cleaner, str(root))
    document = json.loads((root / "zarr.json").read_text())
    document["attributes"]["privpipe"]["fields"]["utility_budget"] = 0.2
    (root / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match="damaged"):
        open_model(str(root))


def test_open_model__notices_every_flipped_bit(tmp_path: Path, cleaner: NullSpaceCleaner) -> None:
    root = tmp_path / "model.zarr"
    write_model(cleaner, str(root))
    chunk = next(path for path in (root / "encoder" / "c").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    for place in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[place] ^= 4
        chunk.write_bytes(bytes(damaged))
        with pytest.raises(FormatError):
            open_model(str(root))


def test_open_model__explains_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="No model can be read"):
        open_model(str(tmp_path / "nothing.zarr"))
