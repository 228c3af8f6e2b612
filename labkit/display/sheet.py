"""What the pictures share: a sheet to draw on, coloured words side by side, a small PNG.

It knows no run and no segment. matplotlib and PIL are imported when something is drawn.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterable, Iterator, Sequence
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
    "axes.unicode_minus": True,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.usetex": False,
    "path.simplify": True,
    "axes.xmargin": 0.0,
}
Words = tuple[str, str, str]  # text, colour, weight
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


def words(figure: Any, x: float, y: float, parts: Iterable[Words], size: float = 8) -> None:
    """Coloured words side by side from x on, inches from the lower left."""
    wide, high = figure.get_size_inches()
    for text, colour, weight in parts:
        style = {"color": colour, "weight": weight, "size": size, "va": "center"}
        x += extent(figure.text(x / wide, y / high, text, **style)).width / figure.dpi + 0.1


def extent(text: Any) -> Any:
    """The box of a drawn text, in pixels."""
    return text.get_window_extent(text.get_figure().canvas.get_renderer())


def png(figure: Any, colours: Iterable[str]) -> bytes:
    """The figure as a PNG with a palette: a third of the size.

    The palette holds greys and the `colours` that were drawn with, each mixed with white, with ink and with the others:
    so a colour that is rare in the picture keeps its hue, and letters on it their edges.
    """
    from PIL import Image

    figure.canvas.draw()
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for colour in _palette(colours) for channel in colour])
    size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
    image = Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB")
    out = io.BytesIO()
    # optimize=True takes 27 ms more for 5 % less
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(out, "PNG")
    return out.getvalue()


def _palette(colours: Iterable[str]) -> list[tuple[int, ...]]:
    white = (255, 255, 255)
    ink, *used = [tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in dict.fromkeys([INK, *colours])]
    found = [_mixed(ink, white, i / 15) for i in range(16)]
    for at, colour in enumerate(used[:12]):  # 12 make 238, of 256
        found += [_mixed(colour, white, i / 10) for i in range(10)]
        found += [_mixed(colour, ink, i / 4) for i in range(1, 4)]
        found += [_mixed(colour, other, 0.5) for other in used[:at]]
    return found


def _mixed(one: Sequence[int], other: Sequence[int], share: float) -> tuple[int, ...]:
    return tuple(round(a + share * (b - a)) for a, b in zip(one, other, strict=True))


class Picture:
    """A PNG. Jupyter shows it, `save` writes it. Its text form is the same on every machine.

    `shown` is {"width": ...} in CSS pixels, where that differs from the picture's own.
    """

    def __init__(self, png: bytes, text: str, shown: dict[str, int] | None = None):
        self.png, self._text, self._shown = png, text, shown

    def _repr_png_(self) -> Any:
        return (self.png, self._shown) if self._shown else self.png

    def __repr__(self) -> str:
        return self._text

    def save(self, path: str | Path) -> Path:
        """Write the PNG and return its path."""
        return write_whole(path, self.png)
