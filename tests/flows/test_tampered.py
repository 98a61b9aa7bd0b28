"""A cleaner that does not do what it says is found out by the audit, and nothing is published.

The audit reads the stored records and computes the loss by code of its own; receipts hold what the
cleaner said. Both are tampered with in the process that audits: the audit shares nothing with them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privpipe.errors import GuaranteeError
from privpipe.flows.release_flow import run_pipeline
from privpipe.numerics.null_space import cleaning
from tests.flows.test_pipeline import configure
from tests.standard import write_standard

pytestmark = pytest.mark.slow


def tamper(patch: pytest.MonkeyPatch, spends: float, says: float) -> None:
    """Shrink within `spends` times the budget, report `says` times what was spent."""
    clean = cleaning.clean_block

    def clean_otherwise(x: Any, form: Any, dtype: Any, **options: Any) -> Any:
        found = clean(x, replace(form, root=form.root * spends**0.5), dtype, **options)
        return replace(found, spent=found.spent * says)

    patch.setattr(cleaning, "clean_block", clean_otherwise)


@pytest.mark.parametrize(
    ("spends", "says", "expected"),
    [
        (1.1, 1.0, "records lost more than the utility budget"),
        (1.0, 0.9, "finds another loss of utility than the cleaning reported"),
        (0.9, 1.12, "finds another loss of utility than the cleaning reported"),
    ],
)
def test_audit__finds_out_a_kernel_that_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spends: float, says: float, expected: str
) -> None:
    write_standard(str(tmp_path / "records.zarr"), 400, chunk_rows=40, dtype="float32")
    config = configure(tmp_path)
    tamper(monkeypatch, spends, says)
    with pytest.raises(GuaranteeError, match=expected) as caught:
        run_pipeline(config)
    assert "Nothing was published" in caught.value.remedy
    assert not (tmp_path / "release.zarr").exists()
    assert not (tmp_path / "release.model.zarr").exists()
