"""Watch a run live: `run = await labkit.watch(train, seed=0)`.

The run is a process of its own (`labkit.sandbox`), so that Stop stops it, whatever it does, and the kernel survives
whatever kills it. The kernel hands what arrives to a `Board`, which records it and, within its budget, sends what is
new to the browser. At the end a picture takes the place of the live panels in the saved notebook.
This file draws nothing itself: `web/dashboard.js` draws in the browser, `figure.py` in the saved notebook.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.events import Outcome, Run

from . import figure, notebook
from . import panels as panels_
from .tracks import Budget, Recorder, Track

POLL = 0.04  # seconds between two looks at whether the run has ended
WIDGET_TEXT = "live dashboard: it moves while this cell runs; below is how the run ended"
PLAYGROUND_TEXT = "playground: buttons, sliders and live panels, once this cell is run"
PICTURE_TEXT = "picture of the run"

Ghost = Run | str | Path


def watch(
    function: Callable[..., Any],
    *args: Any,
    label: str = "run",
    ghost: Ghost | Sequence[Ghost] | None = None,
    panels: Any = None,
    thresholds: Mapping[str, Any] | None = None,
    timeout: float | None = 600,
    title: str = "",
    env: Mapping[str, str | None] | None = None,
    memory_limit: int | None = None,
    fresh: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Run `function(*args, **kwargs)`, a generator of `Step`s, in a process of its own; draw it live; return the `Run`.

    In a notebook write `run = await labkit.watch(...)`. In a script or a test, where no event loop runs, the same
    call without `await` returns the `Run`. A run that crashes, times out or is stopped is returned all the same:
    `run.outcome` says how it ended.

    label        name of the run; "bug" and "fix" have their own colours
    ghost        a `Run`, the path of a saved one, or a list of these: drawn behind at 55 %
    panels       what to draw: see `panels.parse`; None for grad norm, KL, memory and reward
    thresholds   series name -> value or (value, text): a dashed line; None for 10 in the grad norm panel
    timeout      seconds; None for no limit
    env, memory_limit, fresh   passed to `labkit.sandbox.start`

    These names belong to `watch`. A function that has an argument of the same name gets it by
    `functools.partial(function, title=...)`. TypeError and ValueError name an argument that does not fit, before
    anything starts.
    """
    if not callable(function):
        raise TypeError(
            f"watch: expected a function that yields Steps, got {function!r}; pass it without calling it"
        )
    board = Board(panels, thresholds, title)
    ghosts: Sequence[Any] = ghost if isinstance(ghost, (list, tuple)) else [] if ghost is None else [ghost]
    for earlier in ghosts:
        board.add_ghost(earlier)
    track = board.add(label, mu=_setting(function, kwargs, "mu"))

    def start() -> Any:
        from labkit import sandbox

        settings: Any = {"timeout": timeout, "env": env, "memory_limit": memory_limit, "fresh": fresh}
        return sandbox.start(function, *args, **settings, **kwargs)

    if _in_event_loop():
        return Pending(lambda: _once(board, track, start))
    child = start()
    try:
        board.show()
        return board.follow(track, child)
    finally:
        child.stop()


