"""The table of a descent shows what a filter keeps."""

from __future__ import annotations

from privpipe import Records
from privpipe.report.release_page import list_training
from privpipe.report.tables import format_number
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from tests.sanitizers.labelled_data import draw_labelled


def test_list_training__has_a_row_of_every_task() -> None:
    x, target, private = draw_labelled(200)
    records = Records(x, desired=target, confidential=private)
    for fit in (
        fit_minimax_filter(records, MinimaxOptions(max_iterations=3)),
        fit_minimax_neural_filter(
            records, MinimaxNeuralOptions(n_hidden=(20, 9), max_iterations=3)
        ),
    ):
        training = {
            "history": fit.history.tolist(),
            "columns": fit.history_columns,
            "tasks": fit.task_names,
            "baselines": fit.baselines.tolist(),
            "stopped": "iterations",
            "bound": None,
        }
        (section,) = list_training({"training": training})
        assert [row["task"] for row in section.rows] == list(fit.task_names)
        at = dict(zip(fit.history_columns, fit.history.T, strict=True))
        for row in section.rows:
            losses = at[f"loss_{row['task']}"]
            assert row["loss at the start"] == format_number(losses[0])
            assert row["at the end"] == format_number(losses[-1])
        target, secret = (
            float(row["at the end"]) / float(row["constant guess"]) for row in section.rows[:2]
        )
        assert target < 0.9
        assert 0.9 < secret < 1.02
