"""The pictures of a descent show what a filter keeps."""

from __future__ import annotations

from privpipe import Records
from privpipe.report.release_page import list_training, scale_losses
from privpipe.sanitizers.minimax.linear_minimax import MinimaxOptions, fit_minimax_filter
from privpipe.sanitizers.minimax.neural_minimax import (
    MinimaxNeuralOptions,
    fit_minimax_neural_filter,
)
from tests.sanitizers.labelled_data import draw_labelled


def test_plot_phi__and_losses_show_every_series() -> None:
    x, target, private = draw_labelled(200)
    records = Records(x, desired=target, confidential=private)
    for fit, held_out in (
        (fit_minimax_filter(records, MinimaxOptions(max_iterations=3)), False),
        (
            fit_minimax_neural_filter(
                records, MinimaxNeuralOptions(n_hidden=(20, 9), max_iterations=3)
            ),
            True,
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
        phi, losses = section.pictures
        assert ("held-out records" in phi.light) == held_out
        assert all(name in losses.dark for name in fit.task_names)
        at = dict(zip(fit.history_columns, fit.history.T, strict=True))
        shares = scale_losses(at, fit.task_names, fit.baselines)
        target, secret = (shares[name][-1] for name in fit.task_names[:2])
        assert target < 0.9
        assert 0.9 < secret < 1.01
