"""A filter in a file of the user's: from a configuration to a release, and what stops it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from privpipe import open_model, open_release
from privpipe.errors import OptionError
from privpipe_flows.pipeline import run_pipeline
from privpipe_flows.runs.configuration.configuration_file import read_options
from privpipe_flows.runs.stages.check import check_stage
from tests.motion import draw_windows, write_windows

CONVOLUTION = Path(__file__).parents[1] / "examples" / "convolution.py"

CONFIGURATION = """
[collection]
path = "{folder}/windows.zarr"
desired = ["activity"]
confidential = ["sex"]
[method]
name = "minimax_own"
module = "{folder}/convolution.py"
filter = "Convolution"
adversary = ["logistic", "group"]
group = "subject"
group_size = 5
resample_every = 3
max_iterations = 6
[method.settings]
kernels = {kernels}
[release]
path = "{folder}/release.zarr"
[audit]
holdout = 0.4
group = "subject"
adversaries = ["least_squares", "logistic"]
[gate]
enforce = false
[cluster]
workers = 0
"""


def configure(folder: Path, kernels: int = 3) -> Path:
    """The folder of somebody with windows, a filter and a configuration."""
    write_windows(str(folder / "windows.zarr"), draw_windows(40, 20), 200)
    (folder / "convolution.py").write_bytes(CONVOLUTION.read_bytes())
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(folder=folder, kernels=kernels))
    return config


@pytest.mark.slow
def test_own_filter__is_trained_audited_by_group_and_published(tmp_path: Path) -> None:
    config = configure(tmp_path)
    run_pipeline(str(config), until="clean")
    module = tmp_path / "convolution.py"
    text = module.read_text()
    module.write_text(text + "\n# another day\n")
    with pytest.raises(OptionError, match=r"module .* has changed|another configuration"):
        run_pipeline(str(config))
    assert not (tmp_path / "release.zarr").exists()
    module.write_text(text)
    run_pipeline(str(config))
    with open_release(str(tmp_path / "release.zarr")) as release:
        released = release["features"].to_numpy()
    assert released.shape == (800, 3)
    fitted = open_model(tmp_path / "release.model.zarr")
    assert np.array_equal(fitted.apply(draw_windows(40, 20)["features"]), released)
    assert "loss_confidential:sex (group)" in fitted.history_columns
    findings = json.loads((tmp_path / "release.report" / "audit.json").read_text())
    sources = {row["source"] for row in findings["adversaries"]["table"]}
    assert "groups" in sources


def test_check__a_wrong_derivative_stops_before_training(tmp_path: Path) -> None:
    config = configure(tmp_path)
    module = tmp_path / "convolution.py"
    module.write_text(module.read_text().replace("slopes = 2 * answers", "slopes = answers"))
    with pytest.raises(OptionError, match="times the derivative"):
        check_stage(read_options(str(config)))
