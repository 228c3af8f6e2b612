"""Watch a run live: `run = await labkit.watch(train, seed=0)`.

The run is a process of its own (`labkit.sandbox`): Stop stops it, whatever it does, and the kernel survives whatever
kills it. What arrives goes to a `Board`, which records it and, ten times a second, sends the page what is new. When
the run ends a picture takes the place of the live panels, so that a saved page holds no widget. This file draws nothing
itself: `web/dashboard.js` draws in the browser, `figure.py` the picture.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from labkit.events import Run

from . import figure, notebook
from .panels import MEANINGS, Panel, Panels, Thresholds, columns, parse, tone, visible
from .sheet import SHOWN, Picture
from .tracks import Rows, Track, marks_of

POLL = 0.04  # seconds between two looks at whether the run has ended
PAUSE = 0.1  # seconds between two updates of the page: one takes less than a hundredth of that, however long the run
PLAYGROUND_TEXT = "playground: buttons, sliders and live panels, once this cell is run"
# of the live board too, in whose place the picture comes: nbval sees only what was displayed first
PICTURE_TEXT = "picture of the run"


def watch(
    function: Callable[..., Any],
    *args: Any,
    label: str = "run",
    ghost: Run | None = None,
    panels: Panels | None = None,
    thresholds: Thresholds | None = None,
    timeout: float | None = 600,
    title: str = "",
    **kwargs: Any,
) -> Run | Coroutine[Any, Any, Run]:
    """Run `function(*args, **kwargs)`, a generator of `Step`s, in a process of its own, and draw it live.

    label        name of the run; the words of `panels.MEANINGS` ("bug", "yours", "healthy" …) have their own colours
    title        what the picture shows: the finding
    ghost        a `Run` that is drawn behind, at 55 %
    panels       names of series, or a dict of title -> name; None for grad norm, KL, reward, entropy and GPU memory
    thresholds   series name -> value: a dashed line; None for 10 in the grad norm panel
    timeout      seconds; None for no limit

    These names belong to `watch`, as `env` and `fresh` of `labkit.sandbox.run` do. A function that has an
    argument of the same name gets it by `functools.partial(function, title=...)`.

    Returns in a notebook something to `await`, which gives the `Run`; where no event loop runs, as in a script, the
    `Run` itself. However a run ends, it is returned: `run.outcome` says how.
    Raises: TypeError and ValueError name an argument that does not fit, before anything starts.
    """
    if not callable(function):
        raise TypeError(f"watch: expected a function that yields Steps, got {function!r}; pass it without calling it")
    board = Board(panels, thresholds, title)
    if ghost is not None:
        board.add_ended(ghost, ghost=True)
    track = board.add(label, mu=known_mu(function, kwargs))

    async def whole() -> Run:
        from labkit import sandbox

        child = sandbox.start(function, *args, timeout=timeout, **kwargs)
        try:
            board.show()
            return await board.follow(track, child)
        finally:
            child.stop()

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    return whole()


def picture(
    runs: Run | Mapping[str, Run],
    panels: Panels | None = None,
    thresholds: Thresholds | None = None,
    marks: Mapping[int, str] | None = None,
    title: str = "",
) -> Picture:
    """A picture of runs that have ended, like the one that `watch` leaves. Let it be the last line of a cell.

    runs   one `Run`, or a dict of label -> `Run`, drawn over each other in this order
    panels, thresholds, title   as for `labkit.watch`
    marks  step -> a few words: a hairline through every panel, {12: "norm NaN"}

    Returns a `Picture`, which `save`s itself.
    """
    board = Board(panels, thresholds, title)
    if isinstance(runs, Run):
        runs = {"": runs}
    for label, run in runs.items():
        board.add_ended(run, label)
    return Picture(board.picture(marks), PICTURE_TEXT)


class Board:
    """The runs of one dashboard, their live widget and their picture.

    panels, thresholds, title   as for `watch`
    variants     names of the Run buttons
    sliders      their specifications, for the browser

    `on_message` is called with what the browser sends, {"kind": "run"}, …, except "hello" and "stop".
    """

    def __init__(
        self,
        panels: Panels | None = None,
        thresholds: Thresholds | None = None,
        title: str = "",
        *,
        variants: Sequence[str] = (),
        sliders: Sequence[dict[str, Any]] = (),
    ):
        self.panels = parse(panels, thresholds)
        self.names = columns(self.panels)
        self.title, self.variants, self.sliders = title, list(variants), list(sliders)
        self.on_message: Callable[[dict[str, Any]], None] = lambda message: None
        self.tracks: list[Track] = []
        self.running: Track | None = None
        self.widget: Any = None
        self.slot = notebook.Slot(PICTURE_TEXT)
        self._child: Any = None
        self._status = ""
        # JupyterLab may deliver a page's messages in a thread of their own
        self._lock = threading.RLock()

    def add(self, label: str, *, ghost: bool = False, mu: int | None = None) -> Track:
        """A new run on this board, not yet started."""
        colour = tone(label)
        own = colour in MEANINGS.values()
        for older in self.tracks:  # the newer run keeps its name and colour; the one behind gives way
            if older.label == label or (own and older.tone == colour):
                older.tone = "grey"
            if older.label == label:
                older.label = f"earlier {label}"
        if not own:
            colour = tone(label, [t.tone for t in self.tracks])
        self.tracks.append(Track(label, colour, Rows(self.names), ghost=ghost, mu=mu))
        return self.tracks[-1]

    def add_ended(self, run: Run, label: str = "", *, ghost: bool = False) -> Track:
        """A run that has ended, under its own label where none is given."""
        mu = {**run.meta.get("settings", {}), **run.meta}.get("mu")
        name = label or str(run.meta.get("label") or "run")
        track = self.add(name, ghost=ghost, mu=mu if isinstance(mu, int) else None)
        track.feed(run.events)
        track.outcome = run.outcome
        return track

    def clear(self, track: Track) -> None:
        """Forget the rows of a run, to start it anew."""
        with self._lock:
            track.restart()
            if self.widget is not None:
                self.widget.send({"kind": "clear", "run": self.tracks.index(track)})

    def show(self, placeholder: dict[str, str] | None = None) -> None:
        """Display the live widget. Nothing outside a notebook.

        Where the board is of one run, the picture takes the widget's place when the run ends: a saved page then holds
        no widget, which could not be displayed once its kernel is gone. A playground goes on, so its picture stands in
        a slot of its own under the widget; `placeholder` is what that slot holds until then.
        """
        if notebook.kernel() is None:
            return
        if self.widget is None:
            text = PLAYGROUND_TEXT if self.variants else PICTURE_TEXT
            self.widget = notebook.live("dashboard", text, **self._spec())
            self.widget.on_msg(lambda _, message, __: self._receive(message))
        if self.variants:
            notebook.show(self.widget)
            self.slot.show(placeholder)
        else:
            self.slot.show_thing(self.widget)

    def draw(self) -> None:
        """Put the picture of everything that was run into the slot."""
        if self.widget is not None:
            png = base64.b64encode(self.picture()).decode("ascii")
            self.slot.put({"image/png": png}, {"image/png": SHOWN})

    def picture(self, marks: Mapping[int, str] | None = None) -> bytes:
        """The PNG of what the board shows now."""
        runs = [t for t in self.tracks if len(t.rows) or t.outcome is not None]
        return figure.picture(self._visible(), runs, self.title, marks)

    def refresh(self, text: str = "") -> None:
        """Send the browser what it does not have yet; `text` replaces the status line."""
        with self._lock:
            self._status = text or self._status
            if self.widget is not None:
                self._send_news()

    def stop(self) -> None:
        """Stop the run that is going on, if any. Returns at once."""
        if self._child is not None:
            self._child.stop()

    async def follow(self, track: Track, child: Any) -> Run:
        """Record and draw until the child ends. To cancel this, as a notebook's own stop button does, stops it."""
        self.running, self._child = track, child
        track.started = time.perf_counter()
        if self.widget is not None:
            _warm_up()
        self.refresh(f"{track.label}: starting")
        try:
            await self._watch(child)
            run = await asyncio.to_thread(child.result)
        finally:
            self.running = self._child = None
        # The rest of it; in the run what it is called, in the status how it ended; the picture.
        track.feed(child.drain())
        track.outcome = run.outcome
        run.meta.setdefault("label", track.label)
        if track.mu is not None:
            run.meta.setdefault("mu", track.mu)
        others = [t for t in self.tracks if t is not track and t.outcome is not None]
        self.refresh(" · ".join(f"{t.label}: {t.status()}" for t in [track, *others]))
        self.draw()
        return run

    async def _watch(self, child: Any) -> None:
        due = 0.0
        try:
            while child.alive:
                if time.perf_counter() >= due:
                    self._record()
                    due = time.perf_counter() + PAUSE
                await asyncio.sleep(POLL)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.stop()
            if (task := asyncio.current_task()) is not None:
                task.uncancel()

    def _record(self) -> None:
        """Take what has arrived and tell the browser."""
        track, now = self.running, time.perf_counter()
        assert track is not None and track.started is not None
        waiting = not len(track.rows)
        track.feed(self._child.drain())
        text = f"starting, {now - track.started:.0f} s"
        if len(track.rows):
            if waiting:  # the clock of a run does not count the start of its process
                track.started = now
            text = track.status(now)
        self.refresh(f"{track.label}: {text}")

    # ---- the wire; `web/dashboard.js` lists the messages

    def _receive(self, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "hello":  # a page that knows nothing yet: a new one, or one that was reloaded
            with self._lock:
                for track in self.tracks:
                    track.sent = 0
                self.refresh()
        elif kind == "stop":
            self.stop()
        else:
            self.on_message(message)

    def _send_news(self) -> None:
        spec = self._spec()
        if self.widget.spec != spec:  # a change is a message to the page
            self.widget.spec = spec
        state = {
            "text": self._status,
            "running": self.running.label if self.running else "",
            "marks": [vars(mark) for mark in marks_of(self.tracks)],
        }
        news = False
        for at, track in enumerate(self.tracks):
            if len(track.rows) > track.sent:
                rows = track.rows.packed(track.sent)
                self.widget.send({"kind": "rows", "run": at, "from": track.sent, **state}, [rows])
                track.sent, news = len(track.rows), True
        if not news:
            self.widget.send({"kind": "state", **state})

    def _visible(self) -> list[Panel]:
        measured: set[str] = set()
        for track in self.tracks:
            measured |= track.rows.finite | set(track.rows.broken)
        return visible(self.panels, measured)

    def _spec(self) -> dict[str, Any]:
        tones = {t.label: t.tone for t in self.tracks}
        return {
            "title": self.title,
            "panels": [panel.spec() for panel in self._visible()],
            "runs": [{"label": t.label, "tone": t.tone, "ghost": t.ghost} for t in self.tracks],
            "names": self.names,
            "variants": [[name, tones.get(name, "grey")] for name in self.variants],
            "sliders": self.sliders,
        }


def known_mu(function: Callable[..., Any], settings: Mapping[str, Any]) -> int | None:
    """The `mu` that `function` will see, or None where that cannot be known."""
    parameter = inspect.signature(function).parameters.get("mu")
    value = settings.get("mu", parameter.default if parameter else None)
    return value if isinstance(value, int) else None


@functools.cache
def _warm_up() -> None:
    """Load matplotlib while the run is going, so that the picture does not wait for it at the end."""
    threading.Thread(target=picture, args=(Run(),), name="labkit-warm-up", daemon=True).start()