class Pending:
    """A run that has not begun: `await` it. Awaiting it again gives the same run."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, Run]]):
        self._begin = begin
        self._task: asyncio.Future[Run] | None = None

    def __await__(self) -> Generator[Any, None, Run]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._begin())
        return self._task.__await__()

    def __repr__(self) -> str:
        return "this run has not begun: write `run = await labkit.watch(...)`"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name!r} yet: {self!r}")


class Board:
    """The runs of one dashboard, their live widget and their picture.

    `panels`, `thresholds`: see `panels.parse`. `variants` are the names of the Run buttons, `sliders` their
    specifications (`controls.py`). `on_message` gets what the browser sends: {"kind": "stop"}, ….
    """

    def __init__(
        self,
        panels: Any = None,
        thresholds: Mapping[str, Any] | None = None,
        title: str = "",
        *,
        variants: Sequence[str] = (),
        sliders: Sequence[dict[str, Any]] = (),
        budget: Budget | None = None,
    ):
        self.panels = panels_.parse(panels, thresholds)
        self.names = panels_.columns(self.panels)
        self.title, self.variants, self.sliders = title, list(variants), list(sliders)
        self.budget = budget or Budget()
        self.tracks: list[Track] = []
        self.running: Track | None = None
        self.widget: Any = None
        self.slot = notebook.Slot(PICTURE_TEXT)
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.sent_bytes = 0  # of rows
        self._sent: list[int] = []  # rows of each track that the browser has been sent
        self._child: Any = None
        self._status = ""
        self._lock = threading.RLock()  # JupyterLab may deliver a page's messages in a thread of their own

    # ---- the runs

    def add(self, label: str, *, ghost: bool = False, mu: int | None = None) -> Track:
        """A new run on this board, not yet started."""
        if not isinstance(label, str) or not label.strip():
            raise ValueError(f"label: expected a name such as 'bug' or 'fix', got {label!r}")
        colour = panels_.tone(label)
        for older in self.tracks:  # the newer run keeps its name and colour; the one behind gives way
            if older.label == label:
                older.label = f"earlier {label}"
            if older.tone == colour:
                older.tone = "grey"
        if colour not in ("bug", "fix"):
            colour = panels_.tone(label, [t.tone for t in self.tracks])
        track = Track(label, colour, Recorder(self.names), ghost=ghost, mu=mu)
        self.tracks.append(track)
        self._sent.append(0)
        return track

    def add_ghost(self, earlier: Ghost) -> Track:
        """A finished run, or the file of one, to draw behind."""
        if isinstance(earlier, (str, Path)):
            path = Path(earlier)
            earlier = Run.load(path)
            name = str(earlier.meta.get("label") or path.stem)
        elif isinstance(earlier, Run):
            name = str(earlier.meta.get("label") or "earlier run")
        else:
            raise TypeError(f"ghost: expected a Run or the path of a saved one, got {earlier!r}")
        mu = earlier.meta.get("mu")
        track = self.add(name, ghost=True, mu=mu if isinstance(mu, int) else None)
        track.feed(earlier.events)
        track.outcome, track.seconds = earlier.outcome, earlier.outcome.seconds
        return track

    def clear(self, track: Track) -> None:
        """Forget the rows of a run, to start it anew."""
        with self._lock:
            track.recorder, track.outcome, track.round = Recorder(self.names), None, 0
            at = self.tracks.index(track)
            self._sent[at] = 0
            self._send({"kind": "clear", "run": at})

    # ---- the display

    def show(self, placeholder: dict[str, str] | None = None) -> None:
        """Display the live widget and, under it, the slot that keeps the picture. Nothing outside a notebook."""
        if notebook.kernel() is None:
            return
        if self.widget is None:
            text = PLAYGROUND_TEXT if self._spec().get("variants") else WIDGET_TEXT
            self.widget = notebook.live("dashboard", text, **self._spec())
            if self.widget is not None:
                self.widget.on_msg(lambda _, message, __: self._receive(message))
        if self.widget is not None:
            from IPython.display import display

            display(self.widget)
        self.slot.show(placeholder)

    def draw(self) -> None:
        """Put the picture of everything that was run into the slot."""
        if self.slot.shown:
            self.slot.picture(self.picture())

    def picture(self) -> bytes:
        """The PNG of what the board shows now."""
        shown = [t for t in self.tracks if len(t.recorder) or t.outcome is not None]
        return figure.picture(self._visible(), shown, self.title)

    def refresh(self, text: str | None = None) -> None:
        """Send the browser what it does not have yet; `text` replaces the status line."""
        with self._lock:
            if text is not None:
                self._status = text
            if self.widget is not None:
                self._send_news()

    def _send_news(self) -> None:
        if self.widget.spec != (spec := self._spec()):
            self.widget.spec = spec
        state = {
            "text": self._status,
            "running": self.running.label if self.running else "",
            "notes": self._notes(),
        }
        news = False
        for at, track in enumerate(self.tracks):
            if len(track.recorder) > self._sent[at]:
                rows = track.recorder.packed(self._sent[at])
                self._send({"kind": "rows", "run": at, "from": self._sent[at], **state}, [rows])
                self._sent[at], news = len(track.recorder), True
                self.sent_bytes += len(rows)
        if not news:
            self._send({"kind": "state", **state})

    # ---- following a run

    def stop(self) -> None:
        """Stop the run that is going on, if any. Returns at once."""
        if self._child is not None:
            self._child.stop()

    def follow(self, track: Track, child: Any) -> Run:
        """Record and draw until the child ends; an interrupt stops it. The synchronous way."""
        self._begin(track, child)
        try:
            try:
                while child.alive:
                    self._tick()
                    time.sleep(POLL)
            except KeyboardInterrupt:
                self.stop()
            return self._end(child.result())
        finally:
            self.running = self._child = None

    async def follow_async(self, track: Track, child: Any) -> Run:
        """The same in an event loop, which stays free to answer the browser."""
        self._begin(track, child)
        try:
            try:
                while child.alive:
                    self._tick()
                    await asyncio.sleep(POLL)
            except (asyncio.CancelledError, KeyboardInterrupt):  # the notebook's own stop button
                self.stop()
                if (task := asyncio.current_task()) is not None:
                    task.uncancel()
            return self._end(await asyncio.to_thread(child.result))
        finally:
            self.running = self._child = None

    def _begin(self, track: Track, child: Any) -> None:
        if self.running is not None:
            raise RuntimeError(f"a run is going on ({self.running.label}): stop it first")
        self.running, self._child = track, child
        track.started = time.perf_counter()
        if self.slot.shown:
            _warm_up()
        self.refresh(f"{track.label}: starting")

    def _tick(self) -> None:
        if self.budget.due():
            self.budget.run(self._work)

    def _work(self) -> None:
        track = self.running
        assert track is not None
        now, waiting = time.perf_counter(), not len(track.recorder)
        track.feed(self._child.drain())
        if len(track.recorder):
            if waiting:
                track.started = now  # the clock of a run does not count the start of its process
            self.refresh(f"{track.label}: {track.status(now)}")
        elif (text := f"{track.label}: starting, {now - track.started:.0f} s") != self._status:
            self.refresh(text)

    def _end(self, run: Run) -> Run:
        track, child = self.running, self._child
        assert track is not None
        track.feed(child.drain())
        track.feed(run.steps[len(track.recorder) :])  # what `drain` did not give
        track.outcome = run.outcome
        track.seconds = run.outcome.seconds
        self.running = self._child = None
        run.meta.setdefault("label", track.label)
        if track.mu is not None:
            run.meta.setdefault("mu", track.mu)
        others = [t for t in self.tracks if t is not track and t.outcome is not None]
        self.refresh(" · ".join(f"{t.label}: {t.status()}" for t in [track, *others]))
        self.draw()
        return run

    # ---- the wire

    def _receive(self, message: Any) -> None:
        kind = message.get("kind") if isinstance(message, dict) else None
        if kind == "hello":  # a page that knows nothing yet: a new one, or one that was reloaded
            with self._lock:
                self._sent = [0] * len(self.tracks)
                self.refresh()
        elif kind == "stop":
            self.stop()
        elif kind:
            self.on_message(message)

    def _send(self, content: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        if self.widget is not None:
            self.widget.send(content, buffers)

    def _visible(self) -> list[panels_.Panel]:
        seen: set[str] = set()
        for track in self.tracks:
            seen |= track.recorder.seen | set(track.recorder.bad)
        return panels_.visible(self.panels, seen, any(len(t.recorder) for t in self.tracks))

    def _spec(self) -> dict[str, Any]:
        panels = [
            {
                "key": p.key,
                "title": p.title,
                "series": list(p.series),
                "log": p.log,
                "log_above": min(p.log_above, 1e300),
                "zero": p.zero,
                "unit": p.unit,
                "band": p.band,
                "lines": [list(line) for line in p.lines],
            }
            for p in self._visible()
        ]
        runs = [{"label": t.label, "tone": t.tone, "ghost": t.ghost} for t in self.tracks]
        tones = {t.label: t.tone for t in self.tracks}
        variants = [[name, tones.get(name, "grey")] for name in self.variants]
        return {
            "title": self.title,
            "panels": panels,
            "runs": runs,
            "names": self.names,
            "variants": variants,
            "sliders": self.sliders,
        }

    def _notes(self) -> list[dict[str, Any]]:
        """Where a series stopped being a number, for each panel that draws it."""
        notes = []
        for panel in self._visible():
            for at, track in enumerate(self.tracks):
                for name in panel.series:
                    if name in track.recorder.bad:
                        column = 1 + self.names.index(name)
                        text = track.note(name, several=len(panel.series) > 1)
                        notes.append({"panel": panel.key, "run": at, "column": column, "text": text})
        return notes


async def _once(board: Board, track: Track, start: Callable[[], Any]) -> Run:
    child = start()
    try:
        board.show()
        return await board.follow_async(track, child)
    finally:
        child.stop()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _setting(function: Callable[..., Any], kwargs: Mapping[str, Any], name: str) -> int | None:
    """The value that `function` will see for an integer argument, or None where that cannot be known."""
    value = kwargs.get(name)
    if name not in kwargs:
        try:
            value = inspect.signature(function).parameters[name].default
        except (KeyError, TypeError, ValueError):
            return None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@functools.cache
def _warm_up() -> None:
    """Load matplotlib while the run is going, so that the picture does not wait for it at the end."""

    def load() -> None:
        figure.picture([panels_.KNOWN["kl"]], [Track("", "grey", Recorder(["kl"]), outcome=Outcome())])

    threading.Thread(target=load, name="labkit-warm-up", daemon=True).start()
