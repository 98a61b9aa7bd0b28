"""One look for all figures: colour-blind safe, in light and in dark, as SVG.

Colours are those of Okabe and Ito (2008), brightened for the dark theme; every series has a
marker of its own as well, so that no meaning rests on colour alone.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

ThemeName = Literal["light", "dark"]

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", "h")


@dataclass(frozen=True)
class Theme:
    """Colours of one theme; `series` in the order of use, so that neighbours differ most.

    There are ten, more than any figure here has series, so that no two share a colour.
    """

    background: str
    text: str
    faint: str
    limit: str
    series: tuple[str, ...]


THEMES: dict[ThemeName, Theme] = {
    "light": Theme(
        background="#ffffff",
        text="#1b1f24",
        faint="#8a929b",
        limit="#b3261e",
        series=(
            *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A5A5A"),
            *("#7B3FA0", "#8C510A", "#808000"),
        ),
    ),
    "dark": Theme(
        background="#14181d",
        text="#e3e8ed",
        faint="#7b8691",
        limit="#ff8a80",
        series=(
            *("#56B4E9", "#FF8C4B", "#2CC79A", "#E59AC4", "#F2B632", "#8FA8FF", "#B5BCC4"),
            *("#B57EDC", "#C49A6C", "#C8C84A"),
        ),
    ),
}


def new_figure(
    theme: ThemeName, *, width: float = 6.4, height: float = 4.2
) -> tuple[Figure, Any, Theme]:
    """An empty figure with one pair of axes in the house's look.

    Parameters
    ----------
    theme
        "light" or "dark".
    width, height
        Size in inches.

    Returns
    -------
    figure, axes, theme
        The axes are matplotlib's, the theme holds the colours to use.
    """
    with theme_panels(theme) as look:
        spaced = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)
        figure = Figure(figsize=(width, height), layout=spaced)
        axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, linewidth=0.5, alpha=0.35, color=look.faint)
    axes.set_axisbelow(True)
    return figure, axes, look


@contextmanager
def theme_panels(theme: ThemeName) -> Iterator[Theme]:
    """Everything made within has the theme's colours."""
    look = THEMES[theme]
    settings: dict[Any, Any] = {
        "figure.facecolor": look.background,
        "axes.facecolor": look.background,
        "axes.edgecolor": look.faint,
        "axes.labelcolor": look.text,
        "axes.titlecolor": look.text,
        "axes.titlesize": 11,
        "axes.labelsize": 10,
        "xtick.color": look.text,
        "ytick.color": look.text,
        "text.color": look.text,
        "font.family": "sans-serif",
        "font.size": 9.5,
    }
    with mpl.rc_context(settings):
        yield look


def finish_figure(axes: Any, look: Theme, *, title: str = "") -> None:
    """Put title and legend, which is beside the axes, in their places.

    Parameters
    ----------
    axes, look
        As `new_figure` gave them, with everything drawn.
    title
        Title; none when empty.
    """
    axes.set_title(title, loc="left", pad=9, fontweight="bold")
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0)}
    axes.legend(frameon=False, fontsize=9, labelcolor=look.text, **place)


def render_svg(figure: Figure, *, salt: str = "privpipe") -> str:
    """The figure as SVG text, the same text for the same figure.

    Parameters
    ----------
    figure
        What to render.
    salt
        Makes the identifiers inside the SVG, so that two on one page do not meet.
    """
    out = io.StringIO()
    # Without a salt identifiers are drawn anew, and the same page has other bytes; text stays
    # text, in the reader's fonts.
    with mpl.rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        # No date: the same findings make the same page.
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": "privpipe"})
    return out.getvalue()


def draw_themes(draw: Callable[..., Figure]) -> tuple[str, str]:
    """A figure as SVG for light and for dark pages."""
    return render_svg(draw(theme="light")), render_svg(draw(theme="dark"))
