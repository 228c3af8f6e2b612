"""What `labkit course` shows in a terminal: a bar for each lesson while it runs, and a table when all have ended.

Where the output is a file, no bars: a line when a lesson has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from labkit.lessons import Lesson

Watch = tuple[Callable[[str, int, int], None], Callable[[Lesson], None]]


@contextlib.contextmanager
def watching(chosen: Sequence[Lesson], quiet: bool = False) -> Iterator[Watch]:
    """While this lasts: told(number, cells done, of all) moves a lesson's bar, ended(lesson) closes it. On stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    if quiet:
        yield lambda *word: None, lambda lesson: None
    elif console.is_terminal:
        with _bars(console) as bars:
            whole = bars.add_task("course", total=len(chosen), unit="lessons")
            task = {x.number: bars.add_task(_title(x), total=None, unit="cells", visible=False) for x in chosen}

            def ended(lesson: Lesson) -> None:
                bars.update(task[lesson.number], visible=False)
                bars.advance(whole)
                bars.console.print(_line(lesson))

            yield lambda n, done, of: bars.update(task[n], completed=done, total=of, visible=True), ended
    else:
        yield lambda *word: None, lambda lesson: console.print(_line(lesson), soft_wrap=True)


def report(done: Sequence[Lesson], written: Sequence[Path]) -> None:
    """The table, the verdicts of lessons that failed or of the only one, and the recordings. On stdout."""
    from rich.console import Console

    Console().print(_table(done))
    for lesson in done:
        if len(done) == 1 or not lesson.ok:
            for v in lesson.verdicts:
                print(f"  {lesson.number} {v['result'].upper()}  {v['claim']} | {v['seen']}")
    for path in written:
        print(f"recorded: {path} ({path.stat().st_size / 1000:.0f} kB)")


def _bars(console: Any) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f} {task.fields[unit]}")
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True)


def _title(lesson: Lesson) -> str:
    from rich.markup import escape

    return escape(f"{lesson.number} {lesson.title}")


def _made(lesson: Lesson) -> str:
    passed = sum(v["result"] == "pass" for v in lesson.verdicts)
    return f"{passed}/{max(len(lesson.expected), len(lesson.verdicts))}"


def _note(lesson: Lesson) -> str:
    from rich.markup import escape

    return "[green]ok[/]" if lesson.ok else f"[red]failed[/] {escape(_why(lesson))}"


def _line(lesson: Lesson) -> str:
    return f"{_title(lesson)}  {_made(lesson)}  {lesson.seconds:.1f} s  {_note(lesson)}"


def _table(done: Sequence[Lesson]) -> Any:
    from rich.table import Table

    grid = Table(title="The course", title_justify="left")
    for name, justify in (("lesson", "left"), ("verdicts", "right"), ("seconds", "right"), ("", "left")):
        grid.add_column(name, justify=justify)  # type: ignore[arg-type]
    for lesson in done:
        grid.add_row(_title(lesson), _made(lesson), f"{lesson.seconds:.1f}", _note(lesson))
    return grid


def _why(lesson: Lesson) -> str:
    if lesson.error:
        return lesson.error[:100]
    return f"{len(lesson.missing)} claims not made, first: {lesson.missing[0]}" if lesson.missing else ""
