"""A filter in a file of the user's: from a configuration to a release, and what stops it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from privpipe import open_model, open_release
from privpipe.command.check_command import check_command, dry_run_command
from privpipe.command.run_command import compare_command, resume_command, run_command
from privpipe.errors import InputError, OptionError, StoreError
from privpipe.flows.release_flow import run_pipeline
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.runs.trusted_code import confirm_code, remember_code
from privpipe.pipeline.stages.check import check_stage
from tests.motion import draw_windows, write_windows

CONVOLUTION = Path(__file__).parents[1] / "examples" / "convolution.py"

CONFIGURATION = """
[collection]
path = "{folder}/windows.zarr"
desired = ["activity"]
confidential = ["sex"]
subject = "subject"
[method]
name = "minimax_own"
module = "{folder}/convolution.py"
filter = "Convolution"
adversary = ["logistic", "group"]
group = "subject"
group_size = 5
max_iterations = 7
[method.settings]
kernels = {kernels}
[release]
path = "{folder}/release.zarr"
[audit]
holdout = 0.4
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
    confirm(folder / "convolution.py")
    return config


def confirm(module: Path) -> str:
    """As `privpipe run --trust` does."""
    sha256 = hashlib.sha256(module.read_bytes()).hexdigest()
    remember_code([sha256])
    return sha256


@pytest.mark.slow
def test_own_filter__is_trained_audited_by_group_and_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = configure(tmp_path)
    run_pipeline(str(config), until="clean")
    module = tmp_path / "convolution.py"
    text = module.read_text()
    module.write_text(text + "\n# another day\n")
    was, now = hashlib.sha256(text.encode()).hexdigest(), confirm(module)
    changed = f"the module of the filter has changed: its SHA-256 was {was} and is {now}"
    for go_on in (run_pipeline, run_command, resume_command):
        with pytest.raises(OptionError, match=changed) as refused:
            go_on(str(config))
        assert "Nothing of it was published" in refused.value.remedy
    check_command(str(config))
    assert changed in " ".join(capsys.readouterr().out.split())
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
    # Published, and the file changes: neither is it made anew, nor taken for what it was.
    header = (tmp_path / "release.zarr" / "zarr.json").read_bytes()
    module.write_text(text + "\n# another day\n")
    for again in (run_command, check_command):
        with pytest.raises(StoreError, match=changed) as refused:
            again(str(config))
        assert refused.value.code == "code-changed"
    assert (tmp_path / "release.zarr" / "zarr.json").read_bytes() == header
    apply = (
        "import sys, privpipe, numpy as np\n"
        "privpipe.trust_filter(sys.argv[1])\n"
        "privpipe.open_model(sys.argv[2]).apply(np.zeros((2, 96)))\n"
    )
    model = str(tmp_path / "release.model.zarr")
    done = subprocess.run(
        [sys.executable, "-c", apply, str(module), model], capture_output=True, text=True
    )
    assert done.returncode
    assert f"SHA-256 {was}, which is not trusted here" in done.stderr
    assert f"Trusted is other code, as of a file that has changed: {now}" in done.stderr


def test_check__a_wrong_derivative_stops_before_training(tmp_path: Path) -> None:
    config = configure(tmp_path)
    module = tmp_path / "convolution.py"
    module.write_text(module.read_text().replace("slopes = 2 * answers", "slopes = answers"))
    confirm(module)
    options = read_options(str(config))
    confirm_code(options)
    with pytest.raises(OptionError, match="times the derivative"):
        check_stage(options)


SPY = """
from pathlib import Path
Path({seen!r}).touch()
"""


@pytest.mark.parametrize(
    "pipeline",
    # The work of the flow, and the flow itself, for which Prefect starts a server.
    [
        pytest.param(run_pipeline.fn, id="work"),
        pytest.param(run_pipeline, id="flow", marks=pytest.mark.slow),
    ],
)
def test_code_of_a_configuration__is_run_once_confirmed_and_by_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pipeline: Callable[[str], str]
) -> None:
    """Who only looks at a stranger's configuration runs nothing of it, nor does who starts it."""
    config, seen = str(configure(tmp_path)), tmp_path / "seen"
    module = tmp_path / "convolution.py"
    module.write_text(SPY.format(seen=str(seen)) + module.read_text())
    sha256 = hashlib.sha256(module.read_bytes()).hexdigest()
    check_command(config)
    dry_run_command(config)
    assert capsys.readouterr().out.count(f"a filter: the file (SHA-256 {sha256}) was not run") == 2
    for start in (run_command, pipeline, compare_command):
        with pytest.raises(OptionError, match="was not confirmed yet") as refused:
            start(config)
        assert f"--trust {sha256}" in refused.value.remedy
    assert not seen.exists()
    with pytest.raises(OptionError, match="64 hexadecimal digits"):
        remember_code(["../" + sha256[3:]])
    remember_code([sha256])
    check_command(config)
    assert not seen.exists()  # confirmed, and still only looked at
    confirm_code(read_options(config))
    check_stage(read_options(config))
    assert seen.exists()


def test_check__refuses_groups_that_cannot_be_read_together(tmp_path: Path) -> None:
    config = configure(tmp_path)
    text = config.read_text()
    config.write_text(text.replace("group_size = 5", "group_size = 21"))
    with pytest.raises(
        InputError, match=r"have fewer than 21 training records\. Set group_size to"
    ):
        check_command(str(config))
    swapped = text.replace('"activity"', '"?"').replace('"sex"', '"activity"')
    config.write_text(swapped.replace('"?"', '"sex"'))
    with pytest.raises(InputError, match="'activity' differs between records of one group"):
        check_command(str(config))
