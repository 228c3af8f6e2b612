"""A playground: Run bug, Run fix, Stop, Reset and sliders over one board. Nothing runs until a button is pressed.

So Run All, nbval and papermill pass over it at once; a saved notebook keeps a line that says what it offers, and the
picture of the last runs once somebody pressed a button. Runs go on in a child process (`labkit.sandbox`) while the
kernel stays free; while another cell computes, the chart waits.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from typing import Any

from labkit.common import number
from labkit.events import Run

from . import notebook
from .dashboard import Board, setting

READY = "ready: nothing runs until you press a button"


def playground(
    function: Callable[..., Any],
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    sliders: Mapping[str, Any] | None = None,
    *,
    panels: Any = None,
    thresholds: Mapping[str, Any] | None = None,
    timeout: float | None = 600,
    title: str = "",
    **fixed: Any,
) -> Playground:
    """A playground for `function`, a generator of `Step`s. Let it be the last line of a cell, or display it.

    variants   button name -> the settings that make it: {"bug": {"kl": k3_raw}, "fix": {"kl": k3_clamped}}
    sliders    setting -> (low, high, default) or (low, high, default, "log"); whole numbers when all three are int
    fixed      settings of every run; a slider's value goes over these, a variant's over both
    panels, thresholds, timeout, title   as for `labkit.watch`

    `await pg.run("bug")` presses a button from code and gives the `Run`; `pg.runs` holds the newest of each variant.
    ValueError or TypeError names what does not fit.
    """
    return Playground(
        function, variants, sliders, panels=panels, thresholds=thresholds, timeout=timeout, title=title, **fixed
    )  # fmt: skip


class Playground:
    """What `playground` returns. Fields: `runs` (variant -> newest `Run`), `values` (slider -> value), `board`."""

    def __init__(
        self,
        function: Callable[..., Any],
        variants: Mapping[str, Mapping[str, Any]] | None,
        sliders: Mapping[str, Any] | None,
        *,
        panels: Any,
        thresholds: Mapping[str, Any] | None,
        timeout: float | None,
        title: str,
        **fixed: Any,
    ):
        if not callable(function):
            raise TypeError(f"playground: expected a function that yields Steps, got {function!r}")
        self.function, self.fixed, self.timeout = function, fixed, timeout
        self.variants = _checked_variants({"run": {}} if variants is None else variants)
        self.sliders = [_slider(name, given) for name, given in (sliders or {}).items()]
        for name, settings in self.variants.items():
            if both := set(settings) & {s["name"] for s in self.sliders}:
                raise ValueError(
                    f"playground: {sorted(both)} is a slider and a setting of {name!r}; choose one"
                )
        self.runs: dict[str, Run] = {}
        self.values = {s["name"]: s["value"] for s in self.sliders}
        self.board = Board(panels, thresholds, title, variants=list(self.variants), sliders=self.sliders)
        self.board.on_message = self._receive
        self._tracks = {name: self.board.add(name) for name in self.variants}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forget = False  # Reset was pressed during a run

    def _ipython_display_(self) -> None:
        if notebook.kernel() is None:
            print(self)
            return
        self._loop = asyncio.get_running_loop()  # of the kernel; messages may arrive in another thread
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
        for s in self.sliders:
            low, high, value = (number(s[key]) for key in ("low", "high", "value"))
            lines.append(f"- `{s['name']}` from {low} to {high}, at {value}{' (log)' if s['log'] else ''}")
        return "\n".join(lines) + "\n\nRun this cell to use it; nothing runs until you press a button."

    async def run(self, variant: str, **values: Any) -> Run:
        """Press a Run button: `values` move sliders first. Gives the `Run`, however it ended."""
        if variant not in self.variants:
            raise ValueError(f"playground: no variant {variant!r}; there are {sorted(self.variants)}")
        if self.board.running is not None:
            raise RuntimeError(f"playground: {self.board.running.label!r} is still running; stop it first")
        self.move(**values)
        settings = {**self.fixed, **self.values, **self.variants[variant]}
        from labkit import sandbox

        track = self._tracks[variant]
        self.board.clear(track)
        self._stand_back(track)
        track.mu = setting(self.function, settings, "mu")
        child = sandbox.start(self.function, timeout=self.timeout, **settings)
        try:
            run = await self.board.follow(track, child)
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
            slider = next((s for s in self.sliders if s["name"] == name), None)
            if slider is None:
                raise ValueError(f"playground: no slider {name!r}; there are {sorted(self.values)}")
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise ValueError(f"playground: {name} must be a number, got {value!r}")
            if not slider["low"] <= value <= slider["high"]:
                raise ValueError(
                    f"playground: {name} goes from {slider['low']} to {slider['high']}, got {value!r}"
                )
            self.values[name] = round(value) if slider["whole"] else float(value)

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
        self.values = {s["name"]: s["value"] for s in self.sliders}
        for track in self._tracks.values():
            self.board.clear(track)
        self.board.refresh(READY)
        self.board.slot.put({"text/markdown": self.description()})

    def _stand_back(self, front: Any) -> None:
        """The run that is about to start is in front; the others go behind."""
        for track in self._tracks.values():
            track.ghost = track is not front

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


def _slider(name: str, given: Any) -> dict[str, Any]:
    """(low, high, default) or (low, high, default, "log") as the browser needs it."""
    form = '(low, high, default) or (low, high, default, "log")'
    if (
        not isinstance(given, (tuple, list))
        or len(given) not in (3, 4)
        or (len(given) == 4 and given[3] != "log")
    ):
        raise ValueError(f"playground: slider {name!r} needs {form}, got {given!r}")
    low, high, value = given[:3]
    for end in (low, high, value):
        if isinstance(end, bool) or not isinstance(end, (int, float)) or not math.isfinite(end):
            raise ValueError(f"playground: slider {name!r} needs finite numbers, got {given!r}")
    log = len(given) == 4
    if not low < high or not low <= value <= high or (log and low <= 0):
        raise ValueError(
            f"playground: slider {name!r} needs low < high, low <= default <= high"
            f"{', and low > 0 for log' if log else ''}; got {given!r}"
        )
    whole = all(isinstance(number, int) for number in (low, high, value))
    return {"name": name, "low": low, "high": high, "value": value, "log": log, "whole": whole}
