"""A loss in a file of the user's: checked, trained with, recorded; or refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from privpipe import MinimaxNeuralOptions, fit_minimax_neural_filter
from privpipe.errors import InputError, OptionError
from privpipe.protocols import RecordMap
from privpipe.sanitizers.minimax.custom_filter import (
    MinimaxCustomOptions,
    fit_minimax_custom_filter,
)
from privpipe.sanitizers.options import make_options
from tests.motion import draw_windows
from tests.sanitizers.minimax.test_custom_filter import declare, make_records

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_loss.py"


def choose(folder: Path, source: str | None = None, **more: object) -> MinimaxCustomOptions:
    module = folder / "loss.py"
    module.write_text(EXAMPLE.read_text() if source is None else source)
    return declare(folder, loss="KeepMean", loss_module=str(module), **more)


def measure_error(fitted: RecordMap) -> float:
    x = draw_windows(20, 10)["features"].astype(np.float64)
    return float(((fitted.apply(x)[:, 0] - x.mean(axis=1)) ** 2).mean())


def test_own_loss__is_lowered_as_its_weight_says_and_stands_in_the_history(tmp_path: Path) -> None:
    records = make_records(10)
    given = {"max_iterations": 15, "held_out": 0.0}
    errors = []
    for weight in (0.01, 100.0):
        fitted = fit_minimax_custom_filter(records, choose(tmp_path, loss_weight=weight, **given))
        errors.append(measure_error(fitted))
        losses = dict(zip(fitted.history_columns, fitted.history[-1], strict=True))
        assert losses["loss_loss:KeepMean"] == pytest.approx(errors[-1], rel=1e-9)
        assert fitted.task_names[-1] == "loss:KeepMean"
    assert errors[1] < 0.2 * errors[0]


def test_own_loss__phi_has_the_gradient_of_finite_differences(tmp_path: Path) -> None:
    from privpipe.sanitizers.minimax.custom_filter import declare_family
    from tests.sanitizers.minimax.training.phi import make_objective

    records, options = make_records(5, n_shards=3), choose(tmp_path, loss_weight=3.0)
    family, start = declare_family(options, 96)
    tasks = (*options.measure_tasks(records)[1], *options.plan_loss_task(records.schema, 2))
    phi = make_objective(records, family, tasks, inner_tolerance=1e-12)
    along = np.random.default_rng(0).standard_normal(len(start))
    up, down = (phi(start + t * along).value for t in (1e-5, -1e-5))
    assert phi(start).gradient @ along == pytest.approx((up - down) / 2e-5, rel=1e-5)


def test_own_loss__of_a_neural_filter(tmp_path: Path) -> None:
    given = {"loss": "KeepMean", "loss_module": str(EXAMPLE), "n_hidden": (3,)}
    options = MinimaxNeuralOptions(**given, loss_weight=50.0, max_iterations=3)  # type: ignore[arg-type]
    options.check(make_records(2).schema)
    fitted = fit_minimax_neural_filter(make_records(3), options)
    assert fitted.task_names[-1] == "loss:KeepMean"
    column = fitted.history[:, list(fitted.history_columns).index("loss_loss:KeepMean")]
    assert column[-1] < column[0]


BROKEN = {
    "has the wrong sign": ("= 2 * error", "= -2 * error"),
    "is 2 times the derivative": ("= 2 * error", "= 4 * error"),
    "is not the derivative": ("slopes[:, self.column] = 2 * error", "slopes += 2 * z"),
    "not finite": ("= 2 * error", "= 2 * error * np.nan"),
    "gives arrays of shapes": ("return error**2", "return (error**2).mean()"),
    "draws at random": ("return error**2", "return np.random.normal() + error**2"),
    "change one another": ("return error**2", "return x.mean() + error**2"),
    "changes what it is given": ("error = z", "x *= 2; error = z"),
    "has no measure": ("def measure", "def meassure"),
    "raises AttributeError": ("self.column = column", "self.colunm = column"),
    "no class 'KeepMean'": ("class KeepMean", "class KeepMaen"),
    "which is not installed": ("import numpy as np", "import numpy as np, no_such_library"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_check__refuses_a_loss_and_says_why(tmp_path: Path, what: str) -> None:
    right, wrong = BROKEN[what]
    source = EXAMPLE.read_text()
    assert right in source
    with pytest.raises(OptionError, match=what):
        choose(tmp_path, source.replace(right, wrong, 1)).check(make_records(2).schema)


def test_check__a_right_loss_passes_and_its_content_is_part_of_the_options(tmp_path: Path) -> None:
    options = choose(tmp_path, loss_settings={"column": 1})
    options.check(make_records(2).schema)
    pinned = options.loss_code_sha256
    dumped = TypeAdapter(MinimaxCustomOptions).dump_python(options)
    assert dumped["loss_code_sha256"] == pinned
    assert choose(tmp_path, loss_sha256=pinned).loss_code_sha256 == pinned
    changed = EXAMPLE.read_text() + "\n"
    assert choose(tmp_path, changed).loss_code_sha256 != pinned
    filter_ = {"filter": "Tanh", "module": str(tmp_path / "mine.py")}
    loss = {"loss": "KeepMean", "loss_module": str(tmp_path / "loss.py"), "loss_sha256": pinned}
    for given, match in (
        (loss, "not the one of loss_sha256"),
        ({"loss_sha256": "0"}, "without its class"),
    ):
        with pytest.raises(OptionError, match=match):
            make_options(MinimaxCustomOptions, {**filter_, **given}, "minimax_own")


def test_own_loss__values_that_are_not_finite_on_records_are_counted(tmp_path: Path) -> None:
    source = EXAMPLE.read_text().replace(
        "return error**2", "return np.where(x[:, 64:].mean(axis=1) > 0.5, np.inf, error**2)"
    )
    options = choose(tmp_path, source, max_iterations=2)
    with pytest.raises(InputError, match="not finite for"):
        fit_minimax_custom_filter(make_records(5), options)
