"""What the page says of readers without this package holds, run where it cannot be imported."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from privpipe.store.releases.export import export_release
from privpipe.store.releases.lazy_release import open_release
from tests.store.serial_run import make_options, run_serially, serial_flows, write_small_collection

PAGE = Path(__file__).parents[3] / "docs/howto/read_elsewhere.md"
END = """
import json
found = {
    "names": names, "dtype": str(features.dtype),
    "frame": frame.columns.tolist(), "lazy": lazy.collect_schema().names(),
    "rows": rows[0], "sum": float(features.sum()), "texts": {k: v[:3] for k, v in texts.items()},
    "frame_sum": float(frame[names].to_numpy().sum()),
}
print(json.dumps(found))
"""


@pytest.mark.slow
def test_page__reads_a_release_where_the_package_is_out_of_reach(tmp_path: Path) -> None:
    names = tuple("abcde")
    write_small_collection(str(tmp_path / "records.zarr"), n_records=110, feature_names=names)
    with serial_flows():
        options = make_options(str(tmp_path / "records.zarr"), str(tmp_path / "release.zarr"))
        run_serially(options)
    export_release(tmp_path / "release.zarr", tmp_path / "release.parquet")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    silent = "import sys, warnings; warnings.simplefilter('error')"
    program = "\n".join([silent, "sys.modules['privpipe'] = None", *blocks, END])
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    ours = open_release(str(tmp_path / "release.zarr"))
    assert found["rows"] == ours.sizes["record"]
    assert found["sum"] == float(ours.features.sum()) == found["frame_sum"]
    assert found["frame"] == found["lazy"]
    assert found["names"] == list("abcde")
    assert found["dtype"] == str(ours.features.dtype)
    assert set(found["names"]) <= set(found["frame"])
    assert found["texts"], "the included variable"
    for name, texts in found["texts"].items():
        assert set(texts) <= {*ours[name].attrs["categories"], None}
