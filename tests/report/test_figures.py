"""Figures: they show what they were given, in both themes, and are told apart without colour."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from flows.reproduce.bars import BarPair, Estimate, plot_bar_panels
from privpipe.report.comparison_page import plot_trade_off, render_comparison
from privpipe.report.style import MARKERS, THEMES, ThemeName, render_svg

Draw = Callable[[ThemeName], Figure]


ENTRIES = [
    {
        "label": name,
        "gain": {"estimate": gain, "lower": gain - 0.1, "upper": gain + 0.1},
        "loss": {"estimate": loss, "lower": loss - 0.02, "upper": loss + 0.02},
        "on_front": True,
    }
    for name, gain, loss in (("a", 0.3, 0.05), ("b", 0.1, 0.2))
]

DRAWINGS: dict[str, Draw] = {
    "entries": lambda theme: plot_trade_off(ENTRIES, allowed=0.1, theme=theme),
    "bars": lambda theme: plot_bar_panels(
        {
            "accuracy": [
                BarPair("GENKI", Estimate(0.89, 0.8, 0.9), 0.9),
                BarPair("b", Estimate(1), None),
            ]
        },
        theme=theme,
    ),
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", DRAWINGS)
def test_plots__render_as_svg_the_same_each_time(name: str, theme: ThemeName) -> None:
    svg, again = (render_svg(DRAWINGS[name](theme)) for _ in range(2))
    assert svg == again
    root = ET.fromstring(svg)
    assert root.tag.endswith("svg")
    assert THEMES[theme].background in svg
    assert "file:" not in svg


@pytest.mark.parametrize("name", DRAWINGS)
def test_plots__use_no_global_state(name: str) -> None:
    import matplotlib as mpl
    from matplotlib import _pylab_helpers

    def settings() -> dict[str, object]:
        # The backend is resolved at the first look at it.
        return {key: value for key, value in mpl.rcParams.items() if key != "backend"}

    before = settings()
    render_svg(DRAWINGS[name]("dark"))
    assert settings() == before
    assert not _pylab_helpers.Gcf.figs


def test_plot_trade_off__puts_limits_where_they_are() -> None:
    axes = DRAWINGS["entries"]("light").axes[0]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"a", "b", "front", "allowed (0.1)"} <= set(labels)
    spans = [s.get_segments()[0] for c in axes.containers for s in c.lines[2]]
    np.testing.assert_allclose(spans[0][:, 0], [0.2, 0.4])
    np.testing.assert_allclose(spans[1][:, 1], [0.03, 0.07])


def test_plot_bars__leaves_a_gap_where_the_paper_gives_nothing() -> None:
    axes = DRAWINGS["bars"]("light").axes[0]
    heights = sorted(patch.get_height() for patch in axes.patches)
    assert heights == [0.89, 0.9, 1]


def test_comparison__of_entries_that_failed_draws_none() -> None:
    failed = {"label": "a", "error": "It failed.", "code": "rank", "on_front": False}
    found = {"entries": [failed], "made": "today", "source": "a.zarr"}
    page = render_comparison(found)
    assert "It failed." in page
    assert "<picture>" not in page


# Machado, Oliveira and Fernandes 2009, severity 1, applied to linear RGB.
BLINDNESS = {
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("kind", BLINDNESS)
def test_themes__first_series_differ_for_colour_blind_readers(theme, kind) -> None:
    """The first five colours stay apart; beyond them the markers tell series apart."""
    colours = np.array([to_rgb(c) for c in THEMES[theme].series[:5]])
    seen = np.clip((colours**2.2) @ np.array(BLINDNESS[kind]).T, 0, 1) ** (1 / 2.2)
    gaps = np.linalg.norm(seen[:, None] - seen[None], axis=2)
    assert gaps[np.triu_indices(5, 1)].min() > 0.12
    assert len(set(MARKERS)) == len(MARKERS) >= len(THEMES[theme].series)


def test_themes__text_has_contrast() -> None:
    def luminance(colour: str) -> float:
        return float(np.array(to_rgb(colour)) ** 2.2 @ [0.2126, 0.7152, 0.0722])

    for theme in THEMES.values():
        dark, light = sorted((luminance(theme.text), luminance(theme.background)))
        assert (light + 0.05) / (dark + 0.05) > 7


def test_plot_bar_panels__gives_every_unit_its_own_axis() -> None:
    pairs = {
        "accuracy": [BarPair("a", Estimate(0.8, 0.7, 0.9), 0.85)],
        "bits": [BarPair("b", Estimate(3.0, 2.0, 4.0), None)],
    }
    figure = plot_bar_panels(pairs, title="Two", theme="dark")
    assert [axes.get_ylabel() for axes in figure.axes] == ["accuracy", "bits"]
    legends = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in figure.axes]
    assert legends == [["ours", "paper"], ["ours"]]
    assert "Two" in render_svg(figure)


@pytest.mark.parametrize("theme", THEMES)
def test_themes__no_two_series_share_colour_or_marker(theme) -> None:
    series = THEMES[theme].series
    assert len(set(series)) == len(series) == len(set(MARKERS)) == len(MARKERS)
