"""One figure with knobs over what was computed before: `labkit.explore(draw, share=(0, 1, 0.05), update=[2, 3, 4])`.

Every position is drawn once, and all of them lie in one piece of HTML whose few lines of script exchange them. So the
knobs follow the finger, also when the kernel is busy or gone, in a page that was saved and opened again, and
in the built site. A page that is committed (LABKIT_SAVED_PAGES is set) holds named positions side by side
instead: a thirtieth of the bytes, and what GitHub can show.
"""

from __future__ import annotations

import base64
import io
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.common import number

from . import notebook
from .sheet import INK, png, sheet

WIDTH, DPI = 8.6, 125  # inches, and dots an inch: a third more than the widest page shows
POSITIONS = 250  # at most: each is some 10 kB in the page and a twentieth of a second to draw
BUTTONS = 5  # so many words stand side by side as buttons; more numbers than this are a slider

Values = dict[str, Any]


@dataclass(frozen=True)
class Knob:
    """One knob.

    kind     "slider", "stepper", "buttons" or "check"
    values   what `draw` is given
    labels   how a reader sees them
    """

    name: str
    kind: str
    values: list[Any]
    labels: list[str]


def explore(
    draw: Callable[..., None],
    *,
    saved: Sequence[Mapping[str, Any]],
    title: str = "",
    height: float = 2.2,
    panels: Sequence[float] = (1,),
    **knobs: Any,
) -> None:
    """Display a figure and its knobs.

    draw     called as `draw(axes, share=0.3, update=2)` for each position; it draws on matplotlib axes, a list of them
             where there are several panels, and computes nothing
    knobs    name -> its values. (low, high, step) is a slider, [False, True] a check box, words are buttons, up to five
             numbers a stepper, more of them a slider. Where a name has underscores, the page shows spaces
    saved    the positions that a committed page holds, and readers without script see: {"share": 0.3, "update": 2}; the
             knobs begin at the first
    title    what is seen, in a sentence
    height   inches, of one position
    panels   widths of the panels side by side, as ratios

    Raises: ValueError names a knob without values, a saved position that no knob has, and too many positions.
    """
    made = [_knob(name, values) for name, values in knobs.items()]
    if not made or not saved:
        raise ValueError("explore: expected at least one knob, and at least one position in `saved`")
    count = 1
    for knob in made:
        count *= len(knob.values)
    if count > POSITIONS:
        raise ValueError(f"explore: {count} positions, at most {POSITIONS} can be drawn; give a knob fewer values")
    starts = [_places(made, position) for position in saved]
    if notebook.kernel() is None:  # a script has nobody to draw for
        return

    figure = _Frames(draw, made, height, panels)
    side_by_side = figure.stacked(starts, title)
    text = f"figure with {' and '.join(f'the knob {knob.name!r}' for knob in made)}: {title}".strip(": ")
    slot, picture = notebook.Slot(text), base64.b64encode(side_by_side).decode()
    if notebook.saved_pages():
        slot.show({"image/png": picture})
        return
    # 1. the saved positions at once
    slot.show({"image/png": picture})
    # 2. as soon as all positions are drawn, the figure that can be turned
    turned = []
    for knob, at in zip(made, starts[0], strict=True):
        turned.append({"name": knob.name, "kind": knob.kind, "labels": knob.labels, "at": at})
    spec = {"title": title, "knobs": turned, "frames": list(figure.all(title))}
    static = f'<img alt="{text}" src="data:image/png;base64,{picture}">'
    slot.put({"text/html": notebook.page("knobs", static, spec)})


