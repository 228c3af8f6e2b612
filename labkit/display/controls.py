"""A playground: Run bug, Run fix, Stop, Reset and sliders over one board. Nothing runs until a button is pressed.

So Run All passes over it at once; a saved notebook keeps a line that says what it offers, or the picture of the last
runs. While another cell computes, the chart waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.common import number
from labkit.events import Run

from . import notebook
from .dashboard import PLAYGROUND_TEXT, Board, known_mu
from .panels import Panels
from .texts import markdown_table

READY = "ready: nothing runs until you press a button"
NO_ROWS = "*Each run that you press becomes a row here.*"


def playground(
    function: Callable[..., Any],
    variants: Mapping[str, Mapping[str, Any]],
    sliders: Mapping[str, Sequence[Any]],
    *,
    panels: Panels | None = None,
    title: str = "",
    row: Callable[[Run], Mapping[str, Any]] | None = None,
    **fixed: Any,
) -> Playground:
    """Buttons and sliders for `function`, a generator of `Step`s. Let it be the last line of a cell.

    variants   button name -> the settings that make it: {"bug": {"kl": k3_raw}, "fix": {"kl": k3_clamped}}
    sliders    setting -> (low, high, default) or (low, high, default, "log"); whole numbers when all three are int
    fixed      settings of every run; a slider's value goes over these, a variant's over both
    panels, title   as for `labkit.watch`
    row        what a table under the board says of a run: a run that has ended is a row, the newest last. The run's
               `meta` has the "button" that was pressed and the "sliders"

    Returns a `Playground`, whose `runs` are the newest of each variant, and whose `history` is all of them.
    Raises: ValueError names a slider whose range does not fit.
    """
    specs = [_slider(name, *numbers) for name, numbers in sliders.items()]
    board = Board(panels, title=title, variants=list(variants), sliders=specs)
    return Playground(board, variants, function, fixed, row)


def _slider(name: str, low: float, high: float, value: float, scale: str = "") -> dict[str, Any]:
    """One slider, as the browser needs it. `log`: its places are even in the logarithm. `whole`: only whole numbers."""
    if not low <= value <= high or (scale == "log" and low <= 0):
        raise ValueError(f"playground: slider {name!r} needs low <= default <= high, and for log low > 0")
    whole = all(isinstance(number, int) for number in (low, high, value))
    return {"name": name, "low": low, "high": high, "value": value, "log": scale == "log", "whole": whole}


@dataclass(repr=False, eq=False)
class Playground:
    """What `playground` returns: `runs` are the newest of each variant, `history` all since Reset, oldest first."""

    board: Board
    variants: Mapping[str, Mapping[str, Any]]
    function: Callable[..., Any]
    fixed: Mapping[str, Any]
    row: Callable[[Run], Mapping[str, Any]] | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    history: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.board.on_message = self._receive
        self._tracks = {name: self.board.add(name) for name in self.variants}
        self._task: asyncio.Task[None] | None = None
        self._loop: Any = None  # of the kernel; messages may arrive in another thread
        self._table = notebook.Slot("table of the runs")

    def _ipython_display_(self) -> None:
        if notebook.kernel() is None:
            print(self)
            return
        if notebook.saved_pages():  # a saved page has no kernel that a widget could ask
            notebook.show_markdown(self.description(), PLAYGROUND_TEXT)
            return
        self._loop = asyncio.get_running_loop()
        self.board.show({"text/markdown": self.description()})
        if self.row is not None:
            self._table.show({"text/markdown": NO_ROWS})
        self.board.refresh(READY)

    def __repr__(self) -> str:
        return f"Playground({', '.join(self.variants)})"

    def description(self) -> str:
        """What a saved notebook says in place of the live controls."""
        buttons = " · ".join(f"**Run {name}**" for name in self.variants)
        lines = [f"*Playground*{f' ({self.board.title})' if self.board.title else ''}: {buttons}"]
        for s in self.board.sliders:
            low, high, value = (number(s[name]) for name in ("low", "high", "value"))
            lines.append(f"- `{s['name']}` from {low} to {high}, at {value}{' (log)' if s['log'] else ''}")
        return "\n".join(lines) + "\n\nRun this cell to use it; nothing runs until you press a button."

    async def run(self, variant: str, **values: Any) -> Run:
        """Press a Run button with the sliders at `values`, the others where they begin. Returns the `Run`."""
        from labkit import sandbox

        for slider in self.board.sliders:
            values.setdefault(slider["name"], slider["value"])
        settings = {"timeout": 600, **self.fixed, **values, **self.variants[variant]}
        front = self._tracks[variant]
        self.board.clear(front)
        for track in self._tracks.values():
            track.ghost = track is not front
        front.mu = known_mu(self.function, settings)
        child = sandbox.start(self.function, **settings)
        try:
            run = await self.board.follow(front, child)
        finally:
            child.stop()
        run.meta |= {"button": variant, "sliders": values}
        self.runs[variant] = run
        self.history.append(run)
        self._write_table()
        return run

    def _write_table(self) -> None:
        """Every run so far, under the board."""
        if self.row is not None:
            words = NO_ROWS
            if self.history:
                words = markdown_table([self.row(run) for run in self.history])
            self._table.put({"text/markdown": words})

    def reset(self) -> None:
        """Press Reset: forget the runs."""
        self.runs.clear()
        self.history.clear()
        self._write_table()
        for track in self._tracks.values():
            self.board.clear(track)
        self.board.refresh(READY)
        self.board.slot.put({"text/markdown": self.description()})

    def _receive(self, message: dict[str, Any]) -> None:
        """A button was pressed in the browser: hand it to the kernel's own thread."""
        self._loop.call_soon_threadsafe(self._pressed, message)

    def _pressed(self, message: dict[str, Any]) -> None:
        if self.board.running is not None or not (self._task is None or self._task.done()):
            return  # the page disables what may not be pressed now, a moment later than the kernel knows
        if message["kind"] == "reset":
            self.reset()
        else:  # the task is kept: the loop itself holds only a weak reference
            self._task = asyncio.get_running_loop().create_task(self._run(message["variant"], message["values"]))

    async def _run(self, variant: str, values: dict[str, Any]) -> None:
        """Run for a button: there is nobody to raise to, so what goes wrong is said in the status line."""
        try:
            await self.run(variant, **values)
        except Exception as error:
            self.board.refresh(f"{variant}: could not start: {type(error).__name__}: {error}")
