"""One look for all figures: colour-blind safe, in light and in dark, as SVG.

Its colours are in ``templates/figures.yaml``. Every series has a marker of its own as well, so that
no meaning rests on colour alone.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from privpipe.report.audit_text import read_texts

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
    series: Sequence[str]


_LOOK = read_texts("figures.yaml")
THEMES: dict[ThemeName, Theme] = {name: Theme(**one) for name, one in _LOOK["themes"].items()}


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
    colours = {name: getattr(look, which) for name, which in _LOOK["colours"].items()}
    with mpl.rc_context(colours | _LOOK["sizes"]):
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
