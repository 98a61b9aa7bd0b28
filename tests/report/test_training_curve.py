"""The pictures of a descent show what a filter keeps."""

from __future__ import annotations

from privpipe import Records
from privpipe.report.style import render_svg
from privpipe.report.training_sections import plot_losses, plot_phi
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
        phi = plot_phi(fit.history, fit.history_columns)
        assert ("held-out records" in render_svg(phi)) == held_out
        assert len(phi.axes[0].get_lines()) == 1 + held_out
        losses = plot_losses(fit.history, fit.history_columns, fit.task_names, fit.baselines)
        shares = [line.get_ydata()[-1] for line in losses.axes[0].get_lines()]
        assert shares[0] < 0.9
        assert 0.9 < shares[1] < 1.01
