"""What objects show of themselves: shapes, roles, promises, verdicts; never a value."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import privpipe
import privpipe.store.releases.release_dataset
from privpipe.errors import InputError
from privpipe.sanitizers import RECORD_MAPS

SECRET = 7.654321
"""A value that must not show."""


def make_records() -> privpipe.Records:
    x = np.random.default_rng(0).normal(size=(200, 3))
    x[:, 0] = SECRET + 0.1 * x[:, 0]
    return privpipe.Records(x, desired=x[:, 1], confidential=x[:, 2] > 0)


def test_records_and_models__show_shapes_roles_and_promise() -> None:
    records = make_records()
    assert "desired_0 (numeric)" in repr(records)
    assert "confidential_0 (2 classes)" in repr(records)
    cleaner = privpipe.fit_null_space_cleaner(records, utility_budget=0.01)
    for shown in (repr(records), repr(cleaner), cleaner._repr_html_()):  # type: ignore[attr-defined]
        assert "7.6" not in shown
    assert "utility_bound 0.01" in repr(cleaner)
    assert "<table>" in cleaner._repr_html_()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "kind", [kind for kind, one in RECORD_MAPS.items() if one.__module__.startswith("privpipe.")]
)
def test_every_fitted_map__shows_itself_without_its_arrays(kind: str) -> None:
    assert hasattr(RECORD_MAPS[kind], "_repr_html_"), "add @described(facts_of_map)"


def test_collection__withholds_categories_and_escapes_names(tmp_path: Path) -> None:
    rows = "\n".join(f"{i},{'never' if i % 2 else 'often'},{SECRET}" for i in range(20))
    (tmp_path / "a.csv").write_text(f"x,<b>smokes,y\n{rows}\n")
    layout = privpipe.SourceLayout(labels=("<b>smokes",))
    privpipe.ingest(tmp_path / "a.csv", tmp_path / "a.zarr", privpipe.IngestOptions(layout=layout))
    collection = privpipe.open_collection(tmp_path / "a.zarr", confidential=["<b>smokes"])
    text, page = repr(collection), collection._repr_html_()  # type: ignore[attr-defined]
    assert "<b>smokes (2 categories)" in text
    assert "<b>" not in page
    assert not re.search(r"never|often|7\.6", text + page)


def test_attack_report__shows_its_verdict() -> None:
    x = np.random.default_rng(1).normal(size=(300, 3))
    options = privpipe.AttackOptions(adversaries=("least_squares",))
    shown = repr(privpipe.measure_attacks(x, x[:, 1] > 0, options=options))
    assert "verdict    leaks" in shown
    assert "300" in shown or "given" in shown


def test_release__shows_promise_and_verdict_and_has_a_report() -> None:
    promise = {"kind": "utility_bound", "number": 0.5, "unit": "u", "scope": "every record"}
    header = {
        "method": "null_space",
        "guarantee": {**promise, "theorem": "T", "parameters": [["a", 1.0]]},
        "audit": {"adversaries": {"verdict": "safe", "reason": "none gains"}, "gate": None},
    }
    release = xr.Dataset({"features": (("record", "feature"), np.full((2, 1), SECRET))})
    release.attrs = {"privpipe": header}
    release["features"].encoding["privpipe"] = True
    view = release.privpipe
    assert view.guarantee.parameters == (("a", 1.0),)
    assert view.report().verdict == "safe"
    assert "7.6" not in repr(view) + view._repr_html_()
    assert "utility_bound 0.5 u" in repr(view)
    with pytest.raises(InputError, match="no release"):
        _ = xr.Dataset().privpipe
    for kept in (release.isel(record=[0]), release.copy(deep=True), release[["features"]]):
        assert kept.privpipe.guarantee == view.guarantee
    # Attributes stay with what is computed; a promise about other values does not.
    for computed in (release + 1000, release.round(0), release.clip(-1, 1), release.mean()):
        with pytest.raises(InputError, match="was computed from one"):
            _ = computed.privpipe
