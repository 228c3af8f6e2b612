"""What the pictures share: a sheet to draw on, coloured words side by side, a small PNG."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from labkit.common import write_whole

INK, GREY, GRID = "#333333", "#6A6A6A", "#E3E3E3"
STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": GRID,
    "axes.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.usetex": False,
    "axes.xmargin": 0.0,
}
Word = tuple[str, str, str]  # text, colour, weight
_one_at_a_time = threading.Lock()  # matplotlib's settings are global to the process


@contextlib.contextmanager
def sheet(width: float, height: float, dpi: int) -> Iterator[Any]:
    """A blank matplotlib figure, in inches. The reader's own matplotlib settings are as before afterwards."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with _one_at_a_time, matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
        FigureCanvasAgg(figure)
        yield figure


def write_line(figure: Any, x: float, y: float, parts: Iterable[Word], size: float = 8) -> None:
    """Coloured words side by side from x on, inches from the lower left; a single sign stands close to its word."""
    wide, high = figure.get_size_inches()
    for text, colour, weight in parts:
        word = figure.text(x / wide, y / high, text, color=colour, weight=weight, size=size, va="center")
        x += extent(word).width / figure.dpi + (0.03 if len(text) == 1 else 0.12)


def extent(text: Any) -> Any:
    """The box of a drawn text, in pixels."""
    return text.get_window_extent(text.get_figure().canvas.get_renderer())


def png(figure: Any) -> bytes:
    """The figure as a PNG with a palette of its most frequent colours, 8 apart: a third of the size, exact fills."""
    from PIL import Image

    figure.canvas.draw()
    size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
    image = Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB")
    counted: Any = image.getcolors(size[0] * size[1])
    frequent: dict[tuple[int, ...], tuple[int, ...]] = {}
    for _, colour in sorted(counted, reverse=True):
        frequent.setdefault(tuple(channel // 8 for channel in colour), colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in list(frequent.values())[:256] for channel in colour])
    out = io.BytesIO()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(out, "PNG")
    return out.getvalue()


SHOWN = {"width": 860}  # CSS pixels: 100 per inch, so that it is sharp on a dense screen


class Picture:
    """A PNG. Jupyter shows it; `save` writes it. Its text is the same on every machine."""

    def __init__(self, png: bytes, text: str):
        self.png, self._text = png, text

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        return self.png, SHOWN

    def __repr__(self) -> str:
        return self._text

    def save(self, path: str | Path) -> Path:
        """Write the PNG and return its path."""
        return write_whole(path, self.png)
