"""A factored release: the same records from far fewer bytes, audited and sealed as ever."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privpipe import open_model, open_release
from privpipe.errors import FormatError, OptionError
from privpipe.flows.release_flow import run_pipeline
from privpipe.sanitizers.null_space.linear_cleaner import FactoredCleaner
from tests.flows.test_pipeline import WORKERS, configure, read_findings
from tests.oracles import exact_loss
from tests.standard import make_standard, write_standard


def measure_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "features").rglob("*") if path.is_file())


@pytest.mark.slow
def test_run_pipeline__releases_factored_what_it_releases_dense(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, _ = make_standard(600)
    found = {}
    for layout, cluster in (("dense", "workers = 0"), ("factored", WORKERS)):
        folder = tmp_path / layout
        folder.mkdir()
        write_standard(str(folder / "records.zarr"), 600, chunk_rows=200, dtype="float32")
        monkeypatch.setenv("PRIVPIPE_RELEASE__LAYOUT", layout)
        run_pipeline(configure(folder, cluster=cluster))
        release = open_release(str(folder / "release.zarr"), verify=True)
        assert release.attrs["privpipe"]["layout"] == layout
        found[layout] = release, read_findings(folder), measure_bytes(folder / "release.zarr")
    dense, factored = (found[layout][0].features for layout in ("dense", "factored"))
    assert dense.dtype == factored.dtype == np.float32
    assert dense.dims == factored.dims
    assert dense.chunks == factored.chunks
    np.testing.assert_allclose(factored.values, dense.values, rtol=1e-6, atol=1e-6)
    fitted = open_model(str(tmp_path / "factored" / "release.model.zarr"))
    assert isinstance(fitted, FactoredCleaner)
    loss = exact_loss(fitted.predictor, x.astype(np.float32), factored.values)
    assert (loss <= fitted.utility_budget).all()
    utility = [found[layout][1]["e_utility"] for layout in ("dense", "factored")]
    assert utility[0]["mean"] == pytest.approx(utility[1]["mean"], rel=1e-4)
    assert utility[1]["n_above_budget"] == 0
    assert found["factored"][2] < found["dense"][2]
    # The basis is sealed with the rest.
    header = tmp_path / "factored" / "release.zarr" / "basis" / "zarr.json"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"attributes": {}}))
    with pytest.raises(FormatError, match="damaged"):
        open_release(str(tmp_path / "factored" / "release.zarr"))


@pytest.mark.slow
def test_run_pipeline__refuses_a_factored_layout_of_other_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 200)
    monkeypatch.setenv("PRIVPIPE_RELEASE__LAYOUT", "factored")
    with pytest.raises(OptionError, match="'leace' has no factored layout"):
        run_pipeline(configure(tmp_path, method='name = "leace"'))
    assert not (tmp_path / "release.zarr").exists()