def _knob(name: str, values: Any) -> Knob:
    """The knob that fits the values."""
    if isinstance(values, tuple) and len(values) == 3 and all(isinstance(v, (int, float)) for v in values):
        low, high, step = values
        count = round((high - low) / step) + 1
        if step <= 0 or count < 2:
            raise ValueError(f"explore: knob {name!r} = {values}: expected (low, high, step) with room for a step")
        # rounded, so that 3 * 0.1 is 0.3: the values are keys of what was computed
        listed = [round(low + at * step, 10) for at in range(count)]
        kind = "slider"
    else:
        listed = list(values)
        words = any(isinstance(value, str) for value in listed)
        kind = "stepper" if len(listed) <= BUTTONS else "slider"
        if listed == [False, True]:
            kind = "check"
        elif words:
            kind = "buttons"
    if not listed:
        raise ValueError(f"explore: knob {name!r} has no values")
    labels = [value if isinstance(value, str) else number(value) for value in listed]
    if kind == "check":
        labels = ["off", "on"]
    return Knob(name.replace("_", " "), kind, listed, labels)


def _places(knobs: Sequence[Knob], position: Mapping[str, Any]) -> list[int]:
    """Where each knob stands at a position; at its first value where the position does not say."""
    named = {name.replace("_", " "): value for name, value in position.items()}
    unknown = sorted(set(named) - {knob.name for knob in knobs})
    if unknown:
        raise ValueError(f"explore: a saved position has {unknown}; the knobs are {[knob.name for knob in knobs]}")
    places = []
    for knob in knobs:
        value = named.get(knob.name, knob.values[0])
        if value not in knob.values:
            raise ValueError(f"explore: knob {knob.name!r} has no {value!r}; it has {knob.labels}")
        places.append(knob.values.index(value))
    return places


class _Frames:
    """Draws positions."""

    def __init__(self, draw: Callable[..., None], knobs: Sequence[Knob], height: float, panels: Sequence[float]):
        self.draw, self.knobs, self.height, self.panels = draw, knobs, height, list(panels)

    def values(self, places: Sequence[int]) -> Values:
        pairs = zip(self.knobs, places, strict=True)
        return {knob.name.replace(" ", "_"): knob.values[place] for knob, place in pairs}

    def stacked(self, positions: Sequence[Sequence[int]], title: str) -> bytes:
        """The PNG of some positions, one under another, each with its knobs' values."""
        head = 0.3 if title else 0.05
        with sheet(WIDTH, head + (self.height + 0.2) * len(positions), DPI) as figure:
            parts = figure.subfigures(len(positions), 1, squeeze=False)[:, 0]
            for part, places in zip(parts, positions, strict=True):
                self._draw(part, self.values(places))
                where = ",  ".join(
                    f"{knob.name}: {knob.labels[place]}" for knob, place in zip(self.knobs, places, strict=True)
                )
                part.suptitle(where, x=0.01, ha="left", size=8, weight="bold", color=INK)
            figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / figure.get_figheight()))
            if title:
                self._title(figure, title)
            return png(figure)

    def all(self, title: str) -> Iterator[str]:
        """Every position as base64 of a WebP, in the order in which the last knob turns fastest."""
        from PIL import Image

        head = 0.3 if title else 0.05
        ranges = [range(len(knob.values)) for knob in self.knobs]
        with sheet(WIDTH, self.height + head, DPI) as figure:
            figure.set_layout_engine("constrained", rect=(0, 0, 1, 1 - head / figure.get_figheight()))
            for places in itertools.product(*ranges):
                figure.clear()
                if title:
                    self._title(figure, title)
                self._draw(figure, self.values(places))
                figure.canvas.draw()
                size, pixels = figure.canvas.get_width_height(), figure.canvas.buffer_rgba()
                image = Image.frombuffer("RGBA", size, pixels, "raw", "RGBA", 0, 1).convert("RGB")
                file = io.BytesIO()
                image.save(file, "WEBP", quality=70, method=2)
                yield base64.b64encode(file.getvalue()).decode()

    def _title(self, figure: Any, title: str) -> None:
        top = 1 - 0.06 / figure.get_figheight()
        figure.text(0.01, top, title, va="top", size=9.5, weight="bold", color=INK)

    def _draw(self, figure: Any, values: Values) -> None:
        axes = figure.subplots(1, len(self.panels), width_ratios=self.panels, squeeze=False)[0]
        for each in axes:
            each.tick_params(labelsize=7)
            each.spines[["top", "right"]].set_visible(False)
        self.draw(axes[0] if len(axes) == 1 else list(axes), **values)
