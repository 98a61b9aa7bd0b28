"""The worked examples run as they stand, and show what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import dask.array as da
import numpy as np
import pytest

HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "own_filter.md"


@pytest.mark.parametrize("name", ["convolution.py", "torch_convolution.py", "own_loss.py"])
def test_howto__shows_the_example_that_is_tested(name: str) -> None:
    """Whoever installed privpipe has the page and not the tests."""
    text = (Path(__file__).parent / name).read_text().strip()
    assert f"```python\n{text}\n```" in HOWTO.read_text()


def test_python_use__runs_and_shows_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(Path(__file__).parent / "python_use.py"))
    assert "3000 records of ['monday.parquet', 'tuesday.parquet']" in capsys.readouterr().out
    assert isinstance(found["released"].features.data, da.Array)
    np.testing.assert_allclose(found["clean"], found["cleaner"].apply(found["x"]), atol=1e-12)
    assert found["loss"].max() <= 0.01
    assert found["wanted"] > 0.95
    assert found["attack_raw"] > 0.95
    # Chance is 0.5; with 1,500 test records three standard errors are 0.04.
    assert abs(found["attack_released"] - 0.5) < 0.08
