"""Options that the data refuse are refused by the check stage, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from privpipe.errors import InputError, OptionError
from privpipe.pipeline.runs.configuration_file import read_options
from privpipe.pipeline.stages.check import check_stage
from privpipe.sanitizers import METHODS
from tests.flows.test_pipeline import configure
from tests.standard import write_standard

TWO = {"desired": '["late"]', "confidential": '["income"]'}
THREE = {"desired": '["late"]', "confidential": '["party"]'}
BOTH = {"desired": '["late"]', "confidential": '["income", "party"]'}

NULL = "utility_budget = 0.5"
NOISY = "epsilon = 1.0\nthreshold = 1.0\ncentre = false"
MASKING = '[method.filter]\nname = "masking"\nn_surrogates = 40'
WIDE = "n_filtered = 300"

REFUSED: dict[str, list[tuple[str, dict[str, str], str]]] = {
    "null_space": [
        (f'{NULL}\nintercept = "augmented"\ncentre = true', TWO, "cleans records as they are")
    ],
    "null_space_targeted": [
        (
            f'{NULL}\nintercept = "augmented"\nrepresentative = "likely"',
            TWO,
            "cleans records as they are",
        ),
        (f'{NULL}\nvariant = "printed"', TWO | {"layout": "factored"}, "no factored layout"),
    ],
    "leace": [("", TWO | {"layout": "factored"}, "no factored layout")],
    "target_only": [("", TWO | {"layout": "factored"}, "no factored layout")],
    "privacy_mapping": [
        (
            'attributes = ["height"]\nprivate = ["party"]\ndistortion_budget = 0.1',
            {"desired": "[]", "confidential": "[]"},
            "height",
        )
    ],
    "minimax": [
        (WIDE, THREE, "n_filtered is 300 for records of 9 features"),
        ("reconstruction_weight = 1.0", THREE, "no reduced form"),
        ('reconstruction_weight = 1.0\nn_filtered = 3\nstart = "zero"', THREE, "stationary point"),
        ("single_out = 1", BOTH, "one confidential variable; there are 2"),
        ("single_out = 7", THREE, "single_out is 7.0, no class of 'party'"),
        ('single_out = 1\nconfidential_task = "regression"', TWO, "read as a number"),
        ("desired_weights = [1.0, 2.0]", THREE, "desired_weights has 2 entries for 1 variables"),
    ],
    "minimax_neural": [
        ("n_hidden = [3, 0]", THREE, "layer without outputs"),
        ("confidential_weights = [1.0]", BOTH, "confidential_weights has 1 entries for 2"),
    ],
    "minimax_own": [
        ('filter = "Nobody"', THREE, "No installed package declares a filter 'Nobody'"),
        ('filter = "Any"\nmodule = "no.py"', THREE, "module 'no.py' of the filter cannot be read"),
    ],
    "minimax_least_squares": [(WIDE, THREE, "n_filtered is 300")],
    "privacy_lds": [(WIDE, THREE, "n_filtered is 300")],
    "masking": [
        ("n_surrogates = 3", TWO, "at least as many"),
        ('n_surrogates = 40\nsolver = "literal"\nclip = 3.0', TWO, "clip works on standardised"),
        ("n_surrogates = 40", TWO | {"layout": "factored"}, "no factored layout"),
    ],
    "noisy": [
        (f"{NOISY}\ngrid = 0.3", TWO, "The grid is 0.3"),
        (f'{NOISY}\nnorm = "l1"', TWO, "law of the l2 norm"),
        (
            f'{NOISY}\n[method.filter]\nname = "masking"\nn_surrogates = 40',
            TWO,
            "records of its own",
        ),
    ],
    "pca": [(WIDE, TWO, "n_filtered is 300")],
    "rand": [(WIDE, TWO, "n_filtered is 300")],
    "ppls": [
        (WIDE, THREE, "n_filtered is 300"),
        ("n_filtered = 2\nsingle_out = 1", BOTH, "there are 2"),
    ],
    "ddd": [
        ("", THREE, "two classes only"),
        ('desired_task = "regression"', TWO | {"desired": '["height"]'}, "two classes only"),
        ("reconstruction_weight = 1.0", TWO, "two classes only"),
    ],
}
"""Options of each method that no record of the standard collection can be fitted with."""

CASES = [(name, *case) for name, cases in REFUSED.items() for case in cases]


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
    assert set(REFUSED) == set(METHODS), "a new method says what its check refuses"
