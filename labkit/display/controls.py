"""A playground: Run bug, Run fix, Stop, Reset and sliders over one board. Nothing runs until a button is pressed.

So Run All passes over it at once; a saved notebook keeps a line that says what it offers, or the picture of the last
runs. While another cell computes, the chart waits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.common import number
from labkit.events import Run

from . import notebook
from .dashboard import Board, known_mu
from .panels import Panels, Thresholds

READY = "ready: nothing runs until you press a button"


def playground(
    function: Callable[..., Any],
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    sliders: Mapping[str, Sequence[Any]] | None = None,
    *,
    panels: Panels | None = None,
    thresholds: Thresholds | None = None,
    timeout: float | None = 600,
    title: str = "",
    **fixed: Any,
) -> Playground:
    """Buttons and sliders for `function`, a generator of `Step`s. Let it be the last line of a cell.

    variants   button name -> the settings that make it: {"bug": {"kl": k3_raw}, "fix": {"kl": k3_clamped}}
    sliders    setting -> (low, high, default) or (low, high, default, "log"); whole numbers when all three are int
    fixed      settings of every run; a slider's value goes over these, a variant's over both
    panels, thresholds, timeout, title   as for `labkit.watch`

    Returns a `Playground`: `await pg.run("bug")` presses a button from code and gives the `Run`.
    Raises: ValueError and TypeError name what does not fit.
    """
    buttons = {"run": {}} if variants is None else variants
    moved = {name: Slider.of(name, given) for name, given in (sliders or {}).items()}
    for name, settings in buttons.items():
        if both := sorted(set(settings) & set(moved)):
            raise ValueError(f"playground: {both} is a slider and a setting of {name!r}; choose one")
    shown = [vars(slider) for slider in moved.values()]
    board = Board(panels, thresholds, title, variants=list(buttons), sliders=shown)
    return Playground(board, buttons, moved, function, fixed, timeout)


@dataclass(frozen=True)
class Slider:
    """One slider, as the browser needs it. `log`: its places are even in the logarithm. `whole`: only whole numbers."""

    name: str
    low: float
    high: float
    value: float
    log: bool
    whole: bool

    @classmethod
    def of(cls, name: str, given: Sequence[Any]) -> Slider:
        """From (low, high, default) or (low, high, default, "log"). ValueError says what does not fit."""
        numbers, log = given[:3], list(given[3:]) == ["log"]
        if len(numbers) < 3 or (len(given) > 3 and not log):
            form = '(low, high, default) or (low, high, default, "log")'
            raise ValueError(f"playground: slider {name!r} needs {form}, got {given!r}")
        low, high, value = numbers
        if not -math.inf < low <= value <= high < math.inf or low == high or (log and low <= 0):
            words = "low < high, low <= default <= high, all finite" + ", and low > 0 for log" * log
            raise ValueError(f"playground: slider {name!r} needs {words}; got {given!r}")
        return cls(name, low, high, value, log, all(isinstance(v, int) for v in numbers))

    def placed(self, value: Any) -> float:
        """The value it takes when it is moved there. ValueError for one outside its range."""
        if not isinstance(value, (int, float)) or not self.low <= value <= self.high:
            raise ValueError(f"playground: {self.name} is a number from {self.low} to {self.high}, got {value!r}")
        return round(value) if self.whole else float(value)


@dataclass(repr=False, eq=False)
class Playground:
    """What `playground` returns: `runs` are the newest of each variant."""

    board: Board
    variants: Mapping[str, Mapping[str, Any]]
    sliders: Mapping[str, Slider]
    function: Callable[..., Any]
    fixed: Mapping[str, Any]
    timeout: float | None
    runs: dict[str, Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.board.on_message = self._receive
        self._tracks = {name: self.board.add(name) for name in self.variants}
        self._task: asyncio.Task[None] | None = None
        self._loop: Any = None  # of the kernel; messages may arrive in another thread

    def _ipython_display_(self) -> None:
        if notebook.kernel() is None:
            print(self)
            return
        self._loop = asyncio.get_running_loop()
        self.board.show({"text/markdown": self.description()})
        self.board.refresh(READY)

    def __repr__(self) -> str:
        return f"Playground({', '.join(self.variants)})"

    def description(self) -> str:
        """What a saved notebook says in place of the live controls."""
        buttons = " · ".join(f"**Run {name}**" for name in self.variants)
        lines = [f"*Playground*{f' ({self.board.title})' if self.board.title else ''}: {buttons}"]
        for s in self.sliders.values():
            low, high, value = (number(v) for v in (s.low, s.high, s.value))
            lines.append(f"- `{s.name}` from {low} to {high}, at {value}{' (log)' * s.log}")
        return "\n".join(lines) + "\n\nRun this cell to use it; nothing runs until you press a button."

    async def run(self, variant: str, **values: Any) -> Run:
        """Press a Run button with the sliders at `values`, the others where they begin.

        Returns the `Run`, however it ended.
        Raises: ValueError names a variant, slider or value that does not exist; RuntimeError while another run goes on.
        """
        if variant not in self.variants:
            raise ValueError(f"playground: no variant {variant!r}; there are {sorted(self.variants)}")
        if self.board.running is not None:
            raise RuntimeError(f"playground: {self.board.running.label!r} is still running; stop it first")
        for name in values:
            if name not in self.sliders:
                raise ValueError(f"playground: no slider {name!r}; there are {sorted(self.sliders)}")
        placed = {name: slider.placed(values.get(name, slider.value)) for name, slider in self.sliders.items()}
        settings = {**self.fixed, **placed, **self.variants[variant]}
        from labkit import sandbox

        front = self._tracks[variant]
        self.board.clear(front)
        for track in self._tracks.values():
            track.ghost = track is not front
        front.mu = known_mu(self.function, settings)
        child = sandbox.start(self.function, timeout=self.timeout, **settings)
        try:
            run = await self.board.follow(front, child)
        finally:
            child.stop()
        run.meta["sliders"] = placed
        self.runs[variant] = run
        return run

    def reset(self) -> None:
        """Press Reset: forget the runs."""
        self.runs.clear()
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
