"""The picture of a descent is written from what a filter keeps."""

from __future__ import annotations

from pathlib import Path

from privpipe import Records
from privpipe.report.descent import draw_descent
from privpipe.sanitizers.minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax_neural import MinimaxNeuralOptions, fit_minimax_neural_filter
from tests.sanitizers.labelled_data import draw_labelled


def test_draw_descent__shows_every_task(tmp_path: Path) -> None:
    x, target, private = draw_labelled(200)
    records = Records(x, desired=target, confidential=private)
    fits = {
        "linear": fit_minimax_filter(records, MinimaxOptions(max_iterations=3)),
        "neural": fit_minimax_neural_filter(records, MinimaxNeuralOptions(max_iterations=3)),
    }
    for name, fit in fits.items():
        path = tmp_path / f"{name}.svg"
        draw_descent(str(path), fit.history, fit.history_columns, fit.task_names, fit.baselines)
        text = path.read_text()
        assert text.count("<path") > 20
        assert ("held_out_phi" in fit.history_columns) == (name == "neural")
