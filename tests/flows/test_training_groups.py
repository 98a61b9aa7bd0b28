"""Training against who knows several records of one group: what stops it before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe.errors import InputError, OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from tests.motion import draw_windows, write_windows

CONFIGURATION = """
[collection]
path = "{folder}/windows.zarr"
desired = ["activity"]
confidential = ["sex"]
{whose}
[method]
name = "minimax"
adversary = ["logistic", "group"]
group = "{group}"
group_size = {size}
max_iterations = 7
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


def configure(
    folder: Path, *, group: str = "subject", size: int = 5, whose: str = 'subject = "subject"'
) -> str:
    folder.mkdir(exist_ok=True)
    write_windows(str(folder / "windows.zarr"), draw_windows(24, 15), 100)
    config = folder / "run.toml"
    config.write_text(CONFIGURATION.format(folder=folder, group=group, size=size, whose=whose))
    return str(config)


def test_check__a_group_across_the_held_out_split_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="held out by 'record'"):
        check_stage(read_options(configure(tmp_path, whose="")))
    with pytest.raises(InputError, match=r"subjec\b"):
        check_stage(read_options(configure(tmp_path / "other", group="subjec")))
