"""A class in a file of the user's: trained, stored and applied, or refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privpipe import Records, open_model, option_values, trust_filter, write_model
from privpipe.errors import InputError, OptionError
from privpipe.sanitizers.minimax.custom_filter import (
    MinimaxCustomOptions,
    fit_minimax_custom_filter,
)
from privpipe.sanitizers.minimax.training import custom_code
from privpipe.sanitizers.options import make_options
from tests.motion import draw_windows

EXAMPLES = Path(__file__).parents[2] / "examples"
CONVOLUTION = EXAMPLES / "convolution.py"

TANH = """
import numpy as np


class Tanh:
    def __init__(self, n_features, width=2):
        self.shape, self.n_outputs = (n_features, width), width

    def start(self, rng):
        return {"weights": 0.1 * rng.standard_normal(self.shape), "bias": np.zeros(self.n_outputs)}

    def apply(self, parameters, x):
        return np.tanh(x @ parameters["weights"] + parameters["bias"])

    def vjp(self, parameters, x, dz):
        slopes = dz * (1 - self.apply(parameters, x) ** 2)
        return {"weights": x.T @ slopes, "bias": slopes.sum(axis=0)}
"""


def make_records(n_each: int = 20, **more: Any) -> Records:
    windows = draw_windows(20, n_each)
    return Records(
        windows["features"],
        desired=windows["activity"].astype(str),
        confidential=windows["sex"].astype(str),
        **more,
    )


def declare(
    folder: Path, source: str = TANH, name: str = "Tanh", **more: Any
) -> MinimaxCustomOptions:
    module = folder / "mine.py"
    module.write_text(source)
    return MinimaxCustomOptions(filter=name, module=str(module), **more)


def test_own_filter__keeps_the_target_and_spoils_the_private() -> None:
    records = make_records()
    options = MinimaxCustomOptions(filter="Convolution", module=str(CONVOLUTION), max_iterations=12)
    fitted = fit_minimax_custom_filter(records, options)
    losses = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
    wanted, private = fitted.baselines
    assert losses["loss_desired:desired_0"] < 0.1 * wanted
    assert losses["loss_confidential:confidential_0"] > 0.9 * private
    assert dict(zip(fitted.parameter_names, fitted.parameters, strict=True))["kernels"].shape == (
        24,
        4,
    )


def test_own_filter__is_stored_as_arrays_and_code_and_opened_again(tmp_path: Path) -> None:
    records = make_records(5)
    fitted = fit_minimax_custom_filter(records, declare(tmp_path, max_iterations=1))
    write_model(fitted, tmp_path / "model.zarr")
    opened = open_model(tmp_path / "model.zarr")
    x = draw_windows(2, 3)["features"]
    assert np.array_equal(opened.apply(x), fitted.apply(x))
    assert opened.apply(x).dtype == np.float32


def test_own_filter__code_of_a_stored_model_does_not_run_until_it_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "ran"
    source = f"open({str(spy)!r}, 'a').close()\n" + TANH
    options = declare(tmp_path, source, max_iterations=1)
    write_model(fit_minimax_custom_filter(make_records(5), options), tmp_path / "model.zarr")
    spy.unlink()
    monkeypatch.setattr(option_values, "_TRUSTED", set())  # another process, another day
    custom_code._load_class.cache_clear()
    opened = open_model(tmp_path / "model.zarr")
    x = draw_windows(2, 3)["features"]
    with pytest.raises(OptionError, match="not trusted here"):
        opened.apply(x)
    with pytest.raises(OptionError, match="not trusted here"):
        pickle.loads(pickle.dumps(opened)).apply(x)
    assert not spy.exists()
    trust_filter(tmp_path / "mine.py")
    assert opened.apply(x).shape == (6, 2)


def test_own_filter__other_sources_under_a_stored_hash_are_refused(tmp_path: Path) -> None:
    code = declare(tmp_path).code
    forged = custom_code.CustomCode(code.name, code.source + "\nimport os", code.sha256)
    with pytest.raises(OptionError, match="has changed since it was trained"):
        forged.load()


def test_own_filter__a_pinned_hash_refuses_other_content(tmp_path: Path) -> None:
    pinned = declare(tmp_path).code_sha256
    assert declare(tmp_path, sha256=pinned).code_sha256 == pinned
    given = {"name": "minimax_own", "filter": "Tanh", "module": str(tmp_path / "mine.py")}
    (tmp_path / "mine.py").write_text(TANH + "\n")
    with pytest.raises(OptionError, match="not the one of sha256"):
        make_options(MinimaxCustomOptions, given | {"sha256": pinned}, "minimax_own")


def test_own_filter__any_sharding_gives_the_same_filter(tmp_path: Path) -> None:
    options = declare(tmp_path, max_iterations=4, held_out=0.0)
    one, many = (fit_minimax_custom_filter(make_records(10, n_shards=n), options) for n in (1, 7))
    for left, right in zip(one.parameters, many.parameters, strict=True):
        assert np.abs(left - right).max() < 1e-9


BROKEN = {
    "has the wrong sign": ("x.T @ slopes", "-x.T @ slopes"),
    "is 2 times the derivative": ("x.T @ slopes", "2 * x.T @ slopes"),
    "is not the derivative of what is computed": ("** 2)", "** 1)"),
    "not finite": ("x.T @ slopes", "x.T @ slopes * np.nan"),
    "arrays of the shapes": ("slopes.sum(axis=0)", "slopes.sum()"),
    "not {'weights': .*'bias'": (', "bias": slopes.sum(axis=0)', ""),
    "draws at random": ("return np.tanh(", "return np.random.normal() * np.tanh("),
    "change one another": ("return np.tanh(", "return x.mean() + np.tanh("),
    "changes what it is given": ("return np.tanh(", "x *= 2; return np.tanh("),
    "n_outputs": (
        "self.n_outputs = (n_features, width), width",
        "none = (n_features, width), width",
    ),
    "gives arrays of shapes": ('["bias"])', '["bias"])[:, :1]'),
    "has no vjp": ("def vjp", "def vpj"),
    "raises KeyError": ('parameters["bias"])', 'parameters["bais"])'),
    "which is not installed": ("import numpy as np", "import numpy as np, no_such_library"),
    "privpipe\\[torch\\]": ("import numpy as np", "import numpy as np\nimport torch.no_such_room"),
    "raises ZeroDivisionError": ("import numpy as np", "import numpy as np; 1 / 0"),
    "no class 'Tanh'": ("class Tanh", "class Tahn"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_check__refuses_a_filter_and_says_why(tmp_path: Path, what: str) -> None:
    right, wrong = BROKEN[what]
    assert right in TANH
    options = declare(tmp_path, TANH.replace(right, wrong, 1))
    with pytest.raises(OptionError, match=what):
        options.check(make_records(2).schema)


@pytest.mark.parametrize("seed", range(5))
def test_check__a_right_filter_passes_kinks_and_large_scales_too(tmp_path: Path, seed: int) -> None:
    kinked = TANH.replace("np.tanh(", "100 * np.abs(").replace(
        "(1 - self.apply(parameters, x) ** 2)",
        "100 * np.sign(x @ parameters['weights'] + parameters['bias'])",
    )
    for source in (TANH, kinked):
        declare(tmp_path, source, seed=seed).check(make_records(2).schema)


def test_options__no_such_file_or_entry_point() -> None:
    for given, match in (
        ({"filter": "Tanh", "module": "nowhere.py"}, "cannot be read"),
        ({"filter": "nobody"}, "No installed package declares a filter 'nobody'"),
    ):
        with pytest.raises(OptionError, match=match):
            make_options(MinimaxCustomOptions, {"name": "minimax_own", **given}, "minimax_own")


def test_torch_module__is_trained_and_stored_as_arrays(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra privpipe[torch]")
    torch.set_num_threads(1)
    module = str(EXAMPLES / "torch_convolution.py")
    options = MinimaxCustomOptions(filter="TorchConvolution", module=module, max_iterations=2)
    records = make_records(5)
    options.check(records.schema)
    fitted = fit_minimax_custom_filter(records, options)
    kernels, bias = fitted.parameters
    ours = custom_code.CustomCode.read("Convolution", str(CONVOLUTION)).load()(96)
    x = draw_windows(2, 3)["features"].astype(np.float64)
    arrays = {"kernels": kernels.reshape(4, -1).T, "bias": bias}
    assert np.allclose(fitted.apply(x), ours.apply(arrays, x), rtol=1e-10)
    write_model(fitted, tmp_path / "model.zarr")
    assert np.array_equal(open_model(tmp_path / "model.zarr").apply(x), fitted.apply(x))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("if len(x) > 99: raise ValueError(f'first {x[0]}')", "raises ValueError on records"),
        ("if len(x) > 99: return np.full((len(x), self.n_outputs), np.nan)", "is not finite for"),
    ],
)
def test_what_fails_on_records_alone_is_said_without_them(
    tmp_path: Path, line: str, message: str
) -> None:
    source = TANH.replace("        return np.tanh", f"        {line}\n        return np.tanh")
    with pytest.raises((OptionError, InputError), match=message):
        fit_minimax_custom_filter(make_records(), declare(tmp_path, source))
