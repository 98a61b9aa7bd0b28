"""``[collection] standardise``: the model standardises; who takes features as they are says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.command.init_command import init_command
from privpipe.errors import OptionError
from privpipe.flows.comparison import plan_entries
from privpipe.flows.release_flow import run_pipeline
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.sanitizers.chain import Chain, Standardiser
from privpipe.store.models import open_model
from privpipe.store.releases.lazy_release import open_release
from tests.flows.test_pipeline import configure
from tests.standard import make_standard, write_standard

COMPARED = ('name = "pca", n_filtered = 2', 'name = "leace"')
PCA = 'name = "pca"\nn_filtered = 2'
"""Of standard records, whose features have deviations from 0.1 to 5."""


def configure_standardised(folder: Path, method: str = PCA) -> str:
    write_standard(str(folder / "records.zarr"), 300, chunk_rows=100)
    return configure(folder, method=method, training="standardise = true")


@pytest.mark.slow
def test_run__releases_what_its_model_makes_of_raw_records(tmp_path: Path) -> None:
    run_pipeline(configure_standardised(tmp_path))
    model = open_model(str(tmp_path / "release.model.zarr"))
    assert isinstance(model, Chain)
    assert isinstance(model.maps[0], Standardiser)
    x, _ = make_standard(300)
    released = open_release(str(tmp_path / "release.zarr"), verify=True).features.values
    np.testing.assert_allclose(released, model.apply(x), rtol=1e-9)
    # The held-out records did not tell their means.
    assert np.abs(model.maps[0].centre - x.mean(axis=0)).max() > 1e-3
    # Of raw features the one of deviation 5 would be the first component.
    first = np.corrcoef(released[:, 0], x[:, 2])[0, 1]
    assert abs(first) < 0.9


def test_check__names_methods_that_depend_on_scales(tmp_path: Path) -> None:
    config = configure_standardised(tmp_path, 'name = "null_space"\nutility_budget = 0.5')
    with pytest.raises(OptionError, match="'null_space' takes features as they are") as caught:
        check_stage(read_options(config))
    assert "minimax, " in caught.value.remedy


def test_digest_options__of_a_run_without_it_knows_no_such_key(tmp_path: Path) -> None:
    """So that a run that an earlier privpipe began is gone on with."""
    given = read_options(configure_standardised(tmp_path))
    assert given.collection.standardise
    plain = given.model_copy(
        update={"collection": given.collection.model_copy(update={"standardise": False})}
    )
    asked: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        place = "privpipe.pipeline.runs.run_options.json.dumps"
        patch.setattr(place, lambda x, **_: asked.append(repr(x)) or "{}")
        plain.digest()
        given.digest()
    assert ["standardise" in one for one in asked] == [False, True]


@pytest.mark.parametrize(("method", "written"), [("pca", True), ("null_space", False)])
def test_init__standardises_features_of_different_units(
    tmp_path: Path, method: str, written: bool
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 300, chunk_rows=100)
    out = tmp_path / "my.toml"
    init_command(
        str(tmp_path / "records.zarr"),
        str(out),
        method=method,
        desired=["height"],
        confidential=["party"],
        release="",
    )
    assert ("\nstandardise = true\n" in out.read_text()) == written


def test_compare__standardises_the_methods_that_depend_on_scales(tmp_path: Path) -> None:
    config = Path(configure_standardised(tmp_path))
    others = "".join(f"[[compare]]\nmethod = {{ {one} }}\n" for one in COMPARED)
    config.write_text(config.read_text() + others)
    entries = plan_entries(read_options(str(config)))
    found = {one.method.name: one.collection.standardise for one in entries.values()}
    assert found == {"pca": True, "leace": False}
