"""A playground: Run bug, Run fix, Stop, Reset and sliders over one board. Nothing runs until a button is pressed.

So Run All, nbval and papermill pass over it at once; a saved notebook keeps a line that says what it offers, and the
picture of the last runs once somebody pressed a button. Runs go on in a child process (`labkit.sandbox`) while the
kernel stays free; while another cell computes, the chart waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from labkit.common import number
from labkit.events import Run

from . import notebook
from .dashboard import Board, setting
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

    `await pg.run("bug")` presses a button from code and gives the `Run`.

    Returns a `Playground`, whose `runs` are the newest of each variant.
    Raises: ValueError and TypeError name what does not fit.
    """
    if not callable(function):
        raise TypeError(f"playground: expected a function that yields Steps, got {function!r}")
    buttons = _checked_variants({"run": {}} if variants is None else variants)
    moved = {name: Slider.of(name, given) for name, given in (sliders or {}).items()}
    for name, settings in buttons.items():
        if both := sorted(set(settings) & set(moved)):
            raise ValueError(f"playground: {both} is a slider and a setting of {name!r}; choose one")
    shown = [dataclasses.asdict(slider) for slider in moved.values()]
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
    def of(cls, name: str, given: Any) -> Slider:
        """From (low, high, default) or (low, high, default, "log"). ValueError says what does not fit."""
        if not isinstance(given, (tuple, list)) or list(given[3:]) not in ([], ["log"]) or len(given) < 3:
            form = '(low, high, default) or (low, high, default, "log")'
            raise ValueError(f"playground: slider {name!r} needs {form}, got {given!r}")
        low, high, value = numbers = given[:3]
        if not all(_is_number(v) and math.isfinite(v) for v in numbers):
            raise ValueError(f"playground: slider {name!r} needs finite numbers, got {given!r}")
        log = len(given) == 4
        if not low < high or not low <= value <= high or (log and low <= 0):
            words = "low < high, low <= default <= high" + ", and low > 0 for log" * log
            raise ValueError(f"playground: slider {name!r} needs {words}; got {given!r}")
        return cls(name, low, high, value, log, all(isinstance(v, int) for v in numbers))

    def placed(self, value: Any) -> float:
        """The value it takes when it is moved there. ValueError for one outside its range."""
        if not _is_number(value):
            raise ValueError(f"playground: {self.name} must be a number, got {value!r}")
        if not self.low <= value <= self.high:
            raise ValueError(f"playground: {self.name} goes from {self.low} to {self.high}, got {value!r}")
        return round(value) if self.whole else float(value)


@dataclass(repr=False, eq=False)
class Playground:
    """What `playground` returns: `runs` are the newest of each variant, `values` says where the sliders stand."""

    board: Board
    variants: Mapping[str, Mapping[str, Any]]
    sliders: Mapping[str, Slider]
    function: Callable[..., Any]
    fixed: Mapping[str, Any]
    timeout: float | None
    runs: dict[str, Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = {name: slider.value for name, slider in self.sliders.items()}
        self.board.on_message = self._receive
        self._tracks = {name: self.board.add(name) for name in self.variants}
        self._tasks: set[asyncio.Task[Any]] = set()
        # of the kernel; messages may arrive in another thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forget = False  # Reset was pressed during a run

    def _ipython_display_(self) -> None:
        if notebook.kernel() is None:
            print(self)
            return
        self._loop = asyncio.get_running_loop()
        self.board.show({"text/markdown": self.description()})
        self.board.refresh(None if self.runs else READY)
        if self.runs:
            self.board.draw()

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
        """Press a Run button; `values` move sliders first.

        Returns the `Run`, however it ended.
        Raises: ValueError names a variant, slider or value that does not exist; RuntimeError while another run goes on.
        """
        if variant not in self.variants:
            raise ValueError(f"playground: no variant {variant!r}; there are {sorted(self.variants)}")
        if self.board.running is not None:
            raise RuntimeError(f"playground: {self.board.running.label!r} is still running; stop it first")
        self.move(**values)
        settings = {**self.fixed, **self.values, **self.variants[variant]}
        from labkit import sandbox

        front = self._tracks[variant]
        self.board.clear(front)
        for track in self._tracks.values():
            track.ghost = track is not front
        front.mu = setting(self.function, settings, "mu")
        child = sandbox.start(self.function, timeout=self.timeout, **settings)
        try:
            run = await self.board.follow(front, child)
        finally:
            child.stop()
        if self._forget:
            self._wipe()
            return run
        run.meta.update(label=variant, sliders=dict(self.values))
        self.runs[variant] = run
        return run

    def move(self, **values: Any) -> None:
        """Move sliders. ValueError names one that does not exist or a value outside its range."""
        for name, value in values.items():
            if name not in self.sliders:
                raise ValueError(f"playground: no slider {name!r}; there are {sorted(self.sliders)}")
            self.values[name] = self.sliders[name].placed(value)

    def stop(self) -> None:
        """Press Stop."""
        self.board.stop()

    def reset(self) -> None:
        """Press Reset: stop, forget the runs, put the sliders back."""
        self._forget = self.board.running is not None  # then `run` wipes once it has ended
        self.board.stop()
        if not self._forget:
            self._wipe()

    def _wipe(self) -> None:
        self._forget = False
        self.runs.clear()
        self.values = {name: slider.value for name, slider in self.sliders.items()}
        for track in self._tracks.values():
            self.board.clear(track)
        self.board.refresh(READY)
        self.board.slot.put({"text/markdown": self.description()})

    def _receive(self, message: dict[str, Any]) -> None:
        """A button was pressed in the browser: hand it to the kernel's own thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._pressed, message)

    def _pressed(self, message: dict[str, Any]) -> None:
        if message["kind"] == "reset":
            self.reset()
        elif message["kind"] == "run" and self.board.running is None:
            go = self._run(str(message.get("variant")), dict(message.get("values") or {}))
            task = asyncio.get_running_loop().create_task(go)
            self._tasks.add(task)  # the loop itself holds only a weak reference
            task.add_done_callback(self._tasks.discard)

    async def _run(self, variant: str, values: dict[str, Any]) -> None:
        """Run for a button: there is nobody to raise to, so what goes wrong is said in the status line."""
        try:
            await self.run(variant, **values)
        except Exception as error:
            self.board.refresh(f"{variant}: could not start: {type(error).__name__}: {error}")


def _checked_variants(variants: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    if not isinstance(variants, Mapping) or not variants:
        raise TypeError(f"playground: variants must be a dict of name -> settings, got {variants!r}")
    for name, settings in variants.items():
        if not isinstance(name, str) or not isinstance(settings, Mapping):
            raise TypeError(f"playground: variant {name!r} needs a dict of settings, got {settings!r}")
    return {name: dict(settings) for name, settings in variants.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
