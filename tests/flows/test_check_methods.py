"""Options that the data refuse are refused by the check stage, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from privpipe.errors import InputError, OptionError
from privpipe.numerics import moments
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from tests.flows.test_pipeline import configure
from tests.methods import EXAMPLES
from tests.standard import write_standard

CASES = [(name, *case) for name, example in EXAMPLES.items() for case in example.refused]


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standard")
    write_standard(str(folder / "records.zarr"), 300)
    return folder / "records.zarr"


@pytest.mark.parametrize(("name", "options", "about", "message"), CASES)
def test_check__refuses_what_no_fit_can_do(
    name: str, options: str, about: dict[str, str], message: str, records: Path, tmp_path: Path
) -> None:
    layout = about.get("layout", "dense")
    roles = {key: value for key, value in about.items() if key != "layout"}
    method = f'name = "{name}"\n{options}'
    text = Path(
        configure(tmp_path, method=method, path=str(records), include="[]", **roles)
    ).read_text()
    config = tmp_path / "run.toml"
    config.write_text(text.replace("[release]\n", f'[release]\nlayout = "{layout}"\n'))
    with pytest.raises((OptionError, InputError), match=message):
        check_stage(read_options(str(config)))


def test_check__is_tried_for_every_method() -> None:
    untried = [name for name, example in EXAMPLES.items() if not example.refused]
    assert not untried, "an example of a method says what its check refuses"


@pytest.mark.parametrize(
    "method",
    [
        'name = "minimax"',
        'name = "leace"',
        'name = "noisy"\nepsilon = 1.0\nallow_data_bound = true\n'
        '[method.filter]\nname = "pca"\nn_filtered = 2',
    ],
)
def test_check__refuses_more_features_than_a_fit_can_multiply(
    method: str, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a pass is made; that fits refuse the same is in `test_contract_rows`."""
    about = {"desired": '["late"]', "confidential": '["party"]', "include": "[]"}
    config = configure(tmp_path, method=method, path=str(records), **about)
    check_stage(read_options(config))
    monkeypatch.setattr(moments, "MOST_FEATURES", 5)
    with pytest.raises(InputError, match="Products of 9 features are a matrix"):
        check_stage(read_options(config))


def test_check__takes_any_number_of_features_where_a_file_holds_the_predictor(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "predictor.npy", np.ones((9, 1)))
    method = f'name = "null_space"\nutility_budget = 0.5\npredictor = "{tmp_path}/predictor.npy"'
    config = configure(tmp_path, method=method, path=str(records), include="[]")
    monkeypatch.setattr(moments, "MOST_FEATURES", 5)
    check_stage(read_options(config))
