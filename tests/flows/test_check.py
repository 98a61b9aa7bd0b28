"""The check stage: what metadata tells before a cluster is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe.errors import OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.pipeline.stages.forecast import explain_budget
from tests.flows.test_pipeline import configure
from tests.standard import write_standard


def test_check__takes_weights_for_methods_that_count_by_them(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 60)
    config = Path(configure(tmp_path))
    text = config.read_text().replace("[collection]\n", '[collection]\nweights = "person"\n')
    config.write_text(text)
    run = check_stage(read_options(str(config)))
    assert run.training.weights == "person"
    assert run.training.schema.weighted
    config.write_text(
        text.replace(
            'name = "null_space"\nutility_budget = 0.5\nridge = 1e-6',
            'name = "pca"\nn_filtered = 2',
        )
    )
    with pytest.raises(OptionError, match="'pca' counts records once") as caught:
        check_stage(read_options(str(config)))
    assert "leace" in caught.value.remedy


def test_explain_budget__of_each_label_is_a_share_of_one_label(tmp_path: Path) -> None:
    write_standard(str(tmp_path / "records.zarr"), 400)
    config = Path(configure(tmp_path, desired='["height", "late"]'))
    together = explain_budget(check_stage(read_options(str(config))))
    config.write_text(
        config.read_text().replace("ridge = 1e-6", 'ridge = 1e-6\nbudget = "per_label"')
    )
    each = explain_budget(check_stage(read_options(str(config))))
    assert together is not None
    assert each is not None
    assert each.share == pytest.approx(2 * together.share)


def test_check__a_share_that_holds_no_record_out_is_refused(tmp_path: Path) -> None:
    """It passed, and the run failed once all was cleaned."""
    write_standard(str(tmp_path / "records.zarr"), 60)
    gate = "\n[gate]\nenforce = false"
    for share in ("1e-300", "0.016"):
        config = configure(tmp_path, audit=f"holdout = {share}{gate}")
        with pytest.raises(
            OptionError, match=r"holdout is .*of 60 training.*at least 0\.067"
        ) as caught:
            check_stage(read_options(config))
        assert caught.value.code == "audit-too-small"
    for share in ("0", "0.1"):
        check_stage(read_options(configure(tmp_path, audit=f"holdout = {share}{gate}")))
