"""Drawing with matplotlib: figures as SVG, once for light pages and once for dark ones."""

import contextlib
import importlib.util
import io
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any

from training.reporting.blocks import Picture

# Of light pages and of dark ones; what is drawn between them stays as it is.
INK, QUIET, ACCENT, OTHER, FILL = "#1c1d21", "#5d6069", "#b4451f", "#2f6fb0", "#6f9bd1"
_DARK = {INK: "#e8e8e6", QUIET: "#a0a3ad", ACCENT: "#f09a6b", OTHER: "#7db4ea", FILL: "#5b87bd"}
POINT = 9  # size of the letters, in CSS pixels of which 72 are drawn as an inch
_LONGEST_NAME = 22
_STYLE: Any = {
    # Letters stay letters: the reader's own fonts draw them, whatever script a label is in.
    "svg.fonttype": "none",
    "svg.hashsalt": "kmha",
    # A label is no formula.
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": POINT,
    "axes.titlesize": POINT + 1,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.3,
    "grid.color": QUIET,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": QUIET,
    "axes.titlecolor": INK,
    "axes.edgecolor": QUIET,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
# CSS pixels of an inch: letters of 9 points are then 13 pixels high.
_SCALE = 104


def can_draw() -> bool:
    """Whether matplotlib is installed (extra: report)."""
    return importlib.util.find_spec("matplotlib") is not None


def picture(
    alt: str, width: float, height: float, draw: Callable[[Any], None], fitted: bool = True
) -> Picture:
    """Draws a picture.

    Args:
        alt: What it shows, in words.
        width: In inches.
        height: In inches.
        draw: Draws into a matplotlib figure.
        fitted: Whether matplotlib places the axes; otherwise `draw` does.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    written = io.BytesIO()
    with matplotlib.rc_context(_STYLE), _any_script():
        figure = Figure(figsize=(width, height), layout="constrained" if fitted else None)
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(written, format="svg", metadata={"Date": None})
    light = written.getvalue().decode("utf-8")
    dark = light
    for colour, instead in _DARK.items():
        dark = dark.replace(colour, instead)
    return Picture(alt, light, dark, round(width * _SCALE), round(height * _SCALE))


@contextlib.contextmanager
def _any_script():
    """Matplotlib measures letters with its own font, which has few scripts; what shows them is the reader's browser."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        yield


def drawable(name: str) -> str:
    """A label's name as it is drawn: on one line, not too long, of visible characters."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "(blank)"
    return shown if len(shown) <= _LONGEST_NAME else f"{shown[: _LONGEST_NAME - 1]}…"


def name_width(name: str) -> float:
    """About how wide a drawn name is, in inches; Chinese characters are wider than letters."""
    ems = sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in name)
    return ems * POINT / 72
