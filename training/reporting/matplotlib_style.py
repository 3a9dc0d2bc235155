"""Drawing with matplotlib: SVG for light and dark pages, and figures as files."""

import importlib.util
import io
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kmha.errors import InputError
from training.io.disk import atomic_write
from training.reporting.blocks import Picture

# Colors of light pages; `_DARK` has those of dark pages.
INK, QUIET, ACCENT, OTHER, FILL = "#1c1d21", "#5d6069", "#b4451f", "#2f6fb0", "#6f9bd1"
_DARK = {INK: "#e8e8e6", QUIET: "#a0a3ad", ACCENT: "#f09a6b", OTHER: "#7db4ea", FILL: "#5b87bd"}
# Formats that matplotlib writes without other programs.
SUFFIXES = (".png", ".svg", ".pdf")
POINT = 9  # font size in points, 72 to the inch
_MAX_NAME_LENGTH = 22
# CSS pixels per inch of a figure: letters of 9 points are then 13 pixels high.
_SCALE = 104
_STYLE: Any = {
    # Text stays text, so that the browser's fonts draw any script.
    "svg.fonttype": "none",
    "svg.hashsalt": "kmha",
    # A label is not a formula.
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


def can_draw() -> bool:
    """Whether matplotlib is installed (extra: report)."""
    return importlib.util.find_spec("matplotlib") is not None


def check_matplotlib(flag: str = "--out") -> None:
    """Raises InputError if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        message = f"{flag}: expected matplotlib to draw with, got none; pip install 'kmha[report]'"
        raise InputError(message) from None


def check_figure_path(path: Path, flag: str = "--out") -> None:
    """Raises InputError if no figure can be written: wrong suffix, no such folder, or no matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        expected = f"expected a file ending in {', '.join(SUFFIXES)}"
        raise InputError(f"{flag} {path}: {expected}, got {path.suffix or 'none'}")
    if not path.parent.is_dir():
        raise InputError(f"{flag} {path}: expected a folder that exists, got {path.parent}")
    check_matplotlib(flag)


def write_figure(
    path: Path, size: tuple[float, float], draw: Callable[[Any], None], flag: str = "--out"
) -> None:
    """Draws a figure into a file, atomically; the suffix of the path sets the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    with atomic_write(path, overwrite=True, flag=flag) as partial:
        figure.savefig(partial, dpi=120, format=path.suffix[1:].lower())


def picture(
    alt: str, width: float, height: float, draw: Callable[[Any], None], fitted: bool = True
) -> Picture:
    """Draws a picture, described in words and in inches, for a page; `fitted`: matplotlib places the axes."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    buffer = io.BytesIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # The browser draws glyphs that matplotlib's own font lacks with its fonts.
        warnings.filterwarnings("ignore", r"Glyph .* missing from", UserWarning)
        figure = Figure(figsize=(width, height), layout="constrained" if fitted else None)
        FigureCanvasSVG(figure)
        draw(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    light = dark = buffer.getvalue().decode("utf-8")
    for color, replacement in _DARK.items():
        dark = dark.replace(color, replacement)
    return Picture(alt, light, dark, round(width * _SCALE), round(height * _SCALE))


def drawable(name: str) -> str:
    """A label as it is drawn: on one line, of printable characters, truncated to 22."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in name).split()) or "(blank)"
    return shown if len(shown) <= _MAX_NAME_LENGTH else f"{shown[: _MAX_NAME_LENGTH - 1]}…"


def name_width(name: str) -> float:
    """Approximate width of a drawn name in inches; Chinese characters are wider than letters."""
    ems = sum(1.05 if unicodedata.east_asian_width(c) in "WF" else 0.62 for c in name)
    return ems * POINT / 72
